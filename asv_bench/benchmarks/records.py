"""Records to and from Python objects; moved by the objects more than by the bytes."""

from plog._native import records as native
from plog._reference import records as reference

from . import common

ENGINES = {"native": native, "reference": reference}


class Walk:
    params = (common.ENGINES, list(common.RECORD_BATCHES))
    param_names = ("engine", "batch")

    def setup(self, engine, batch):
        if engine == "reference" and not batch.startswith(("1 x", "150 x")):
            raise NotImplementedError
        self.engine, self.data = ENGINES[engine], common.RECORD_BATCHES[batch]

    def time_walk(self, engine, batch):
        self.engine.walk(self.data)


class Builder:
    params = (common.ENGINES, [0, common.LZ4], [(), (("a", b"1"), ("b", None))])
    param_names = ("engine", "codec", "headers")

    def setup(self, engine, codec, headers):
        if engine == "reference" and codec:
            raise NotImplementedError
        self.engine = ENGINES[engine]
        self.values = [common.JSON_EVENTS[at * 100 : at * 100 + 100] for at in range(150)]
        self.full = self.builder(codec, headers)

    def builder(self, codec, headers):
        builder = self.engine.BatchBuilder(codec=codec)
        append = builder.append
        for value in self.values:
            append(common.BATCH_TIME_MS, None, value, headers)
        return builder

    def time_append_150(self, engine, codec, headers):
        self.builder(codec, headers)

    def time_build(self, engine, codec, headers):
        self.full.build()
