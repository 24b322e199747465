"""A directory of Parquet files that changes in atomic steps: its current files, and the offsets
up to which topics are loaded.

    PATH/load=000007/_manifest.json                     the current files, if this is the last step
                     topic=flights/date=2013-01-01/part-...parquet
    PATH/_loading/...                                   unfinished steps, also of dead runs

A step is a directory. It is written below `_loading`, which readers ignore: first the data, then
the manifest. The manifest lists every current file, also those of earlier steps, and the next
offset of every partition. Then the directory is renamed to `load=N`, with N one above the last
step. The rename makes rows and offsets visible together.

Why it is atomic: on a local filesystem rename(2) moves a directory in one step, and fails if the
target exists and is not empty; HDFS's namenode does the same under its lock. If two runs finish the
same step, one rename fails. That run reads the new state, and retries after the other's step; if
both have loaded the same topics, it gives up. The remains of dead runs below `_loading` are never
read.

Files that a step replaces (by a reload or a compaction) are missing in its manifest. They are
deleted some hours later, so that readers of an earlier manifest can finish.

Owns the steps; knows nothing about rows or how they are written.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from filesystems import Files

from plog.errors import PlogError

VERSION = 1
MANIFEST = "_manifest.json"
LOADING, TRASH = "_loading", "_trash"
TOO_SLOW = "this run took longer than --keep, and another run has deleted its files; run again"
LATE_STEPS = 100
"""Empty directories of old steps to keep: runs that began before must not reuse the names."""


class Conflict(PlogError):
    """Another run has changed the same topics or files; this run has changed nothing."""


class Span(NamedTuple):
    """The rows of one partition in a file."""

    first: int
    last: int
    rows: int


class File(NamedTuple):
    """A data file; `path` is relative to the store, or to the step while that is written."""

    path: str
    topic: str
    topic_id: str
    date: str
    bytes: int
    spans: Mapping[int, Span]

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(span.rows for span in self.spans.values())


@dataclass(frozen=True)
class Position:
    """The position in a topic: the topic's id, and the next offset of each partition."""

    topic_id: str
    next: Mapping[int, int]


@dataclass(frozen=True)
class State:
    """The state after a step.

    Attributes:
        replaced: replaced files that are still to be deleted, and when (ms) they were replaced.
    """

    number: int = 0
    kind: str = ""
    at_ms: int = 0
    topics: Mapping[str, Position] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    replaced: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the manifest."""
        return json.dumps(
            {
                "version": VERSION,
                "step": self.number,
                "kind": self.kind,
                "at": self.at_ms,
                "topics": {
                    name: {"id": at.topic_id, "next": at.next} for name, at in self.topics.items()
                },
                "files": [one._asdict() for one in self.files],
                "replaced": self.replaced,
            },
            indent=1,
        ).encode()

    @classmethod
    def decode(cls, manifest: bytes) -> State:
        """Read a manifest.

        Raises:
            ValueError: it is not a manifest, or of an unknown version.
        """
        read: dict[str, Any] = json.loads(manifest)
        if read["version"] != VERSION:
            raise ValueError(
                f"manifest has version {read['version']}; this plog reads version {VERSION}: use "
                "the release that wrote it, or a newer one"
            )
        files = [
            File(**one | {"spans": {int(p): Span(*span) for p, span in one["spans"].items()}})
            for one in read["files"]
        ]
        topics = {
            name: Position(at["id"], {int(p): offset for p, offset in at["next"].items()})
            for name, at in read["topics"].items()
        }
        return cls(read["step"], read["kind"], read["at"], topics, tuple(files), read["replaced"])


@dataclass(frozen=True)
class Change:
    """The change that a step makes to a state.

    Attributes:
        before: the required positions of the topics in `after`; a new topic has none.
        after: the topics' new positions.
        add: files of the step, with paths relative to it.
        drop: paths of the replaced files.
    """

    kind: str
    before: Mapping[str, Position] = field(default_factory=dict)
    after: Mapping[str, Position] = field(default_factory=dict)
    add: Sequence[File] = ()
    drop: Collection[str] = ()

    def apply(self, state: State, at_ms: int) -> State:
        """Return the state after the step.

        Raises:
            Conflict: the step was written for another state.
        """
        moved = [name for name in self.after if state.topics.get(name) != self.before.get(name)]
        if moved:
            raise Conflict(
                f"another run has loaded {', '.join(sorted(moved))} meanwhile; run again"
            )
        if not set(self.drop) <= {one.path for one in state.files}:
            raise Conflict("another run has replaced the same files meanwhile; run again")
        number = state.number + 1
        added = [one._replace(path=f"{name_of(number)}/{one.path}") for one in self.add]
        return State(
            number=number,
            kind=self.kind,
            at_ms=at_ms,
            topics={**state.topics, **self.after},
            files=(*(one for one in state.files if one.path not in self.drop), *added),
            replaced={**state.replaced, **dict.fromkeys(self.drop, at_ms)},
        )


def name_of(number: int) -> str:
    """Return the directory of a step."""
    return f"load={number:06}"


def number_of(name: str) -> int:
    """Return the number of a step's directory."""
    return int(name.removeprefix("load="))


