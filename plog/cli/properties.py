"""The arguments that give a command a broker's settings: PROPERTIES, --env and --override.

And --zookeeper, whose value is one of `zookeeper.connect`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., object])


def takes_properties(command: Command) -> Command:
    """Add the arguments `properties`, `environment` and `overrides`.

    `properties` is a path or None; each of `overrides` is `KEY=VALUE`. `environment` has all
    variables, or is None without --env.
    """
    with_overrides = click.option(
        "--override",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one key, overriding the file and the variables. Repeatable.",
    )
    with_environment = click.option(
        "--env",
        "environment",
        is_flag=True,
        callback=lambda _context, _option, value: dict(os.environ) if value else None,
        help="Also read settings from variables: PLOG_LOG_DIRS or KAFKA_LOG_DIRS for log.dirs.",
    )(with_overrides(command))
    with_file = click.argument("properties", required=False, type=click.Path(dir_okay=False))
    return with_file(with_environment)


def zookeeper_option(purpose: str) -> Callable[[Command], Command]:
    """Add the argument `zookeeper`, checked as `zookeeper.connect` is."""
    return click.option(
        "--zookeeper",
        required=True,
        metavar="HOST:PORT[,...][/PATH]",
        help=purpose,
        callback=lambda _context, _option, value: _checked_zookeeper(value),
    )


def _checked_zookeeper(text: str) -> str:
    from plog.settings.zookeeper_connect import parse_connect

    try:
        return str(parse_connect(text))
    except ValueError as fault:
        raise click.BadParameter(str(fault), param_hint="--zookeeper") from fault
