"""Integers and varints one call at a time; moved by the price of a Python call."""

from plog._native import wire as native
from plog._reference import wire as reference

from . import common

ENGINES = {"native": native, "reference": reference}


class Varint:
    params = (common.ENGINES, [1, 3, 5])
    param_names = ("engine", "width")

    def setup(self, engine, width):
        self.engine = ENGINES[engine]
        self.data = common.VARINTS[width]
        self.value = {1: 63, 3: 1_048_575, 5: 2**31 - 1}[width]

    def time_decode(self, engine, width):
        self.engine.decode_varint(self.data, 0)

    def time_encode(self, engine, width):
        self.engine.encode_varint(self.value)


class Varlong:
    params = (common.ENGINES, [1, 6, 10])
    param_names = ("engine", "width")

    def setup(self, engine, width):
        self.engine = ENGINES[engine]
        self.data = common.VARLONGS[width]

    def time_decode(self, engine, width):
        self.engine.decode_varlong(self.data, 0)


class Int32:
    params = (common.ENGINES,)
    param_names = ("engine",)

    def setup(self, engine):
        self.engine = ENGINES[engine]

    def time_decode(self, engine):
        self.engine.decode_int32(b"\x00\x00\x01\x02", 0)
