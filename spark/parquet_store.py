"""A directory of Parquet files that changes by whole steps: which of its files count, and how far
the topics in it were loaded.

    PATH/load=000007/_manifest.json                     what counts once this step is the last one
                     topic=flights/date=2013-01-01/part-...parquet
    PATH/_loading/...                                   steps that are not finished; some never will

A step is a directory. It is written below `_loading`, where no reader looks: the data, then the
manifest, which names every file that counts after the step, those of earlier ones too, and the next
offset of every partition. Then it is renamed to `load=N`, with N one above the last. That rename is
all there is to it: before it nothing has changed, and after it the rows and the offsets have,
together. Why it is atomic: on a local filesystem rename(2) moves a directory in one step, and fails
where the name has something in it; HDFS's namenode does the same under its lock. So of two runs
that finish the same step one fails, looks again, and either comes behind the other or, where both
were at the same topics, gives up. What a run that died leaves below `_loading` is never looked at.

Files that a step replaces (by reloading, by compaction) are not named in its manifest any more, and
are deleted some hours later: who has read the manifest before can read on.

Owns the steps; what rows are and how they are written is not its concern.
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
TOO_SLOW = "this run took so long that its files were cleaned away"
LATE_STEPS = 100
"""So many directories stay when their data is gone: a run begun before must not get their names."""


class Conflict(PlogError):
    """Another run has changed what this one was about; nothing of this one counts."""


class Span(NamedTuple):
    """The rows of one partition in a file."""

    first: int
    last: int
    rows: int


class File(NamedTuple):
    """A data file; `path` is relative to the store, or to its step while that is being made."""

    path: str
    topic: str
    topic_id: str
    date: str
    bytes: int
    spans: Mapping[int, Span]

    @property
    def rows(self) -> int:
        """Return how many there are."""
        return sum(span.rows for span in self.spans.values())


@dataclass(frozen=True)
class Position:
    """How far a topic was loaded: the topic's id, and the next offset of each partition."""

    topic_id: str
    next: Mapping[int, int]


@dataclass(frozen=True)
class State:
    """What there is after a step.

    Attributes:
        replaced: files that counted once, and since when (ms) they do not; still to be deleted.
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
            ValueError: it is none, or of a later version.
        """
        told: dict[str, Any] = json.loads(manifest)
        if told["version"] != VERSION:
            raise ValueError(f"a manifest of version {told['version']}; known is {VERSION}")
        files = [
            File(**one | {"spans": {int(p): Span(*span) for p, span in one["spans"].items()}})
            for one in told["files"]
        ]
        topics = {
            name: Position(at["id"], {int(p): offset for p, offset in at["next"].items()})
            for name, at in told["topics"].items()
        }
        return cls(told["step"], told["kind"], told["at"], topics, tuple(files), told["replaced"])


@dataclass(frozen=True)
class Change:
    """What a step does to what there was.

    Attributes:
        before: where the topics in `after` must have been; a topic that is new has none.
        add: files of the step, by their paths in it.
        drop: paths of files that count no more.
    """

    kind: str
    before: Mapping[str, Position] = field(default_factory=dict)
    after: Mapping[str, Position] = field(default_factory=dict)
    add: Sequence[File] = ()
    drop: Collection[str] = ()

    def apply(self, state: State, at_ms: int) -> State:
        """Return what there is after the step.

        Raises:
            Conflict: the step was made for something else.
        """
        moved = [name for name in self.after if state.topics.get(name) != self.before.get(name)]
        if moved:
            raise Conflict(f"another run has loaded {', '.join(sorted(moved))} meanwhile")
        if not set(self.drop) <= {one.path for one in state.files}:
            raise Conflict("another run has replaced the same files meanwhile")
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
    """Return the step that a directory is of."""
    return int(name.removeprefix("load="))


class Store:
    """The steps of one directory. Any number of runs may have one at the same time.

    Args:
        keep_s: how long files stay that count no more, and what a run left that died.
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
        """Return what there is now.

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
                # Later steps are there already, so many that this one was cleaned away.
                if max(self._steps(), default=0) <= max(steps):
                    raise

    def _steps(self) -> list[int]:
        return [number_of(name) for name in self.files.names("") if name.startswith("load=")]

    def begin(self) -> str:
        """Return the directory for a new step's files; nobody has made it yet."""
        return f"{LOADING}/{self._now_ms()}-{uuid.uuid4().hex}"

    def commit(self, work: str, change: Change) -> State:
        """Make a step of what was written into its directory, and return what there is then.

        Raises:
            Conflict: see `Change`; nothing has changed.
        """
        while True:
            state = change.apply(self._forgetting(self.state()), self._now_ms())
            self.files.write(f"{work}/{MANIFEST}", state.encode())
            # In this order: had they been cleaned away before, the manifest would be alone here;
            # if they are from now on, there is nothing to rename.
            if change.add and not _data_in(self.files.names(work)):
                raise Conflict(TOO_SLOW)
            try:
                self.files.publish(work, name_of(state.number))
            except FileExistsError:
                continue  # another run was quicker: behind it, if that makes sense
            except FileNotFoundError as fault:
                raise Conflict(TOO_SLOW) from fault
            return state

    def _forgetting(self, state: State) -> State:
        """Return a state without the replaced files that this run has deleted."""
        left = {path: at_ms for path, at_ms in state.replaced.items() if path not in self._deleted}
        return replace(state, replaced=left)

    def give_up(self, work: str) -> None:
        """Delete what a step that failed has written."""
        self.files.delete(work)

    def kept(self) -> dict[str, int]:
        """Return the files that count no more and stay for who reads them, and until when (ms)."""
        return self._kept(self.state(), self._now_ms())

    def _kept(self, state: State, now_ms: int) -> dict[str, int]:
        until = {path: at_ms + self._keep_ms for path, at_ms in state.replaced.items()}
        return {path: end_ms for path, end_ms in until.items() if end_ms > now_ms}

    def clean(self) -> None:
        """Delete what counts no more, and what runs that died have left, some time after."""
        now_ms, state = self._now_ms(), self.state()
        for name in self.files.names(LOADING):
            if int(name.partition("-")[0]) + self._keep_ms <= now_ms:
                # Away in one step: should its run live after all, it must not finish half of it.
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
        # The next step's manifest does not name them; until then they may be deleted again.
        self._deleted |= expired


def _data_in(names: Sequence[str]) -> list[str]:
    return [name for name in names if not name.startswith(("_", "."))]
