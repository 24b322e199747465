"""`plog configs`: show and change settings of topics, brokers and groups, and log levels."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click

from plog.cli.output import (
    bootstrap_option,
    each,
    json_option,
    print_done,
    print_rows,
    raise_all,
    say,
)
from plog.client.admin import APPEND, BROKER, DELETE, GROUP, LOGGER, SET, SUBTRACT, TOPIC, Admin

LOGGERS = "broker-logger"
KINDS = {"topic": TOPIC, "broker": BROKER, LOGGERS: LOGGER, "group": GROUP}
ALL_BROKERS = "default"
COLUMNS = ["Name", "Key", "Value", "Source", "Read only", "Documentation"]
LEVEL_COLUMNS = ["Name", "Logger", "Level"]

_CHANGE = re.compile(r"(?P<key>[^=]+?)\s*(?P<operation>[+-]?)=(?P<value>.*)", re.DOTALL)
_OPERATIONS = {"": SET, "+": APPEND, "-": SUBTRACT}


@click.group()
def command() -> None:
    """Show and change the settings of topics, brokers and groups, and log levels.

    A resource is a KIND (topic, broker, broker-logger or group) and a NAME: the name of the topic
    or group, the id of a broker, or "default" for all brokers. Changes take effect at once and
    survive a restart. The settings of a group apply to consumers with group.protocol=consumer;
    the group does not have to exist yet.

    The settings of a broker-logger are the log levels of a broker, by logger. They last until the
    broker stops; `log.levels` in its properties is permanent.
    """


def _name(kind: str, name: str) -> str:
    return "" if kind == "broker" and name == ALL_BROKERS else name


@command.command()
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@bootstrap_option
@json_option
@click.option("--all", "show_all", is_flag=True, help="Include settings at their defaults.")
@click.option("--doc", is_flag=True, help="Include the description of each setting.")
def describe(
    kind: str, names: tuple[str, ...], bootstrap: str, as_json: bool, show_all: bool, doc: bool
) -> None:
    """Show the settings of resources and the source of each value.

    With several NAMEs, a column has the name of the resource (with --json: the key "name").
    """
    with Admin(bootstrap) as admin:
        found, faults = each(
            names, lambda name: admin.describe_configs(KINDS[kind], _name(kind, name))
        )
    shown = slice(0 if len(names) > 1 else 1, None if doc else -1)
    columns = COLUMNS
    if kind == LOGGERS:
        shown, columns = slice(shown.start, None), LEVEL_COLUMNS
    rows: list[list[object]] = []
    for name, entries in found.items():
        for entry in entries:
            if kind == LOGGERS:
                rows.append(list([name, entry.name, entry.value][shown]))
                continue
            if entry.source == "default" and not show_all:
                continue
            value = "(secret)" if entry.sensitive and not as_json else entry.value
            row = [name, entry.name, value, entry.source, entry.read_only, entry.documentation]
            rows.append(list(row[shown]))
    if found and not rows and not as_json:
        say("All settings are at their defaults.")
    elif found or (as_json and len(names) > 1):
        print_rows(rows, columns[shown], as_json=as_json)
    raise_all(faults)


@command.command("set")
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("name")
@click.argument(
    "changes", nargs=-1, required=True, metavar="KEY=VALUE | KEY+=VALUE | KEY-=VALUE ..."
)
@bootstrap_option
@json_option
@click.option("--dry-run", is_flag=True, help="Check the values and change nothing.")
def set_configs(
    kind: str, name: str, changes: tuple[str, ...], bootstrap: str, as_json: bool, dry_run: bool
) -> None:
    """Change settings; += and -= add items to a list and remove them.

    \b
      plog configs set topic flights retention.ms=86400000 compression.type=zstd
      plog configs set broker default log.retention.ms=86400000
      plog configs set group billing consumer.session.timeout.ms=60000
      plog configs set broker-logger 0 plog.storage=DEBUG
    """
    if wrong := [repr(change) for change in changes if not _CHANGE.fullmatch(change)]:
        are = "is" if len(wrong) == 1 else "are"
        raise click.BadParameter(f"{', '.join(wrong)} {are} not KEY=VALUE", param_hint="CHANGES")
    operations: list[tuple[str, int, str | None]] = []
    for found in map(_CHANGE.fullmatch, changes):
        assert found is not None
        operation = _OPERATIONS[found["operation"]]
        value = found["value"].strip()
        if kind == LOGGERS:
            value = value.upper()  # the broker, as Kafka's, accepts levels in capitals alone
        operations.append((found["key"].strip(), operation, value))
    keys = [key for key, _, _ in operations]
    with Admin(bootstrap) as admin:
        # The broker itself refuses unknown keys of topics and groups, and names every fault.
        _check_keys(admin, kind, _name(kind, name), keys, refuses=kind == "broker")
        admin.alter_configs(KINDS[kind], _name(kind, name), operations, validate_only=dry_run)
    _print_outcome("changed", kind, name, keys, as_json=as_json, dry_run=dry_run)


@command.command()
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("name")
@click.argument("keys", nargs=-1, required=True)
@bootstrap_option
@json_option
@click.option("--dry-run", is_flag=True, help="Check the keys and change nothing.")
def reset(
    kind: str, name: str, keys: tuple[str, ...], bootstrap: str, as_json: bool, dry_run: bool
) -> None:
    """Reset settings to their defaults; a logger then has the level of the one above it."""
    changes: list[tuple[str, int, str | None]] = [(key, DELETE, None) for key in keys]
    with Admin(bootstrap) as admin:
        _check_keys(admin, kind, _name(kind, name), keys, refuses=True)
        admin.alter_configs(KINDS[kind], _name(kind, name), changes, validate_only=dry_run)
    _print_outcome("reset", kind, name, list(keys), as_json=as_json, dry_run=dry_run)


def _print_outcome(
    done: str, kind: str, name: str, keys: list[str], *, as_json: bool, dry_run: bool
) -> None:
    resource = f"Loggers of broker {name}" if kind == LOGGERS else f"{kind.capitalize()} {name}"
    text = f"{resource}: {done} {', '.join(keys)}."
    if dry_run:
        text = f"{resource}: nothing changed yet; {', '.join(keys)} can be {done}."
    outcome = {"kind": kind, "name": name, "keys": keys, "changed": not dry_run}
    print_done(text, outcome, as_json=as_json)


def _check_keys(admin: Admin, kind: str, name: str, keys: Iterable[str], *, refuses: bool) -> None:
    """Refuse keys that neither this plog nor the cluster knows; warn of keys without effect.

    A broker accepts any broker key that a client sets, and any key that a client resets, as
    Kafka's brokers do.

    Args:
        refuses: whether unknown keys are refused here.

    Raises:
        InvalidConfig: some keys are unknown; the message names each.
    """
    if kind == LOGGERS:
        return  # the broker knows its loggers
    from plog.errors import InvalidConfig
    from plog.settings import BrokerSettings, GroupSettings, TopicSettings
    from plog.settings.kafka_only import why_without_effect
    from plog.settings.keys import unknown_key

    known = {
        "topic": TopicSettings.KEYS,
        "broker": BrokerSettings.KEYS,
        "group": GroupSettings.KEYS,
    }[kind]
    unknown = [key for key in keys if key not in known and not why_without_effect(key)]
    if refuses and unknown:
        # A newer broker knows more keys, and a broker may have kept an unknown one.
        entries = admin.describe_configs(KINDS[kind], name)
        described = {entry.name for entry in entries}
        if unknown := [key for key in unknown if key not in described]:
            raise InvalidConfig("; ".join(f"{key}: {unknown_key(key, known)}" for key in unknown))
    for key in keys:
        if reason := why_without_effect(key):
            say(f"plog: {key} has no effect in plog: {reason}", err=True)
