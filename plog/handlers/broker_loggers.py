"""Log levels as the configs of a resource: the loggers of this broker (KIP-412).

A change holds until the broker stops; nothing is stored. Checks come in Kafka's order, and a
request that is refused changes no level.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from plog.errors import InvalidConfig, InvalidRequest
from plog.handlers.context import Context
from plog.runtime.loggers import (
    LEVELS,
    ROOT,
    effective_levels,
    is_logger,
    reset_level,
    set_level,
    unknown_logger,
)
from plog.settings.alterations import Alteration, Operation
from plog.settings.dynamic import ConfigEntry, ConfigSource
from plog.settings.keys import ConfigType

log = logging.getLogger(__name__)


def describe_loggers(ctx: Context, name: str, keys: Collection[str] | None) -> list[ConfigEntry]:
    """Return the level of each logger, or of those that are named.

    Raises:
        InvalidRequest: the name is not this broker's id.
    """
    check_broker(ctx, name)
    return [
        ConfigEntry(
            logger,
            level,
            ConfigSource.LOGGER,
            sensitive=False,
            read_only=False,
            type=ConfigType.UNKNOWN,
            doc="",
            synonyms=(),
        )
        for logger, level in effective_levels().items()
        if not keys or logger in keys
    ]


def alter_loggers(
    ctx: Context, name: str, alterations: Sequence[Alteration], *, validate_only: bool
) -> None:
    """Set and reset levels: all of them, or none.

    Raises:
        InvalidRequest: a logger twice, no level, another operation, another broker, or the reset of
            the root logger, which inherits from none.
        InvalidConfig: there is no such logger or level.
    """
    loggers = [change.name for change in alterations]
    if len(set(loggers)) < len(loggers):
        raise InvalidRequest("duplicate logger")
    for change in alterations:
        if change.value is None and change.operation != Operation.DELETE:
            raise InvalidRequest(f"{change.name}: no level")
    check_broker(ctx, name)
    for change in alterations:
        _check(change)
    if validate_only:
        return
    for change in alterations:
        if change.operation == Operation.DELETE:
            reset_level(change.name)
            log.info("log level of %s is inherited", change.name)
        else:
            assert change.value is not None
            set_level(change.name, change.value)
            log.info("log level of %s is %s", change.name, change.value)


def check_broker(ctx: Context, name: str) -> None:
    """Check the name of the resource: loggers are a broker's own, and have no default.

    Raises:
        InvalidRequest: the name is not this broker's id.
    """
    if name != str(ctx.services.node_id):
        raise InvalidRequest(
            f"request for the loggers of broker {name!r} was sent to broker {ctx.services.node_id}"
        )


def _check(change: Alteration) -> None:
    if change.operation not in (Operation.SET, Operation.DELETE):
        raise InvalidRequest(f"{change.name}: a log level can only be set or reset")
    if not is_logger(change.name):
        raise InvalidConfig(unknown_logger(change.name))
    if change.operation == Operation.SET and change.value not in LEVELS:
        raise InvalidConfig(
            f"{change.name}: {change.value!r} is not a log level: use one of {', '.join(LEVELS)}"
        )
    if change.operation == Operation.DELETE and change.name == ROOT:
        raise InvalidRequest("the level of the root logger can be set, not reset")
