"""Plays the requests of a connection for a scenario: a client, disks, threads and Python.

A request is called by its number. The reply lists what the reactor does: what it reads and answers,
and each stage that a request comes to, with those of its partitions where they differ.
"""

from __future__ import annotations

from plog._native.request_stages import Stage
from tests.scenarios.request_model import FETCH, OTHER, PRODUCE, Batch, Sent
from tests.scenarios.request_reactor import FakeReactor

ACKS = {"0": 0, "1": 1, "all": -1}
PRODUCE_TIMEOUT_MS, FETCH_WAIT_MS = 30_000, 500


class RequestScript:
    """A command and its arguments are words of one line; each command has its method."""

    def __init__(self) -> None:
        self.reactors: list[FakeReactor] = []
        self._lines: list[str] = []
        self._connection()

    def __call__(self, words: list[str]) -> list[str]:
        command, *rest = words
        self._lines.clear()
        getattr(self, f"_{command.replace('-', '_')}")(*rest)
        return list(self._lines)

    def _connection(self) -> None:
        """Begin with a new connection, and with empty logs."""
        self._reactor = FakeReactor(self._lines.append)
        self.reactors.append(self._reactor)

    # -- the client

    def _produce(self, *words: str) -> None:
        """Send a Produce: `produce acks=all a b:compressed`.

        Python appends `a:special`, and refuses `a:unusual`.
        """
        options, names = _options(words)
        batches = [Batch(name, form or "plain") for name, _, form in map(_cut, names)]
        timeout_ms = int(options.get("timeout", PRODUCE_TIMEOUT_MS))
        self._reactor.send(
            Sent(PRODUCE, batches, acks=ACKS[options.get("acks", "1")], wait_ms=timeout_ms)
        )

    def _malformed(self, kind: str = "produce") -> None:
        """Send a Produce, or a Fetch, whose bytes are no request."""
        self._reactor.send(Sent(FETCH if kind == "fetch" else PRODUCE, is_malformed=True))

    def _fetch(self, *words: str) -> None:
        """Send a Fetch: `fetch wait=500 a b`; `session=stale` is found when it is answered."""
        options, names = _options(words)
        self._reactor.send(
            Sent(
                FETCH,
                [Batch(name) for name in names],
                wait_ms=int(options.get("wait", FETCH_WAIT_MS)),
                has_stale_session=options.get("session") == "stale",
            )
        )

    def _other(self) -> None:
        """Send a request that is neither."""
        self._reactor.send(Sent(OTHER))

    def _leave(self) -> None:
        """Break the connection."""
        self._reactor.client_leaves()

    def _shut(self) -> None:
        """Send no more, and read on."""
        self._reactor.client_shuts()

    def _stall(self) -> None:
        """Read no more responses."""
        self._reactor.is_stalled = True

    def _take(self) -> None:
        """Read the responses again."""
        self._reactor.client_takes()

    # -- disks, threads, Python and the clock

    def _set(self, name: str, state: str) -> None:
        """Change a partition, and wake the requests that wait for it."""
        self._reactor.partition(name).state = state
        self._reactor.change(name)

    def _room(self, name: str, batches: str) -> None:
        """Leave space for so many batches on a disk."""
        self._reactor.partition(name).room = None if batches == "enough" else int(batches)

    def _write(self) -> None:
        """End the round."""
        self._reactor.end_round()

    def _back(self, number: str) -> None:
        """A thread is done with a request."""
        self._reactor.come_back(int(number))

    def _spoil(self, number: str) -> None:
        """A thread that works on a request finds no memory to read it."""
        self._reactor.requests[int(number)].is_malformed = True

    def _python(self, number: str) -> None:
        """Python answers."""
        self._reactor.python_answers(int(number))

    def _safe(self, name: str) -> None:
        """Every replica has the whole log."""
        partition = self._reactor.partition(name)
        partition.safe = len(partition.log)
        self._reactor.change(name)

    def _lost(self, name: str) -> None:
        """Another broker leads the partition."""
        self._reactor.partition(name).is_lost = True
        self._reactor.change(name)

    def _pass(self, ms: str) -> None:
        self._reactor.pass_ms(int(ms))

    # -- the broker

    def _memory(self, state: str) -> None:
        """Memory for requests is `short`; there is `none` for responses; there is `enough`."""
        self._reactor.is_short = state == "short"
        self._reactor.is_out_of_memory = state == "none"
        self._reactor.serve()

    def _drain(self) -> None:
        """The broker stops, and reads no further requests."""
        self._reactor.is_draining = True

    def _mute(self, state: str = "on") -> None:
        """Read nothing from the client for a while, as Python asks; `mute off` ends it."""
        self._reactor.is_muted = state == "on"
        self._reactor.serve()

    def _close(self) -> None:
        """Python closes the connection."""
        self._reactor.close()

    # -- what there is

    def _show(self) -> None:
        """Print the requests, and what the line says of the connection."""
        line = self._reactor.line
        for number in line.numbers:
            parts = " ".join(Stage(stage).name for stage in line.parts(number))
            self._lines.append(f"{number} {Stage(line.stage(number)).name}: {parts or 'not known'}")
        self._lines.append(f"unread {len(self._reactor.socket)}")
        self._lines.append("may read on" if line.may_read_on else "may not read on")
        self._lines.append("owes appends" if line.owes_appends else "owes no appends")

    def _log(self, name: str) -> None:
        """Print the requests that the batches of a log came with."""
        log = self._reactor.partition(name).log
        self._lines.append(f"{name}: {' '.join(map(str, log)) or 'empty'}")


def _options(words: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    options = dict(word.split("=") for word in words if "=" in word)
    return options, [word for word in words if "=" not in word]


def _cut(word: str) -> tuple[str, str, str]:
    return word.partition(":")
