"""A power cut for one machine's files: what was not synced is lost, torn, or there in parts.

Run as a script it is a broker whose data path writes down what was synced
(`python -m tests.crash.power_cut JOURNAL [arguments of plog server]`). After it
has been killed, `cut` brings its directories into a state that a disk could
have after the power went, and `restart_machine` gives the next broker another
boot id.

SIGUSR1 makes its next fdatasync below the path in the environment variable
FAIL_SYNC_BELOW fail. `forget_unsynced` says of a file what Linux makes of that: its
pages count as clean, and a later sync has nothing to write for them, but for those that
have been written again. SIGUSR2 makes it write the stacks of its threads to stderr.

The journal, a line for each event, in the order of the events:

    new <device> <inode> <path>                a file or directory was made
    rename <replaced> <old path> <new path>    replaced: 1 when the new name was taken
    unlink <path>
    sync <device> <inode> <size> <path>        fsync of a file: its first `size` bytes are on disk
    write <device> <inode> <start> <end>       recovery wrote to a file (the data path is silent)
    fail <device> <inode> <size>               what was not synced of the first `size` is clean
    dir <path>                                 fsync of a directory: its names are on disk

Names that were never synced are undone backwards from some point on, for each
directory by itself. Two things a disk may do are not played: a removed name that
comes back, and a replaced file that does.
"""

from __future__ import annotations

import errno
import faulthandler
import os
import random
import shutil
import signal
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from plog.types import Buffer

FAIL_SYNC_BELOW = "FAIL_SYNC_BELOW"
APPENDED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
"""Files whose bytes are synced, or not, as they are promised or derived."""

DERIVED = ("leader-epoch-checkpoint",)
"""Files that are not synced when they are first written."""

DURABLE_ENDS = "durable-ends"
SLOT_BYTES = 32
PAGE_BYTES = 4096


@dataclass
class Disk:
    """What a journal says of the disk."""

    sizes: dict[tuple[int, int], int] = field(default_factory=dict)  # of (device, inode), synced
    # By (device, inode), what no sync brings to the disk.
    clean: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    names: dict[str, list[list[str]]] = field(default_factory=dict)  # by directory, un-synced


def read_journal(journal: Path) -> Disk:
    disk = Disk()
    for line in journal.read_text().splitlines():
        kind, *words = line.split(" ")
        match kind:
            case "sync":
                key = int(words[0]), int(words[1])
                size = min((int(words[2]), *(start for start, _ in disk.clean.get(key, []))))
                disk.sizes[key] = max(disk.sizes.get(key, 0), size)
            case "fail":
                key = int(words[0]), int(words[1])
                disk.clean.setdefault(key, []).append((disk.sizes.get(key, 0), int(words[2])))
            case "write":
                key = int(words[0]), int(words[1])
                start, end = int(words[2]), int(words[3])
                disk.clean[key] = [
                    (low, high)
                    for lost_from, lost_to in disk.clean.get(key, [])
                    for low, high in (
                        (lost_from, min(lost_to, start)),
                        (max(lost_from, end), lost_to),
                    )
                    if low < high
                ]
            case "dir":
                disk.names.pop(words[0], None)
            case "new":
                # An inode's number is given again when its file is gone.
                disk.sizes.pop((int(words[0]), int(words[1])), None)
                disk.names.setdefault(os.path.dirname(words[2]), []).append([kind, *words])
            case "rename":
                disk.names.setdefault(os.path.dirname(words[2]), []).append([kind, *words])
            case "unlink":
                disk.names.setdefault(os.path.dirname(words[0]), []).append([kind, *words])
    return disk


def cut(directories: list[Path], journal: Path, chance: random.Random) -> Iterator[str]:
    """Lose what was not synced, in one of the ways that disks lose it; yield what was done.

    What is left is on disk: the journal begins anew.
    """
    disk = read_journal(journal)
    yield from _lose_names(disk, chance)
    for path in (p for root in directories for p in sorted(root.rglob("*")) if p.is_file()):
        if path.name == DURABLE_ENDS:
            yield from _lose_slots(path, chance)
        if path.suffix not in APPENDED and path.name not in DERIVED:
            continue
        stat = path.stat()
        durable = min(disk.sizes.get((stat.st_dev, stat.st_ino), 0), stat.st_size)
        if durable == stat.st_size:
            continue
        way = chance.choice(["cut", "torn", "zeros", "noise", "holes", "holes", "kept"])
        with path.open("r+b") as file:
            _lose_bytes(file.fileno(), way, durable, stat.st_size, chance)
        yield f"{path.name}: {stat.st_size} bytes, {durable} synced, {way}"
    _begin_anew(directories, journal)


