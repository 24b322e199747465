"""kafka-features: show and change the levels of features."""

from __future__ import annotations

import sys
from typing import NamedTuple

from plog.cli.kafka.commands import CommandFault, Commands, Words
from plog.cli.kafka.config import Clients
from plog.cli.kafka.options import java_integer
from plog.cli.kafka.texts import reason
from plog.client.connection import introduction
from plog.errors import KafkaError
from plog.protocol.messages.api_versions import ApiVersionsResponse

SHORT_BITS = 16
CHANGE = """
    --feature NAME=LEVEL  The feature and its new level. Repeatable.
    --metadata VERSION    Not supported: plog has no metadata.version.
    --dry-run             Only check the change.
"""
OPTIONS = Commands(
    "kafka-features",
    "Show and change the levels of the cluster's features.",
    """
    --bootstrap-server HOST:PORT      Address of a broker. Required.
    --bootstrap-controller HOST:PORT  Refused: plog's controller is a broker.
    --command-config FILE             Properties of the client.
    """,
    {
        "describe": ("List the features with their levels.", ""),
        "upgrade": ("Raise levels.", CHANGE),
        "downgrade": ("Lower levels.", CHANGE + "--unsafe  Accept the loss of metadata."),
        "disable": (
            "Switch features off.",
            "--feature NAME  The feature. Repeatable.\n--unsafe  Accept the loss of metadata.\n"
            "--dry-run  Only check the change.",
        ),
    },
)
PAST = {"upgrade": "upgraded", "downgrade": "downgraded"}


class Change(NamedTuple):
    """A feature, and its new level; 0 switches it off."""

    name: str
    level: int


def run(given: Words) -> int:
    """Run the script; return its exit status."""
    if given.has("bootstrap-controller"):
        raise ValueError("--bootstrap-controller is not supported: use --bootstrap-server")
    if not given.has("bootstrap-server"):
        raise CommandFault(
            "one of the arguments --bootstrap-server --bootstrap-controller is required"
        )
    with Clients(given) as clients:
        if given.command == "describe":
            _describe(clients)
            return 0
        return _change(given, clients)


def _describe(clients: Clients) -> None:
    answer = clients.cluster.controller().call(introduction(), ApiVersionsResponse)
    epoch = answer.finalized_features_epoch
    for feature in clients.admin.features():
        fields = (
            f"Feature: {feature.name}",
            f"SupportedMinVersion: {feature.lowest}",
            f"SupportedMaxVersion: {feature.highest}",
            f"FinalizedVersionLevel: {feature.level}",
            f"Epoch: {epoch if epoch >= 0 else '-'}",
        )
        print("\t".join(fields))


def _change(given: Words, clients: Clients) -> int:
    command = given.command
    if given.has("metadata"):
        raise ValueError("--metadata is not supported: plog has no metadata.version")
    changes = [_read(entry, is_level=command != "disable") for entry in given.values("feature")]
    if not changes:
        raise ValueError(f"You must specify at least one feature to {command}")
    names = [change.name for change in changes]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"Feature {name} was specified more than once.")
    is_dry = given.has("dry-run")
    failed = 0
    for name, level in sorted(changes):
        try:
            clients.admin.set_feature(name, level, lower=command != "upgrade", validate_only=is_dry)
        except KafkaError as fault:
            failed += 1
            print(_refusal(command, name, level, reason(fault), is_dry=is_dry))
            continue
        print(_outcome(command, name, level, is_dry=is_dry))
    if failed:
        sys.stderr.write(f"{failed} out of {len(changes)} operation(s) failed.\n")
    return 1 if failed else 0


def _refusal(command: str, name: str, level: int, why: str, *, is_dry: bool) -> str:
    could = "Can" if is_dry else "Could"
    target = "" if command == "disable" else f" to {level}"
    return f"{could} not {command} {name}{target}. {why}"


def _outcome(command: str, name: str, level: int, *, is_dry: bool) -> str:
    verb = "can be" if is_dry else "was"
    if command == "disable":
        return f"{name} {verb} disabled."
    return f"{name} {verb} {PAST[command]} to {level}."


def _read(entry: str, *, is_level: bool) -> Change:
    if not is_level:
        return Change(entry, 0)
    name, equals, text = (word.strip() for word in entry.partition("="))
    if not equals:
        raise ValueError(f"Can't parse feature=level string {entry}: equals sign not found.")
    level = java_integer(text, SHORT_BITS)
    if level is None:
        raise ValueError(
            f"Can't parse feature=level string {entry}: unable to parse {text} as a short."
        )
    return Change(name, level)
