"""What the installed systemd unit lets a broker see and write.

Reads unit files and their drop-ins where systemd does (systemd.unit(5)), as far as log directories
are concerned: systemd need not run, and whoever looks need not be root. Never writes one: `drop_in`
returns the commands that would.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PLACES = (
    Path("/etc/systemd/system"),
    Path("/run/systemd/system"),
    Path("/usr/local/lib/systemd/system"),
    Path("/usr/lib/systemd/system"),
    Path("/lib/systemd/system"),
)
"""Where units are; what comes first goes before what comes later."""
HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
"""What ProtectHome= hides."""
STATE = Path("/var/lib")
NO = frozenset({"", "0", "n", "no", "f", "false", "off"})


class Bind(NamedTuple):
    """A directory of the host that a service sees at another place, or at its own."""

    source: Path
    place: Path
    is_writable: bool


class Unit:
    """A service that runs a broker, its drop-ins included."""

    def __init__(self, name: str, values: dict[str, list[str]]) -> None:
        self.name = name
        self._values = values

    @property
    def user(self) -> str:
        """As whom it runs."""
        return self._last("User") or "root"

    @property
    def has_own_tmp(self) -> bool:
        """Whether its /tmp and /var/tmp are its own, and go when it stops."""
        return self._last("PrivateTmp") not in NO

    @property
    def own_root(self) -> str:
        """What the broker has in place of the host's root, as the unit says it; "" for nothing."""
        said = ((key, self._words(key)) for key in ("RootDirectory", "RootImage"))
        return " ".join(f"{key}={words[-1]}" for key, words in said if words)

    def runs(self, properties: str) -> bool:
        """Tell whether the broker's settings are in this file of the host."""
        words = self._words("ExecStart")
        seen = [*words, *(str(self.on_host(Path(word))) for word in words if word.startswith("/"))]
        return os.path.realpath(properties) in map(os.path.realpath, seen)

    def on_host(self, path: Path) -> Path:
        """Return where on the host is what the broker sees at `path`, which is absolute.

        What is in an image (RootImage=) is not to be found; `path` itself is returned for it.
        """
        bind = self._bind_of(path)
        if bind is not None:
            return bind.source / path.relative_to(bind.place)
        root = self._words("RootDirectory")
        return Path(root[-1], *path.parts[1:]) if root else path

    def lets_write(self, path: Path) -> bool:
        """Tell whether the broker may write a directory; `path` is resolved, and not under /tmp."""
        bind = self._bind_of(path)
        if bind is not None:  # whatever hides or keeps what is there otherwise
            return bind.is_writable
        if self._hides(path):
            return False
        given = [word.lstrip("-+") for word in self._words("ReadWritePaths")]
        writable = map(os.path.realpath, given)
        return self._last("ProtectSystem") != "strict" or is_under(path, writable)

    def drop_in(self, paths: Iterable[Path]) -> list[str]:
        """Return the shell commands that have the unit let all these be written.

        It waits for their disks too: a directory that a disk is mounted on late is empty.
        """
        outside = [path for path in paths if not is_under(path, self._state_directories())]
        names = shlex.join(map(str, outside))  # which systemd reads as a shell does
        lines = ["[Unit]", f"RequiresMountsFor={names}", "[Service]", f"ReadWritePaths={names}"]
        if any(self._hides(path) for path in outside):
            lines.append("ProtectHome=no")
        directory = PLACES[0] / f"{self.name}.d"
        return [
            f"install -d -o {self.user} -g {self.user} -m 750 {names}",
            f"mkdir -p {directory}",
            f"printf '%s\\n' {shlex.join(lines)} >{directory / 'log-dirs.conf'}",
            "systemctl daemon-reload",
        ]

    def _hides(self, path: Path) -> bool:
        return self._last("ProtectHome") not in NO and is_under(path, HOMES)

    def _bind_of(self, path: Path) -> Bind | None:
        return max(
            (bind for bind in self._binds() if path.is_relative_to(bind.place)),
            key=lambda bind: len(bind.place.parts),
            default=None,
        )

    def _binds(self) -> Iterator[Bind]:
        for place in map(Path, self._state_directories()):
            yield Bind(place, place, is_writable=True)
        for key, is_writable in (("BindReadOnlyPaths", False), ("BindPaths", True)):
            for word in self._words(key):
                source, _, rest = word.lstrip("-+").partition(":")
                destination = rest.partition(":")[0] or source  # behind it are options
                yield Bind(Path(source), Path(destination), is_writable)

    def _state_directories(self) -> list[str]:
        return [os.path.realpath(STATE / word) for word in self._words("StateDirectory")]

    def _words(self, key: str) -> list[str]:
        return [word for value in self._values.get(key, []) for word in _split(value)]

    def _last(self, key: str) -> str:
        return self._values.get(key, [""])[-1].lower()


def unit_of(properties: str) -> Unit | None:
    """Return the installed unit whose broker has its settings in this file, if there is one."""
    for name in ("plog.service", f"plog@{Path(properties).stem}.service"):
        unit = _load(name)
        if unit is not None and unit.runs(properties):
            return unit
    return None


def is_under(path: Path, places: Iterable[str | Path]) -> bool:
    """Tell whether a path is one of some places, or in one."""
    return any(path.is_relative_to(place) for place in places)


def _load(name: str) -> Unit | None:
    instance = name.partition("@")[2].removesuffix(".service")
    template = name.replace(f"@{instance}.", "@.")
    files = [place / one for one in (name, template) for place in PLACES]
    text = next((found for file in files if (found := _read(file)) is not None), None)
    if text is None:
        return None
    # Of drop-ins with one name the first place's counts, and the instance's before the template's.
    drop_ins = {
        file.name: file
        for one in (template, name)
        for place in reversed(PLACES)
        for file in (place / f"{one}.d").glob("*.conf")
    }
    texts = [text, *(_read(drop_ins[each]) or "" for each in sorted(drop_ins))]
    values: dict[str, list[str]] = {}
    for key, value in _assignments("\n".join(texts).replace("%i", instance)):
        if value:
            values.setdefault(key, []).append(value)
        else:
            values.pop(key, None)  # takes back what was said before
    return Unit(name, values)


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.replace("\\\n", " ").splitlines():
        key, is_one, value = line.strip().partition("=")
        if is_one and not key.startswith(("#", ";")):
            yield key.strip(), value.strip()


def _split(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:  # a quotation that does not end
        return value.split()


def _read(file: Path) -> str | None:
    try:
        return file.read_text()
    except OSError:
        return None
