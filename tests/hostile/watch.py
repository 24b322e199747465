"""What a broker under attack is watched by: its memory, its log, and a client that behaves.

`siege` puts the three around a block: beside it a producer and consumer goes on on a connection of
its own, and afterwards every record that it was acknowledged must be there, the broker's memory
must have stayed under the bound, and its log must not tell of a bug. What it cost is told at the
end of pytest's output.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from plog.errors import ErrorCode
from tests.handlers.wire import (
    WAIT_MS,
    create_topic,
    eventually,
    fetch_one,
    make_batch,
    produce,
    speak,
    walk_all,
)
from tests.servers import BrokerProcess

MIB = 1 << 20

numbers = itertools.count()


def memory(broker: BrokerProcess, kind: str) -> int:
    """Bytes resident now (VmRSS) or at most since `forget_peak` (VmHWM)."""
    text = Path(f"/proc/{broker.pid}/status").read_text()
    found = re.search(rf"^{kind}:\s+(\d+) kB", text, re.M)
    assert found is not None
    return int(found[1]) << 10


def forget_peak(broker: BrokerProcess) -> None:
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")


def descriptors(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


def threads(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.pid}/task").iterdir()))


class Bystander:
    """Writes numbered records with acks=all and reads each of them back, in a thread of its own."""

    def __init__(self, port: int, *, pause_s: float = 0.01) -> None:
        self._port = port
        self._pause_s = pause_s
        self.acknowledged: list[bytes] = []
        self.longest_s = 0.0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        with contextlib.closing(speak(port, client_id="bystander")) as wire:
            self.topic, _ = create_topic(wire, f"kept-{next(numbers)}")
        self._thread = threading.Thread(target=self._run, name="bystander")
        self._thread.start()

    def _run(self) -> None:
        try:
            with contextlib.closing(speak(self._port, client_id="bystander")) as wire:
                while not self._stop.wait(self._pause_s):
                    began = time.monotonic()
                    value = b"%s/%d" % (self.topic.encode(), len(self.acknowledged))
                    written = produce(wire, self.topic, make_batch([value]))
                    assert ErrorCode(written.error_code) is ErrorCode.NONE
                    assert written.base_offset == len(self.acknowledged)
                    self.acknowledged.append(value)
                    part = fetch_one(wire, self.topic, written.base_offset)
                    assert _values(part.records) == [value]
                    self.longest_s = max(self.longest_s, time.monotonic() - began)
        except BaseException as failure:  # noqa: BLE001 - raised where it is waited for
            self._failure = failure

    def go_on(self, count: int = 2) -> None:
        """Wait until it has been served again."""
        wanted = len(self.acknowledged) + count
        eventually(
            lambda: len(self.acknowledged) >= wanted or self._failure is not None,
            "the well-behaved client is served",
        )
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(2 * WAIT_MS / 1000)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def check_all_is_there(self, port: int | None = None) -> None:
        """Read the whole topic on a new connection."""
        found = read_all(port or self._port, self.topic, len(self.acknowledged))
        assert found[: len(self.acknowledged)] == self.acknowledged


def read_all(port: int, topic: str, count: int) -> list[bytes | None]:
    """Read a topic from its beginning on, so many values or some more."""
    found: list[bytes | None] = []
    with contextlib.closing(speak(port)) as wire:
        while len(found) < count:
            part = fetch_one(wire, topic, len(found))
            assert ErrorCode(part.error_code) is ErrorCode.NONE
            assert part.records, f"{len(found)} of {count} are there"
            found += _values(part.records)
    return found


def _values(records: object) -> list[bytes | None]:
    return [record.value for record in walk_all(records)]


class LogLines:
    """The lines that a broker's log has gained since."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._begin = broker.log_path.stat().st_size

    def all(self) -> list[str]:
        with self._broker.log_path.open("rb") as log:
            log.seek(self._begin)
            return log.read().decode("utf-8", "replace").splitlines()

    def grave(self) -> list[str]:
        """Return those above INFO."""
        return [line for line in self.all() if re.search(r"\b(WARNING|ERROR|CRITICAL)\b", line)]

    def closings(self) -> list[str]:
        return [line for line in self.all() if " closing connection from " in line]

    def untold(self) -> int:
        """Return how many closings had no line of their own, as the log says."""
        counts = re.findall(r"(\d+) further connections were closed", "\n".join(self.all()))
        return sum(map(int, counts))

    def expect_closings(self, count: int, *texts: str) -> None:
        """Wait for the lines of so many closings, of which each of `texts` is part of one."""
        eventually(
            lambda: len(self.closings()) + self.untold() >= count, f"{count} closings in the log"
        )
        found = self.closings()
        assert len(found) + self.untold() == count, found
        for text in texts:
            assert any(text in line for line in found), (text, found)


class Siege:
    """Under way: the broker, its log since, and who behaves."""

    def __init__(self, broker: BrokerProcess, bystander: Bystander) -> None:
        self.broker = broker
        self.bystander = bystander
        self.lines = LogLines(broker)


Report = Callable[[str], None]
OF_A_PARTITION = 12 * 1024
"""Bytes that an empty one takes at most: some 10,000."""


def _logs(broker: BrokerProcess) -> int:
    """Count the partitions that there are, and those that are about to be deleted."""
    return sum(1 for place in broker.log_dirs for _ in place.glob("*-*/"))


@contextlib.contextmanager
def siege(
    broker: BrokerProcess, report: Report, name: str, *, growth: int, pause_s: float = 0.01
) -> Iterator[Siege]:
    """Have others served beside the block; afterwards judge memory, log and records.

    `growth` is how many bytes more than before may be resident at any moment of it, beside those of
    the partitions that it makes: what is damaged may say in good order that a topic is to have
    thousands.
    """
    pid = broker.pid
    bystander = Bystander(broker.port, pause_s=pause_s)
    try:
        bystander.go_on()
        under = Siege(broker, bystander)
        before, logs = memory(broker, "VmRSS"), _logs(broker)
        forget_peak(broker)
        yield under
        bystander.go_on()
        peak = memory(broker, "VmHWM")
    except BaseException:
        bystander._stop.set()
        raise
    bystander.stop()
    bystander.check_all_is_there()
    after = memory(broker, "VmRSS")
    report(
        f"{name}: memory before {before / MIB:.0f} MiB, peak {peak / MIB:.0f}, after "
        f"{after / MIB:.0f}; {len(bystander.acknowledged)} records beside it, "
        f"the longest wait {bystander.longest_s:.2f} s"
    )
    growth += max(_logs(broker) - logs, 0) * OF_A_PARTITION
    growth *= 2 if "asan" in os.environ.get("LD_PRELOAD", "") else 1  # zones around each object
    assert peak - before <= growth, f"{(peak - before) / MIB:.0f} MiB more"
    assert broker.pid == pid
    text = "\n".join(under.lines.all())
    assert "failed with an internal error" not in text, text
    assert "Traceback" not in text, text
