"""Finds out which directories the installed systemd unit lets a broker see and write.

Reads the directives of unit files and drop-ins that affect log directories, from the same paths as
systemd (systemd.unit(5)). Needs neither systemd nor root. Never writes a unit: `drop_in` returns
shell commands for that.
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
"""Directories of unit files; an earlier directory has priority."""
HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
"""The directories that ProtectHome= hides."""
STATE = Path("/var/lib")
NO = frozenset({"", "0", "n", "no", "f", "false", "off"})


class Bind(NamedTuple):
    """A directory of the host that a service sees at another path, or at the same one."""

    source: Path
    place: Path
    is_writable: bool


class Unit:
    """A service that runs a broker, including its drop-ins."""

    def __init__(self, name: str, values: dict[str, list[str]]) -> None:
        self.name = name
        self._values = values

    @property
    def user(self) -> str:
        """The user of the service."""
        return self._last("User") or "root"

    @property
    def has_own_tmp(self) -> bool:
        """Whether the service has a private /tmp and /var/tmp, deleted when it stops."""
        return self._last("PrivateTmp") not in NO

    @property
    def own_root(self) -> str:
        """The unit's directives that replace the host's root; "" if there are none."""
        found = ((key, self._words(key)) for key in ("RootDirectory", "RootImage"))
        return " ".join(f"{key}={words[-1]}" for key, words in found if words)

    def runs(self, properties: str) -> bool:
        """Return whether the service starts a broker with this file of the host."""
        words = self._words("ExecStart")
        seen = [*words, *(str(self.on_host(Path(word))) for word in words if word.startswith("/"))]
        return os.path.realpath(properties) in map(os.path.realpath, seen)

    def on_host(self, path: Path) -> Path:
        """Return the path on the host for an absolute path of the broker.

        Paths in an image (RootImage=) cannot be resolved; `path` itself is returned for them.
        """
        bind = self._bind_of(path)
        if bind is not None:
            return bind.source / path.relative_to(bind.place)
        root = self._words("RootDirectory")
        return Path(root[-1], *path.parts[1:]) if root else path

    def lets_write(self, path: Path) -> bool:
        """Return whether the broker may write a directory; `path` is resolved, not under /tmp."""
        bind = self._bind_of(path)
        if bind is not None:  # a bind mount overrides ProtectHome= and ProtectSystem=
            return bind.is_writable
        if self._hides(path):
            return False
        given = [word.lstrip("-+") for word in self._words("ReadWritePaths")]
        writable = map(os.path.realpath, given)
        return self._last("ProtectSystem") != "strict" or is_under(path, writable)

    def drop_in(self, paths: Iterable[Path]) -> list[str]:
        """Return shell commands for a drop-in that lets the broker write these directories.

        The drop-in also makes the unit wait for their disks: a directory is empty until the mount.
        """
        outside = [path for path in paths if not is_under(path, self._state_directories())]
        names = shlex.join(map(str, outside))  # systemd quotes like a shell
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
                destination = rest.partition(":")[0] or source  # followed by options
                yield Bind(Path(source), Path(destination), is_writable)

    def _state_directories(self) -> list[str]:
        return [os.path.realpath(STATE / word) for word in self._words("StateDirectory")]

    def _words(self, key: str) -> list[str]:
        return [word for value in self._values.get(key, []) for word in _split(value)]

    def _last(self, key: str) -> str:
        return self._values.get(key, [""])[-1].lower()


def unit_of(properties: str) -> Unit | None:
    """Return the installed unit whose broker uses this properties file, if there is one."""
    for name in ("plog.service", f"plog@{Path(properties).stem}.service"):
        unit = _load(name)
        if unit is not None and unit.runs(properties):
            return unit
    return None


def is_under(path: Path, places: Iterable[str | Path]) -> bool:
    """Return whether a path is one of the places, or in one of them."""
    return any(path.is_relative_to(place) for place in places)


def _load(name: str) -> Unit | None:
    instance = name.partition("@")[2].removesuffix(".service")
    template = name.replace(f"@{instance}.", "@.")
    files = [place / one for one in (name, template) for place in PLACES]
    text = next((found for file in files if (found := _read(file)) is not None), None)
    if text is None:
        return None
    # Among drop-ins with the same name, the first place has priority, and the instance over the
    # template.
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
            values.pop(key, None)  # an empty assignment resets the earlier ones
    return Unit(name, values)


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.replace("\\\n", " ").splitlines():
        key, is_one, value = line.strip().partition("=")
        if is_one and not key.startswith(("#", ";")):
            yield key.strip(), value.strip()


def _split(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:  # an unterminated quotation
        return value.split()


def _read(file: Path) -> str | None:
    try:
        return file.read_text()
    except OSError:
        return None
