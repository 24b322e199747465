"""The application of Kafka Streams with exactly_once_v2, as a process that tests start and kill."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.compat.clients import PATIENCE_S
from tests.compat.programs import Streams

SOURCE, COPY, COUNTS = TOPICS = ["source", "copy", "counts"]
APPLICATION = "copier"
COMMIT_MS = 2000
"""A transaction takes so long: records just after a commit are not committed when a test looks."""
TRANSACTION_TIMEOUT_MS = 5000
"""The next process waits for the transactions of a killed one, whose transactional ids differ."""

Pair = tuple[str, str]


class Application:
    """A process, which can be started again after a kill.

    Args:
        where: the directory of its state and its log.
        replicas: of the topics that it makes.
    """

    def __init__(self, streams: Streams, bootstrap: str, where: Path, replicas: int = 1) -> None:
        self._command = [
            *streams.command(),
            *TOPICS,
            f"bootstrap.servers={bootstrap}",
            f"application.id={APPLICATION}",
            f"state.dir={where / 'state'}",
            "processing.guarantee=exactly_once_v2",
            f"replication.factor={replicas}",
            f"commit.interval.ms={COMMIT_MS}",
            "statestore.cache.max.bytes=0",
            "auto.offset.reset=earliest",
            "session.timeout.ms=6000",
            "heartbeat.interval.ms=600",
            f"producer.transaction.timeout.ms={TRANSACTION_TIMEOUT_MS}",
        ]
        self._log = where / "streams.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        return self._log.read_text()[-4000:]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()

    def leave(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE_S) == 0, self.said


def by_key(partitions: list[list[Pair]]) -> dict[str, list[str]]:
    """Return each key's values in their order: an application places keys by itself."""
    found: dict[str, list[str]] = {}
    for pairs in partitions:
        for key, value in pairs:
            found.setdefault(key, []).append(value)
    return found
