"""A host for brokers that goes wrong as a test says, and what the tests of such hosts share.

The wall clock and the writes below one directory are those of `shim.c`, which is loaded before
libc: it works without any privilege, and for Python, the kernels and SQLite alike.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from plog.client.consumer import Consumer
from plog.types import TopicPartition
from tests.servers import BrokerProcess

WAIT_S = 60
MIB = 1 << 20
MemoryBounded = Callable[[BrokerProcess, str, int], AbstractContextManager[None]]
"""What the fixture `memory_bounded` is: the function below, which tells at the end of the run."""
LAYOUT = struct.Struct("=qqq1000s")
"""Of the struct in shim.c."""


class Host:
    """The clock and the disks of the brokers that are started with its `environment`."""

    def __init__(self, directory: Path) -> None:
        library, state = directory / "shim.so", directory / "host"
        compiler = (sysconfig.get_config_var("CC") or "cc").split()
        source = Path(__file__).with_name("shim.c")
        subprocess.run(
            [*compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True
        )
        state.write_bytes(bytes(mmap.PAGESIZE))
        with state.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        before = os.environ.get("LD_PRELOAD")  # a sanitizer must come first
        self.environment = {
            "LD_PRELOAD": f"{before}:{library}" if before else str(library),
            "PLOG_TEST_HOST": str(state),
        }

    def set_clock_ahead(self, ms: int) -> None:
        """Have the wall clock be ahead of the machine's, or (negative) behind."""
        struct.pack_into("=q", self._map, 0, ms)

    def fail_writes(self, below: Path, error: int, *, syncs: bool) -> None:
        """Have every write below a directory fail from now on."""
        self._map[8 : LAYOUT.size] = LAYOUT.pack(0, 0, syncs, os.fsencode(below))[8:]
        struct.pack_into("=q", self._map, 8, error)

    def heal(self) -> None:
        struct.pack_into("=q", self._map, 8, 0)

    def close(self) -> None:
        self._map.close()


@contextmanager
def mounted(place: Path, *arguments: object) -> Iterator[None]:
    """Mount something at an empty directory, which is made, for the length of a block."""
    place.mkdir()
    mount(place, *arguments)
    try:
        yield
    finally:
        unmount(place)


def mount(place: Path, *arguments: object) -> None:
    command = ["mount", *map(str, arguments), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")


def unmount(place: Path) -> None:
    subprocess.run(["umount", "--lazy", place], check=True)


def memory(broker: BrokerProcess, kind: str) -> int:
    """Return bytes resident now (VmRSS), or at most since the peak was forgotten (VmHWM)."""
    text = Path(f"/proc/{broker.pid}/status").read_text()
    found = re.search(rf"^{kind}:\s+(\d+) kB", text, re.M)
    assert found is not None
    return int(found[1]) << 10


@contextmanager
def memory_bounded(
    report: Callable[[str], None], broker: BrokerProcess, what: str, growth_bytes: int
) -> Iterator[None]:
    """Report what the broker took at most in the block; it may be so much more than before."""
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    before = memory(broker, "VmRSS")
    yield
    peak = memory(broker, "VmHWM")
    report(f"{what}: memory before {before / MIB:.0f} MiB, peak {peak / MIB:.0f}")
    assert peak - before <= growth_bytes


def wait_until(ready: Callable[[], bool], what: str, broker: BrokerProcess) -> None:
    deadline = time.monotonic() + WAIT_S
    while not ready():
        assert time.monotonic() < deadline, f"not {what}\n{broker.log}"
        time.sleep(0.02)


def read_all(broker: BrokerProcess, topic: str, partition: int = 0) -> list[str]:
    """Return the values of everything that consumers may read now."""
    at = TopicPartition(topic, partition)
    values: list[str] = []
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([at])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([at])[at]
        deadline = time.monotonic() + WAIT_S
        while consumer.position(at) < end:
            assert time.monotonic() < deadline, f"{topic} cannot be read to its end"
            values += [(one.value or b"").decode().split()[0] for one in consumer.poll(1000)]
    return values
