"""The hash of a record's key."""

from plog._native import murmur2 as native
from plog._reference import murmur2 as reference

from . import common

ENGINES = {"native": native.murmur2, "reference": reference.murmur2}


class Murmur2:
    params = (common.ENGINES, [4, 16, 100])
    param_names = ("engine", "size")

    def setup(self, engine, size):
        self.murmur2, self.key = ENGINES[engine], common.KEYS[size]

    def time_hash(self, engine, size):
        self.murmur2(self.key)
