"""Writes ``docs/settings.md`` from the declarations.

``python -m plog.settings.docs docs/settings.md`` writes it, and with it the section of
``docs/SKIPPED.md`` that lists the keys of Kafka without effect; a test fails when the files in the
tree are others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plog.settings.broker_log_keys import BrokerLogKeys
from plog.settings.cluster_keys import ClusterKeys
from plog.settings.coordinator_keys import CoordinatorKeys
from plog.settings.group_keys import GroupKeys
from plog.settings.kafka_only import KAFKA_ONLY_BY_REASON, REFUSED
from plog.settings.keys import INT_MAX, LONG_MAX, ConfigType, EntityKey, Key, Settings
from plog.settings.log_keys import LogKeys
from plog.settings.network_keys import NetworkKeys
from plog.settings.topic_keys import TopicKeys

INTRODUCTION = """\
# Settings

The declarations in `plog/settings/` are the source of this page. <!-- checkout -->
`python -m plog.settings.docs docs/settings.md` writes it. <!-- checkout -->

`plog server [FILE] [--override key=value]` reads a file in Kafka's `server.properties` syntax
(Java properties, as UTF-8), then the overrides. Names, meanings and defaults are those of Kafka
3.9 unless an entry says otherwise. plog reports all errors at once, with file and line.

With `--env` plog also reads variables: `PLOG_LOG_DIRS`, or Kafka's `KAFKA_LOG_DIRS`, sets
`log.dirs`. A single underscore stands for a dot, a double one for an underscore, a triple one for
a hyphen. `--override` wins over `PLOG_`, `PLOG_` over `KAFKA_`, and `KAFKA_` over the file. An
unknown `PLOG_` key is an error, an unknown `KAFKA_` key a warning.

- **read-only** keys are set in the file and apply until the broker restarts.
- **cluster-wide** keys can also be changed while brokers run, for all of them or for one
  (`plog configs`, or any Kafka admin client). A broker's own value overrides the value for all
  brokers, which overrides the file.
- **Topic keys** are set for one topic, when it is created or later. A topic without a value uses
  its broker's key.
- **Group keys** are set for one consumer group (KIP-848), even before it exists, and apply from
  the next heartbeats of its members. They are Kafka 4's. The store keeps them in
  `/config/groups/<group>`, a node that no Kafka release has.
"""

UNITS = {
    "bytes": ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")),
    "ms": ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")),
}


def render() -> str:
    """Return the whole page."""
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield INTRODUCTION
    for family in (ClusterKeys, NetworkKeys, LogKeys, CoordinatorKeys, BrokerLogKeys):
        yield from _family(family)
    yield from _family(TopicKeys)
    yield from _family(GroupKeys)
    yield "## Keys of Kafka that plog does not have\n"
    yield "Setting one of these is an error:\n"
    for name, reason in sorted(REFUSED.items()):
        yield f"- `{name}`: {reason}."
    yield "\nSetting one of these, or `listener.name.*`, logs a warning and has no effect.\n"
    yield from _without_effect()
    yield ""


def _without_effect() -> Iterator[str]:
    for reason, names in KAFKA_ONLY_BY_REASON.items():
        keys = ", ".join(f"`{name}`" for name in sorted(names))
        first = reason[0] if reason.startswith("plog") else reason[0].upper()
        yield f"- {first}{reason[1:]}: {keys}."


SKIPPED_HEADING = "\n## Settings\n"
SKIPPED_TEXT = """
Kafka 3.9 or 4.1 has these keys, and plog does not. Setting one logs a warning and has no effect,
and DescribeConfigs does not return it. The list is generated, like `docs/settings.md`.
"""


def with_settings(page: str) -> str:
    """Return the text of ``docs/SKIPPED.md`` with its section of settings as it has to be.

    Raises:
        ValueError: the page has no such section.
    """
    before, heading, rest = page.partition(SKIPPED_HEADING)
    if not heading:
        raise ValueError(f"no section {SKIPPED_HEADING.strip()!r}")
    _, following, after = rest.partition("\n## ")
    section = "\n".join((SKIPPED_TEXT, *_without_effect(), ""))
    return before + heading + section + following + after


def _family(family: type[Settings]) -> Iterator[str]:
    yield f"## {(family.__doc__ or '').rstrip('.')}\n"
    for declared in family.KEYS.values():
        yield f"### `{declared.name}`\n"
        yield f"{declared.doc}\n"
        if declared.caveat is not None:
            outcome, reason = declared.caveat
            yield f"**{outcome}:** {reason}.\n"
        yield "; ".join(_facts(declared)) + ".\n"


def _facts(declared: Key[Any]) -> Iterator[str]:
    yield declared.kind.type.name.lower()
    yield f"default {_default(declared)}"
    yield from _range(declared)
    if isinstance(declared, EntityKey):
        names = ", then ".join(f"`{synonym.key.name}`" for synonym in declared.synonyms)
        if names:
            yield f"falls back on {names}"
    else:
        yield declared.update.value
        topics = [f"`{name}`" for name in _names(declared, TopicKeys)]
        if topics:
            yield f"of a topic: {', '.join(topics)}"
        groups = [f"`{name}`" for name in _names(declared, GroupKeys)]
        if groups:
            yield f"of a group: {', '.join(groups)}"


def _names(declared: Key[Any], family: type[Settings]) -> Iterator[str]:
    for name, other in family.KEYS.items():
        assert isinstance(other, EntityKey)
        if any(synonym.key is declared for synonym in other.synonyms):
            yield name


def _default(declared: Key[Any]) -> str:
    text = declared.format(declared.default)
    if text is None:
        return "unset"
    if text == "":
        return "empty"
    if declared.default in (INT_MAX, LONG_MAX, sys.float_info.max):
        return f"{text} (no limit)"
    for unit, name in UNITS.get(declared.name.rpartition(".")[2], ()):
        if isinstance(declared.default, int) and declared.default >= unit:
            amount = declared.default / unit
            if round(amount, 1) == amount:
                return f"{text} ({amount:g} {name})"
    return f"`{text}`"


def _range(declared: Key[Any]) -> Iterator[str]:
    low, high = declared.at_least, declared.at_most
    words = [str(value) for value in declared.besides]
    if low is not None and high is not None:
        words.append(f"from {low} to {high}")
    elif low is not None:
        words.append(f"at least {low}")
    elif high is not None:
        words.append(f"at most {high}")
    if words:
        yield ", or ".join(words)
    if declared.values is not None:
        amount = "any" if declared.kind.type is ConfigType.LIST else "one"
        yield f"{amount} of " + ", ".join(f"`{value}`" for value in declared.values)


if __name__ == "__main__":
    settings = Path(sys.argv[1])
    settings.write_text(render(), encoding="utf-8")
    skipped = settings.with_name("SKIPPED.md")
    skipped.write_text(with_settings(skipped.read_text("utf-8")), encoding="utf-8")
