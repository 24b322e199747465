"""Record sets to Arrow buffers; moved by the walk, the copies, and memory touched first."""

from plog._native import columns as native
from plog._reference import columns as reference

from . import common

ENGINES = {"native": native, "reference": reference}
COLUMNS = {
    "all": frozenset(native.COLUMNS),
    "value": frozenset({"value"}),
}


class Columns:
    params = (common.ENGINES, list(common.RECORD_BATCHES), list(COLUMNS))
    param_names = ("engine", "batch", "columns")

    def setup(self, engine, batch, columns):
        # The reference counts its bytes anew for every row.
        if engine == "reference" and not batch.startswith("1 x"):
            raise NotImplementedError
        self.engine, self.columns = ENGINES[engine], COLUMNS[columns]
        self.data = common.RECORD_BATCHES[batch]

    def time_append_and_take(self, engine, batch, columns):
        builder = self.engine.ColumnBuilder(self.columns, "topic", 0)
        builder.append(self.data, 0, 1 << 40)
        builder.take()
