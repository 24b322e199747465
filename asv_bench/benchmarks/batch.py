"""Headers, checksums and restamping of batches.

Small batches are moved by the price of a call, large ones by the CRC.
"""

from plog._native import batch as native
from plog._reference import batch as reference

from . import common

ENGINES = {"native": native, "reference": reference}


class Batch:
    params = (common.ENGINES, list(common.RECORD_BATCHES))
    param_names = ("engine", "batch")

    def setup(self, engine, batch):
        if engine == "reference" and not batch.startswith(("1 x", "150 x")):
            raise NotImplementedError
        self.engine, self.data = ENGINES[engine], common.RECORD_BATCHES[batch]
        self.copy = bytearray(self.data)

    def time_read_header(self, engine, batch):
        self.engine.read_header(self.data)

    def time_check(self, engine, batch):
        self.engine.check_batch(self.data)

    def time_restamp_append_time(self, engine, batch):
        self.engine.restamp_append_time(self.copy, common.BATCH_TIME_MS)
