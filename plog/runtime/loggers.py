"""Loggers of this process, and their levels by Kafka's names.

Owns which names are loggers: `root`, every logger that exists, each package and module of plog.
A level that is set holds for the logger and for those below it that have no level of their own.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

ROOT: Final = "root"
LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "FATAL": logging.CRITICAL,
        "ERROR": logging.ERROR,
        "WARN": logging.WARNING,
        "INFO": logging.INFO,
        "DEBUG": logging.DEBUG,
        "TRACE": logging.DEBUG - 5,
    }
)
"""Kafka's names of levels, and the numbers that Python's logging gives them."""
MAX_NAME: Final = 200
"""Length of a logger's name at most: a longer one cannot be a path."""

_PACKAGE = Path(__file__).parents[1]
_STANDARD = frozenset({"asyncio", "concurrent.futures", "py.warnings"})
"""Loggers of the standard library that a broker uses."""

logging.addLevelName(LEVELS["TRACE"], "TRACE")


def is_logger(name: str) -> bool:
    """Return whether a name is a logger's, also if its module is not imported yet."""
    exists = name in logging.root.manager.loggerDict
    return exists or name == ROOT or name in _STANDARD or _is_module(name)


def unknown_logger(name: str) -> str:
    """Return the error for a name that is no logger's, with the one that may have been meant."""
    names = {*logging.root.manager.loggerDict, ROOT, *_STANDARD, *_modules()}
    close = difflib.get_close_matches(name, sorted(names), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"logger {name[:MAX_NAME]!r} does not exist{hint}"


def effective_levels() -> dict[str, str]:
    """Return the level of each logger that exists, by name; `root` is the first."""
    names = sorted(logging.root.manager.loggerDict)
    return {name: level_name(effective_level(name)) for name in (ROOT, *names)}


def effective_level(name: str) -> int:
    """Return the level that a logger has or inherits."""
    while name and name != ROOT:
        found = logging.root.manager.loggerDict.get(name)
        if isinstance(found, logging.Logger):
            return found.getEffectiveLevel()
        name = name.rpartition(".")[0]
    return logging.root.getEffectiveLevel()


def level_name(level: int) -> str:
    """Return Kafka's name of a level of Python's logging; the next lower one if it has none."""
    return next((name for name, number in LEVELS.items() if level >= number), "TRACE")


def set_level(name: str, level: str) -> None:
    """Set a logger's level, one of `LEVELS`."""
    _logger(name).setLevel(LEVELS[level])


def reset_level(name: str) -> None:
    """Take a logger's own level away, so that it inherits one."""
    _logger(name).setLevel(logging.NOTSET)


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _modules() -> Iterator[str]:
    for path in _PACKAGE.rglob("*.py"):
        parts = path.relative_to(_PACKAGE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_module(name: str) -> bool:
    package, *rest = name.split(".")
    if package != _PACKAGE.name or len(name) > MAX_NAME:
        return False
    if not all(part.isidentifier() and part != "__init__" for part in rest):
        return False
    path = _PACKAGE.joinpath(*rest)
    return (path / "__init__.py").is_file() or (rest != [] and path.with_suffix(".py").is_file())