class Store:
    """The steps of one directory. Several runs may use it at the same time.

    Args:
        keep_s: how long replaced files, and files of dead runs, are kept.
        clock: seconds since 1970.
    """

    def __init__(
        self, files: Files, *, keep_s: float = 86_400, clock: Callable[[], float] = time.time
    ) -> None:
        self.files = files
        self._keep_ms, self._clock = round(keep_s * 1000), clock
        self._deleted: set[str] = set()

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)

    def state(self) -> State:
        """Return the present state.

        Raises:
            ValueError: the manifest cannot be read.
        """
        while True:
            steps = self._steps()
            if not steps:
                return State()
            try:
                return State.decode(self.files.read(f"{name_of(max(steps))}/{MANIFEST}"))
            except FileNotFoundError:
                # So many later steps exist that this one has been deleted.
                if max(self._steps(), default=0) <= max(steps):
                    raise

    def _steps(self) -> list[int]:
        return [number_of(name) for name in self.files.names("") if name.startswith("load=")]

    def begin(self) -> str:
        """Return the path for a new step's files; it does not exist yet."""
        return f"{LOADING}/{self._now_ms()}-{uuid.uuid4().hex}"

    def commit(self, work: str, change: Change) -> State:
        """Publish a step's directory, and return the new state.

        Raises:
            Conflict: see `Change`; nothing has changed.
        """
        while True:
            state = change.apply(self._forgetting(self.state()), self._now_ms())
            self.files.write(f"{work}/{MANIFEST}", state.encode())
            # In this order: if the files were deleted before, the manifest is alone here; if they
            # are deleted later, the rename fails.
            if change.add and not _data_in(self.files.names(work)):
                raise Conflict(TOO_SLOW)
            try:
                self.files.publish(work, name_of(state.number))
            except FileExistsError:
                continue  # another run was faster: retry after its step
            except FileNotFoundError as fault:
                raise Conflict(TOO_SLOW) from fault
            return state

    def _forgetting(self, state: State) -> State:
        """Return a state without the replaced files that this run has deleted."""
        left = {path: at_ms for path, at_ms in state.replaced.items() if path not in self._deleted}
        return replace(state, replaced=left)

    def discard(self, work: str) -> None:
        """Delete the files of a failed step."""
        self.files.delete(work)

    def kept(self) -> dict[str, int]:
        """Return the replaced files that are kept for readers, and until when (ms)."""
        return self._kept(self.state(), self._now_ms())

    def _kept(self, state: State, now_ms: int) -> dict[str, int]:
        until = {path: at_ms + self._keep_ms for path, at_ms in state.replaced.items()}
        return {path: end_ms for path, end_ms in until.items() if end_ms > now_ms}

    def clean(self) -> None:
        """Delete replaced files and files of dead runs, once they have been kept long enough."""
        now_ms, state = self._now_ms(), self.state()
        for name in self.files.names(LOADING):
            if int(name.partition("-")[0]) + self._keep_ms <= now_ms:
                # Moved atomically: a run that is still alive must not publish half of the files.
                with contextlib.suppress(FileNotFoundError):  # another run cleans too
                    self.files.publish(f"{LOADING}/{name}", f"{TRASH}/{name}")
        for name in self.files.names(TRASH):
            self.files.delete(f"{TRASH}/{name}")
        expired = state.replaced.keys() - self._kept(state, now_ms).keys()
        if not expired:
            return
        for path in sorted(expired):
            self.files.delete(path)
        left = {one.path for one in state.files} | (state.replaced.keys() - expired)
        used = {path.partition("/")[0] for path in left}
        for number in self._steps():
            folder = name_of(number)
            if folder in used or number >= state.number:
                continue
            if number < state.number - LATE_STEPS:
                self.files.delete(folder)
                continue
            for name in _data_in(self.files.names(folder)):
                self.files.delete(f"{folder}/{name}")
        # The next manifest leaves them out; until then they may be deleted again.
        self._deleted |= expired


def _data_in(names: Sequence[str]) -> list[str]:
    return [name for name in names if not name.startswith(("_", "."))]
