"""From `server.properties`, variables and `--override` to a broker's settings, or every fault.

Owns what is said to the person who wrote the file. What a key means is declared
elsewhere; what is dynamic comes later, from the coordination store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from plog.errors import ConfigError
from plog.settings.definitions import BrokerSettings
from plog.settings.environment import PLOG, Environment, read_environment
from plog.settings.kafka_only import KAFKA_ONLY, REFUSED, why_without_effect
from plog.settings.keys import unknown_key
from plog.settings.properties import load_properties

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where something was given; places are in the order of reading, file first."""

    number: int
    """The line of the file, or above those for a variable, an override and for nowhere."""
    text: str
    """What goes before a message: ``server.properties:12: `` or ``--override: ``."""


KAFKA_VARIABLE, PLOG_VARIABLE = 2**31 - 2, 2**31 - 1
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


def load(
    path: Path | str | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> BrokerSettings:
    """Return the settings of a file, of variables, and of `key=value` overrides. The last one wins.

    Keys that have no effect are logged as warnings, with their place.

    Args:
        environment: all variables of the process; None to ignore them.

    Raises:
        ConfigError: one line for each thing that is wrong, beginning with its place.
    """
    settings, warnings = read(path, overrides, environment)
    variables = variables_in_force(path, overrides, environment)
    log_remarks(warnings, variables, ignored_variables(environment))
    return settings


def log_remarks(
    warnings: Iterable[str], variables: Sequence[str] | None, ignored: Sequence[str] = ()
) -> None:
    """Log the warnings of `read`, the variables that set keys, and those that plog ignores.

    Args:
        variables: None if none were read.
    """
    if variables is not None:
        logger.info("settings from the environment: %s", ", ".join(variables) or "none")
    if ignored:
        logger.info("ignored variables: %s", "; ".join(ignored))
    for warning in warnings:
        logger.warning("%s", warning)


def variables_in_force(
    path: Path | str | None,
    overrides: Sequence[str],
    environment: Mapping[str, str] | None,
) -> list[str] | None:
    """Return `key (NAME)` for each key that a variable sets; None without an environment."""
    if environment is None:
        return None
    given, _, _ = _gather(path, overrides, environment)
    return [
        f"{key} ({one.place.text.removesuffix(': ')})"
        for key, one in given.items()
        if one.place.number in (KAFKA_VARIABLE, PLOG_VARIABLE)
    ]


def ignored_variables(environment: Mapping[str, str] | None) -> list[str]:
    """Return `NAMES (reason)` for the variables that an existing set-up has and plog ignores."""
    found = read_environment(environment or {}, _known())
    return [f"{names} ({reason})" for names, reason in found.ignored]


def peek(
    key: str,
    path: Path | str | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> str | None:
    """Return the text that is given for one key, without a check of any; None if there is none."""
    try:
        given, _, _ = _gather(path, overrides, environment)
    except ConfigError:  # the file cannot be read
        given, _, _ = _gather(None, overrides, environment)
    return given[key].value.strip() if key in given else None


def read(
    path: Path | str | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> tuple[BrokerSettings, list[str]]:
    """Return the settings and what `load` would warn of.

    Args:
        environment: all variables of the process; None to ignore them.

    Raises:
        ConfigError: one line for each thing that is wrong, beginning with its place.
    """
    given, faults, warnings = _gather(path, overrides, environment)
    settings = _settings(given, faults, warnings)
    return settings, _lines(warnings)


def _gather(
    path: Path | str | None, overrides: Sequence[str], environment: Mapping[str, str] | None
) -> tuple[dict[str, Given], list[Remark], list[Remark]]:
    """Return the last value of each key, and the faults and warnings found so far."""
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
    if environment is not None:
        keys = {override.partition("=")[0].strip() for override in overrides}
        found = read_environment(
            environment,
            _known(),
            given["listeners"].value if "listeners" in given else None,
            has_later_listeners="listeners" in keys,
        )
        _take_environment(found, given, faults, warnings)
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals:
            faults.append(Remark(OVERRIDE, f"{override!r} is not of the form key=value"))
            continue
        given[name.strip()] = Given(value, OVERRIDE)
    return given, faults, warnings


def _settings(
    given: Mapping[str, Given], faults: list[Remark], warnings: list[Remark]
) -> BrokerSettings:
    """Check all values; add to the faults and warnings.

    Raises:
        ConfigError: there are faults.
    """
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
    return BrokerSettings(known)


def _take_environment(
    found: Environment,
    given: dict[str, Given],
    faults: list[Remark],
    warnings: list[Remark],
) -> None:
    """Add the settings of variables; PLOG_ names override KAFKA_ names."""

    def place(name: str) -> Place:
        number = PLOG_VARIABLE if name.startswith(PLOG) else KAFKA_VARIABLE
        return Place(number, f"{name}: ")

    for name, key, value in found.variables:
        given[key] = Given(value, place(name))
    faults += [Remark(place(name), text) for name, text in found.faults]
    warnings += [Remark(place(name), text) for name, text in found.warnings]


def _known() -> list[str]:
    """Return all keys that plog or Kafka has."""
    return [*BrokerSettings.KEYS, *REFUSED, *KAFKA_ONLY]


def _lines(remarks: Iterable[Remark]) -> list[str]:
    return [str(remark) for remark in sorted(remarks, key=lambda remark: remark.place.number)]
