"""What compaction does with a batch: it takes the keys in, and leaves out what is superseded."""

from plog._native import cleaning as native
from plog._native.offset_map import OffsetMap as NativeMap
from plog._reference import cleaning as reference
from plog._reference.offset_map import OffsetMap as ReferenceMap

from . import common

ENGINES = {"native": (native, NativeMap), "reference": (reference, ReferenceMap)}
ROOM = 1 << 20


class Cleaning:
    params = (common.ENGINES, ["8000 x 100 B keyed", "1000 x 1000 B keyed"])
    param_names = ("engine", "batch")

    def setup(self, engine, batch):
        self.module, self.new_map = ENGINES[engine]
        self.batch = common.RECORD_BATCHES[batch]
        self.superseded = self.new_map(ROOM)
        # Every key comes again behind the batch.
        later = bytearray(self.batch)
        later[:8] = (1 << 30).to_bytes(8, "big")
        self.superseded.add_batch(bytes(later))

    def time_keys(self, engine, batch):
        self.new_map(ROOM).add_batch(self.batch)

    def time_all_stay(self, engine, batch):
        self.module.clean_batch(self.batch, self.superseded, known_to=0, drop_tombstones=False)

    def time_all_go(self, engine, batch):
        self.module.clean_batch(
            self.batch, self.superseded, known_to=1 << 40, drop_tombstones=False
        )
