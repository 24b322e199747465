"""From `server.properties` and `--override` to the settings of a broker, or every fault at once.

Owns what is said to the person who wrote the file. What a key means is declared
elsewhere; what is dynamic comes later, from the coordination store.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from plog.errors import ConfigError
from plog.settings.definitions import BrokerSettings
from plog.settings.kafka_only import REFUSED, is_kafka_only
from plog.settings.properties import load_properties

logger = logging.getLogger(__name__)


class Given(NamedTuple):
    """A value and where it was given: ``server.properties:12`` or ``--override``."""

    value: str
    place: str


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
    faults: list[str] = []
    warnings: list[str] = []
    if path is not None:
        path = Path(path)
        for entry in load_properties(path):
            place = f"{path.name}:{entry.line}"
            if entry.key in given:
                warnings.append(
                    f"{place}: `{entry.key}` was set on {given[entry.key].place} already; "
                    "this later value counts"
                )
            given[entry.key] = Given(entry.value, place)
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals:
            faults.append(f"--override: {override!r} is not of the form key=value")
            continue
        given[name.strip()] = Given(value, "--override")
    known: dict[str, str] = {}
    for name, (value, place) in given.items():
        declared = BrokerSettings.KEYS.get(name)
        if declared is not None:
            known[name] = value
            if declared.no_effect is not None:
                warnings.append(f"{place}: `{name}` has no effect in plog: {declared.no_effect}")
        elif name in REFUSED:
            if value.strip():
                faults.append(f"{place}: `{name}`: {REFUSED[name]}")
        elif is_kafka_only(name):
            warnings.append(f"{place}: `{name}` is known to Kafka, and has no effect in plog")
        else:
            faults.append(f"{place}: unknown key `{name}`{_meant(name)}")
    for key, reason in BrokerSettings.faults(known):
        place = f"{given[key].place}: " if key in given else ""
        faults.append(f"{place}`{key}`: {reason}")
    if faults:
        raise ConfigError("\n".join(faults))
    return BrokerSettings(known), warnings


def _meant(name: str) -> str:
    close = difflib.get_close_matches(name, BrokerSettings.KEYS, n=1, cutoff=0.8)
    return f"; did you mean `{close[0]}`?" if close else ""
