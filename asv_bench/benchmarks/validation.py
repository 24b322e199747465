"""The validation of whole batches as a leader does it.

Small batches are moved by the price of a call, large ones by the CRC and the
walk through the records; compressed ones by the codec's C library.
"""

from plog._native import validation as native
from plog._reference import validation as reference

from . import common

ENGINES = {"native": native, "reference": reference}


class Validation:
    params = (common.ENGINES, list(common.RECORD_BATCHES))
    param_names = ("engine", "batch")

    def setup(self, engine, batch):
        if engine == "reference" and not batch.startswith(("1 x", "150 x")):
            raise NotImplementedError
        self.engine, self.data = ENGINES[engine], common.RECORD_BATCHES[batch]

    def time_validate(self, engine, batch):
        found = self.engine.validate_produced(
            self.data,
            now_ms=common.BATCH_TIME_MS,
            before_max_ms=3_600_000,
            after_max_ms=3_600_000,
            log_append_time=False,
            key_required=False,
            decompressed_limit=1 << 26,
        )
        assert found.error == 0
