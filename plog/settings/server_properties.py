"""From `server.properties` and `--override` to the settings of a broker, or every fault at once.

Owns what is said to the person who wrote the file. What a key means is declared
elsewhere; what is dynamic comes later, from the coordination store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from plog.errors import ConfigError
from plog.settings.definitions import BrokerSettings
from plog.settings.kafka_only import REFUSED, why_without_effect
from plog.settings.keys import unknown_key
from plog.settings.properties import load_properties

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where something was given; places are in the order of reading, file first."""

    number: int
    """The line of the file, or above those for an override and for nowhere."""
    text: str
    """What goes before a message: ``server.properties:12: `` or ``--override: ``."""


OVERRIDE = Place(2**31, "--override: ")
NOWHERE = Place(2**32, "")


class Given(NamedTuple):
    """A value and where it was given."""

    value: str
    place: Place


class Remark(NamedTuple):
    """A fault or a warning, and what it is about; by place, they are in the reader's order."""

    place: Place
    text: str

    def __str__(self) -> str:
        """Return the line that people read."""
        return self.place.text + self.text


def load(path: Path | str | None = None, overrides: Sequence[str] = ()) -> BrokerSettings:
    """Return the settings that a file and `key=value` overrides make, overrides last.

    Keys that have no effect are logged as warnings, with their place.

    Raises:
        ConfigError: one line for each thing that is wrong, beginning with its place.
    """
    settings, warnings = read(path, overrides)
    for warning in warnings:
        logger.warning("%s", warning)
    return settings


def read(
    path: Path | str | None = None, overrides: Sequence[str] = ()
) -> tuple[BrokerSettings, list[str]]:
    """Return the settings and what `load` would warn of.

    Raises:
        ConfigError: one line for each thing that is wrong, beginning with its place.
    """
    given: dict[str, Given] = {}
    faults: list[Remark] = []
    warnings: list[Remark] = []
    if path is not None:
        for entry in load_properties(path):
            place = Place(entry.line, f"{path}:{entry.line}: ")
            if entry.key in given:
                before = given[entry.key].place.number
                text = f"`{entry.key}` was set on line {before} already; this later value counts"
                warnings.append(Remark(place, text))
            given[entry.key] = Given(entry.value, place)
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals:
            faults.append(Remark(OVERRIDE, f"{override!r} is not of the form key=value"))
            continue
        given[name.strip()] = Given(value, OVERRIDE)
    known: dict[str, str] = {}
    for name, (value, place) in given.items():
        declared = BrokerSettings.KEYS.get(name)
        if declared is not None:
            known[name] = value
            if declared.no_effect is not None:
                text = f"`{name}` has no effect in plog: {declared.no_effect}"
                warnings.append(Remark(place, text))
        elif name in REFUSED:
            if value.strip():
                faults.append(Remark(place, f"`{name}`: {REFUSED[name]}"))
        elif reason := why_without_effect(name):
            warnings.append(Remark(place, f"`{name}` has no effect in plog: {reason}"))
        else:
            faults.append(Remark(place, f"`{name}`: {unknown_key(name, BrokerSettings.KEYS)}"))
    for key, reason in BrokerSettings.faults(known):
        place = given[key].place if key in given else NOWHERE
        faults.append(Remark(place, f"`{key}`: {reason}"))
    if faults:
        raise ConfigError("\n".join(_lines(faults)), _lines(warnings))
    return BrokerSettings(known), _lines(warnings)


def _lines(remarks: Iterable[Remark]) -> list[str]:
    return [str(remark) for remark in sorted(remarks, key=lambda remark: remark.place.number)]
