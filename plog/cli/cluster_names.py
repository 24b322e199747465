"""Names for completion: topics, groups and others that the running broker knows.

Owns which of them a parameter takes, and how long a key press may wait for a broker. Never prints:
without a response in time there are no names.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import click

from plog.cli.output import BOOTSTRAP_DEFAULT, BOOTSTRAP_VARIABLE
from plog.errors import PlogError
from plog.runtime.loggers import LEVELS

WAIT_S = 0.8
"""Together with the start of the process this is at most a second."""
PLAIN = re.compile(r"[\w.@%+:/-]+", re.ASCII)
"""Names that no shell interprets. Clients choose the names, so others are not offered."""
INTERNAL = "__"
LOGGERS = "broker-logger"

Ask = Callable[[str, int], Iterable[str]]
"""Asks the broker at an address, with a timeout in milliseconds."""


def _topics(bootstrap: str, timeout_ms: int) -> Iterator[str]:
    from plog.client.admin import Admin

    with Admin(bootstrap, request_timeout_ms=timeout_ms) as admin:
        yield from admin.topics()


def _groups(bootstrap: str, timeout_ms: int) -> Iterator[str]:
    from plog.client.group_admin import GroupAdmin

    with GroupAdmin(bootstrap, request_timeout_ms=timeout_ms) as admin:
        yield from (group.group_id for group in admin.groups())


def _brokers(bootstrap: str, timeout_ms: int) -> Iterator[str]:
    from plog.client.admin import Admin

    with Admin(bootstrap, request_timeout_ms=timeout_ms) as admin:
        yield from (str(node.node_id) for node in admin.nodes())


def _transactional_ids(bootstrap: str, timeout_ms: int) -> Iterator[str]:
    from plog.client.transaction_admin import TransactionAdmin

    with TransactionAdmin(bootstrap, request_timeout_ms=timeout_ms) as admin:
        yield from (one.transactional_id for one in admin.transactions())


def _features(bootstrap: str, timeout_ms: int) -> Iterator[str]:
    from plog.client.admin import Admin

    with Admin(bootstrap, request_timeout_ms=timeout_ms) as admin:
        yield from (feature.name for feature in admin.features())


def _loggers(broker: str, bootstrap: str, timeout_ms: int) -> Iterator[str]:
    from plog.client.admin import LOGGER, Admin

    with Admin(bootstrap, request_timeout_ms=timeout_ms) as admin:
        yield from (entry.name for entry in admin.describe_configs(LOGGER, broker))


ASKED: dict[str, Ask] = {
    "topic": _topics,
    "topics": _topics,
    "group": _groups,
    "groups": _groups,
    "broker": _brokers,
    "brokers": _brokers,
    "transactional_id": _transactional_ids,
    "transactional_ids": _transactional_ids,
    "feature": _features,
}
"""The names that a parameter takes, by the parameter's name."""
KINDS: dict[str, Ask] = {
    "topic": _topics,
    "broker": _brokers,
    LOGGERS: _brokers,
    "group": _groups,
}
"""The names that `plog configs` takes, by the kind of resource."""
SETTINGS = {"configs": "topic", "overrides": "broker"}
"""Options that take KEY=VALUE, with the kind of resource that has the keys."""
DEFAULT_BROKER = "default"


def names_for(context: click.Context, parameter: str, beginning: str) -> list[str] | None:
    """Return the names that a parameter may have; None for a parameter without names.

    Args:
        context: the command line until now, parsed.
        beginning: the part of the name that is already typed.
    """
    kind = str(context.params.get("kind"))
    if parameter == "keys" and kind in KINDS:
        names = _keys(context, kind)
    elif parameter == "changes" and kind in KINDS:
        names = _changes(context, kind, beginning)
    elif parameter in SETTINGS:
        names = [f"{key}=" for key in _setting_keys(SETTINGS[parameter])]
    elif parameter in ("name", "names") and kind in KINDS:
        names = _asked(context, KINDS[kind])
        names += [DEFAULT_BROKER] if kind == "broker" else []
    elif parameter in ASKED and context.info_name != "create":
        names = _asked(context, ASKED[parameter])
    else:
        return None
    given = context.params.get(parameter)
    typed = given if isinstance(given, tuple | list) else ()
    shows_internal = beginning.startswith(INTERNAL)
    return sorted(
        name
        for name in set(names)
        if name.startswith(beginning)
        and name not in typed
        and PLAIN.fullmatch(name.replace("=", ""))
        and (shows_internal or not name.startswith(INTERNAL))
    )


def _keys(context: click.Context, kind: str) -> list[str]:
    """Return the keys of a resource: settings, or the loggers of a broker."""
    if kind != LOGGERS:
        return [*_setting_keys(kind)]
    return _asked(context, partial(_loggers, str(context.params.get("name"))))


def _changes(context: click.Context, kind: str, beginning: str) -> list[str]:
    """Return changes KEY=: the value is the user's, unless it is a log level."""
    key, equals, _ = beginning.partition("=")
    if kind == LOGGERS and equals:
        return [f"{key}={level}" for level in LEVELS]
    return [f"{key}=" for key in _keys(context, kind)]


def _setting_keys(kind: str) -> Iterable[str]:
    from plog.settings import BrokerSettings, GroupSettings, TopicSettings

    return {
        "topic": TopicSettings.KEYS,
        "broker": BrokerSettings.KEYS,
        "group": GroupSettings.KEYS,
    }[kind]


def _asked(context: click.Context, ask: Ask) -> list[str]:
    """Return the names that the broker reports in time."""
    typed = context.params.get("bootstrap")
    bootstrap = str(typed or os.environ.get(BOOTSTRAP_VARIABLE) or BOOTSTRAP_DEFAULT)
    found: list[str] = []

    def run() -> None:
        try:
            found.extend(ask(bootstrap, int(WAIT_S * 1000)))
        except (PlogError, OSError, ValueError, click.ClickException):
            return

    # A thread, because a name server may keep a look-up waiting, which no timeout interrupts.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    return list(found)
