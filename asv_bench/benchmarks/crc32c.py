"""CRC-32C over hot data; moved by the processor's instruction and, below 1 KB, by the call."""

from plog._native import crc32c as native
from plog._reference import crc32c as reference

from . import common

SIZES = [100, 1024, 16384, 65536, 1 << 20]


class Crc32c:
    # `table` is what a processor without the instruction gets.
    params = ([*common.ENGINES, "table"], SIZES)
    param_names = ("engine", "size")

    def setup(self, engine, size):
        self.data = common.NOISE[:size]
        self.crc32c = {
            "native": native.crc32c,
            "reference": reference.crc32c,
            "table": lambda data: native._crc32c_with("table", data),
        }[engine]

    def time_sum(self, engine, size):
        self.crc32c(self.data)
