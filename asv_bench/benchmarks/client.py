"""The client's own part of a send: partitioner, accumulator, batches. No broker is asked.

Moved by what `append` does for each record, and by the bytes that `encode` copies and checksums.
"""

import time

from plog._reference import murmur2 as reference
from plog.client.accumulator import Accumulator, Bounds
from plog.client.partitioner import StickyPartitioner, partition_for_key, round_robin
from plog.client.producer_batch import ProducerBatch
from plog.types import TopicPartition

from . import common

RECORDS = 1000
VALUES = [common.JSON_EVENTS[at * 100 : at * 100 + 100] for at in range(RECORDS)]
CODECS = {"none": 0, "lz4": common.LZ4}


def reference_partition(key, partitions):
    return (reference.murmur2(key) & 0x7FFFFFFF) % partitions


class Partitioner:
    params = (common.ENGINES, [4, 16, 100])
    param_names = ("engine", "size")

    def setup(self, engine, size):
        self.choose = {"native": partition_for_key, "reference": reference_partition}[engine]
        self.key = common.KEYS[size]

    def time_key(self, engine, size):
        self.choose(self.key, 12)


class Choice:
    params = (["sticky", "round robin"],)
    param_names = ("partitioner",)

    def setup(self, partitioner):
        self.choose = StickyPartitioner(seed=1) if partitioner == "sticky" else round_robin()

    def time_no_key(self, partitioner):
        self.choose("flights", None, 12)


class Append:
    """A thousand records of 100 bytes into the accumulator, then taken out as the sender does."""

    params = ([1, 6], [16384, 65536])
    param_names = ("partitions", "batch_size")

    def setup(self, partitions, batch_size):
        bounds = Bounds(
            batch_size=batch_size,
            linger_s=1000.0,
            codec=0,
            max_request_size=1 << 20,
            buffer_memory=32 << 20,
            max_block_s=1.0,
            delivery_timeout_s=1000.0,
        )
        self.accumulator = Accumulator(bounds, StickyPartitioner(seed=1))
        self.accumulator.set_partitions("flights", partitions)

    def teardown(self, partitions, batch_size):
        self.accumulator.take_all()
        self.accumulator.release()

    def time_append_1000(self, partitions, batch_size):
        append = self.accumulator.append
        for value in VALUES:
            append("flights", value, None, (), None, common.BATCH_TIME_MS, None)
        while True:
            chosen, _, _ = self.accumulator.take(time.monotonic(), lambda queue: True)
            if not chosen:
                break
            for queue, batch in chosen:
                self.accumulator.came_back(queue, batch)
                self.accumulator.remove(queue, batch)


class Batch:
    """A full batch: built record by record, encoded, split."""

    params = (list(CODECS),)
    param_names = ("codec",)

    def setup(self, codec):
        self.full = self.fill(codec)

    def fill(self, codec):
        batch = ProducerBatch(TopicPartition("flights", 0), CODECS[codec], 0.0, 0.0)
        for value in VALUES[:150]:
            batch.append(common.BATCH_TIME_MS, None, value, (), None)
        return batch

    def time_append_150(self, codec):
        self.fill(codec)

    def time_encode(self, codec):
        self.full.number(1, 0, 0)  # so that it is encoded anew
        self.full.encode()

    def time_fill_and_split(self, codec):
        self.fill(codec).split()
