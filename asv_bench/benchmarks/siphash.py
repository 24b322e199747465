"""The hash of what fetch sessions are found by."""

from plog._native import siphash as native
from plog._reference import siphash as reference

from . import common

ENGINES = {"native": native.siphash, "reference": reference.siphash}


class SipHash:
    params = (common.ENGINES, [4, 16, 100])
    param_names = ("engine", "size")

    def setup(self, engine, size):
        self.siphash, self.data = ENGINES[engine], common.KEYS[size]

    def time_hash(self, engine, size):
        self.siphash(bytes(16), self.data)