def _lose_bytes(fd: int, way: str, durable: int, size: int, chance: random.Random) -> None:
    kept = chance.randint(durable, size)
    match way:
        case "cut":
            os.ftruncate(fd, durable)
        case "torn":
            os.ftruncate(fd, kept)
        case "zeros":  # the size reached the disk and the bytes did not
            os.pwrite(fd, bytes(size - kept), kept)
        case "noise":
            os.pwrite(fd, chance.randbytes(size - kept), kept)
        case "holes":  # some pages reached the disk, in any order
            lost = 0
            for page in range(durable // PAGE_BYTES, -(-size // PAGE_BYTES)):
                start, end = max(page * PAGE_BYTES, durable), min((page + 1) * PAGE_BYTES, size)
                if chance.random() < 0.4:
                    os.pwrite(fd, bytes(end - start), start)
                    lost += 1
            if not lost:
                os.pwrite(fd, bytes(1), kept if kept < size else durable)


def _lose_names(disk: Disk, chance: random.Random) -> Iterator[str]:
    for events in disk.names.values():
        undone = events[chance.randint(0, len(events)) :]
        for kind, *words in reversed(undone):
            if kind == "new" and os.path.lexists(words[2]):
                path = words[2]
                if os.path.isdir(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)
                yield f"{os.path.basename(path)}: its name was never synced"
            elif (
                kind == "rename"
                and words[0] == "0"
                and os.path.lexists(words[2])
                and not os.path.lexists(words[1])
            ):
                os.rename(words[2], words[1])
                yield f"{os.path.basename(words[2])}: has its old name again"


def _lose_slots(path: Path, chance: random.Random) -> Iterator[str]:
    """Lose some of the durable ends; they are hints that no acknowledged record hangs on."""
    slots = path.stat().st_size // SLOT_BYTES
    lost = [number for number in range(slots) if chance.random() < 0.3]
    with path.open("r+b") as file:
        for number in lost:
            if chance.random() < 0.5:
                os.pwrite(file.fileno(), bytes(SLOT_BYTES), number * SLOT_BYTES)
            else:
                torn = chance.randbytes(4)
                os.pwrite(file.fileno(), torn, number * SLOT_BYTES + SLOT_BYTES - len(torn))
    if lost:
        yield f"{path.name}: {len(lost)} of {slots} slots"


def _begin_anew(directories: list[Path], journal: Path) -> None:
    lines = []
    for path in (p for root in directories for p in sorted(root.rglob("*")) if p.is_file()):
        stat = path.stat()
        lines.append(f"sync {stat.st_dev} {stat.st_ino} {stat.st_size} {path}\n")
    journal.write_text("".join(lines))


def forget_unsynced(path: Path, journal: Path) -> None:
    """Have a sync of the file that failed leave what was to be synced in the page cache alone."""
    stat = path.stat()
    with journal.open("a") as file:
        file.write(f"fail {stat.st_dev} {stat.st_ino} {stat.st_size}\n")


def restart_machine(journal: Path) -> None:
    """Give the broker that is started next, and those after it, another boot id."""
    _boot_file(journal).write_text(str(uuid.uuid4()))


def _boot_file(journal: Path) -> Path:
    return journal.with_suffix(".boot")


def record_names(journal: Path) -> None:
    """Have this process write down what its logs do to names, and believe in its boot id."""
    from plog import broker
    from plog.storage.filesystem import Filesystem

    journal_fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    boot_id = _boot_file(journal).read_text()

    def note(*words: object) -> None:
        os.write(journal_fd, (" ".join(map(str, words)) + "\n").encode())

    def note_new(path: Path) -> None:
        stat = os.stat(path)
        note("new", stat.st_dev, stat.st_ino, path)

    class Recording(Filesystem):
        def open_file(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
            is_new = (create or exclusive) and not os.path.lexists(path)
            fd = super().open_file(path, create=create, exclusive=exclusive)
            if is_new:
                note_new(path)
            return fd

        def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
            super().pwrite(fd, data, offset)
            stat = os.fstat(fd)
            note("write", stat.st_dev, stat.st_ino, offset, offset + len(data))

        def make_directory(self, path: Path) -> None:
            super().make_directory(path)
            note_new(path)

        def rename(self, old: Path, new: Path) -> None:
            replaced = os.path.lexists(new)
            super().rename(old, new)
            note("rename", int(replaced), old, new)

        def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
            super().unlink(path, missing_ok=missing_ok)
            note("unlink", path)

        def boot_id(self) -> str | None:
            return boot_id

    assert vars(broker)["Filesystem"] is Filesystem, "the broker makes its file system elsewhere"
    setattr(broker, "Filesystem", Recording)  # noqa: B010 - it is no public name of there


def fail_sync_when_told() -> None:
    """Have SIGUSR1 make the next fdatasync below FAIL_SYNC_BELOW fail, and say so."""
    from plog._native import faults

    def on_signal(*_: object) -> None:
        below = os.environ[FAIL_SYNC_BELOW]
        faults.inject([faults.Fault("fdatasync", errno=errno.EIO, times=1, path_prefix=below)])
        print(f"the next fdatasync below {below} fails", file=sys.stderr, flush=True)

    signal.signal(signal.SIGUSR1, on_signal)


if __name__ == "__main__":
    from plog._native import faults
    from plog.cli import main
    from tests.planes import take_plane

    take_plane()
    faulthandler.register(signal.SIGUSR2)
    fail_sync_when_told()
    faults.record_durability(sys.argv[1])
    record_names(Path(sys.argv[1]))
    main(["server", *sys.argv[2:]])
