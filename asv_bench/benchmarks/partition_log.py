"""Append, read and flush of one partition on real files in a temporary directory.

There is no other engine: the Python handlers over the same struct are the reference. Files grow
while append is timed, so fresh pages of the page cache are a part of the figure; they are deleted
after each sample.
"""

import os
import random
import struct
import tempfile
from pathlib import Path

from plog._native.partition_log import PartitionLog, ProducerEntry, Segment

from . import common


class OneLog:
    """A partition on real files, without limits that would ask for a roll."""

    def start(self):
        self.directory = tempfile.TemporaryDirectory(prefix="plog-bench-")
        path = Path(self.directory.name)
        fds = [
            os.open(path / f"{0:020d}.{suffix}", os.O_RDWR | os.O_CREAT)
            for suffix in ("log", "index", "timeindex")
        ]
        segment = Segment(
            0,
            log_fd=fds[0],
            offset_index_fd=fds[1],
            time_index_fd=fds[2],
            size_bytes=0,
            next_offset=0,
            offset_entries=0,
            time_entries=0,
            max_timestamp=-1,
            max_timestamp_offset=0,
            bytes_since_index_entry=0,
            first_append_ms=-1,
            max_index_bytes=10 << 20,
        )
        self.log = PartitionLog(
            [segment],
            log_start_offset=0,
            high_watermark=0,
            durable_end=0,
            leader_epoch=0,
            directory=path,
            index_interval_bytes=4096,
        )
        self.log.set_leader(0, writable=True, sole_replica=True)
        return self.log

    def teardown(self, *params):
        self.log.close()
        self.directory.cleanup()


class Append(OneLog):
    params = (sorted(common.PLAIN_BATCHES), [False, True])
    param_names = ("size", "idempotent")

    def setup(self, size, idempotent):
        self.start()
        self.batch = bytearray(common.PLAIN_BATCHES[size])
        self.sequence = 0
        if idempotent:
            struct.pack_into(">qhi", self.batch, 43, 7, 0, 0)
            self.log.put_producer(ProducerEntry(7, 0, (), -1, -1, -1), 0)

    def time_append(self, size, idempotent):
        if idempotent:
            struct.pack_into(">i", self.batch, 53, self.sequence)
            self.sequence += 1
        if self.log.append(self.batch, 0).status != 0:
            raise RuntimeError("not appended")


class AppendAndFlush(OneLog):
    params = (sorted(common.PLAIN_BATCHES),)
    param_names = ("size",)

    def setup(self, size):
        self.start()
        self.batch = bytearray(common.PLAIN_BATCHES[size])

    def time_append_and_flush(self, size):
        self.log.append(self.batch, 0)
        self.log.flush()


class Read(OneLog):
    params = (sorted(common.PLAIN_BATCHES), ["end", "anywhere"])
    param_names = ("size", "where")

    def setup(self, size, where):
        self.start()
        batch = bytearray(common.PLAIN_BATCHES[size])
        count = common.at_length(16 << 20) // size
        for _ in range(count):
            self.log.append(batch, 0)
        rng = random.Random(3)
        self.offsets = [
            count - 1 if where == "end" else rng.randrange(count - 1) for _ in range(1000)
        ]
        self.end = count

    def time_find(self, size, where):
        """1000 reads, without their bytes."""
        for offset in self.offsets:
            self.log.read(offset, 1 << 20, self.end, True)

    def time_state(self, size, where):
        self.log.state()
