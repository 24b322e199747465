"""The four codecs on JSON events: a batch of one small record, and one of 1 MiB.

Small ones are moved by what each call sets up, large ones by the C library. The
reference's snappy and lz4 run on the small size only (they are Python), and it
has no zstd.
"""

from plog._native import compression as native
from plog._reference import compression as reference

from . import common

ENGINES = {"native": native, "reference": reference}
CODECS = {
    "gzip": common.GZIP,
    "snappy": common.SNAPPY,
    "lz4": common.LZ4,
    "zstd": common.ZSTD,
}
SIZES = [300, 1 << 20]


class Compression:
    params = (common.ENGINES, list(CODECS), SIZES)
    param_names = ("engine", "codec", "size")

    def setup(self, engine, codec, size):
        if engine == "reference" and (codec == "zstd" or (codec != "gzip" and size > 300)):
            raise NotImplementedError
        self.engine, self.codec = ENGINES[engine], CODECS[codec]
        self.plain = common.JSON_EVENTS[:size]
        self.packed = common.compressed_events(self.codec, size)

    def time_compress(self, engine, codec, size):
        self.engine.compress(self.codec, self.plain)

    def time_decompress(self, engine, codec, size):
        self.engine.decompress(self.codec, self.packed, len(self.plain))

    def track_ratio(self, engine, codec, size):
        """Times smaller than the input."""
        return len(self.plain) / len(self.engine.compress(self.codec, self.plain))
