"""The arguments that give a command a broker's settings: PROPERTIES and --override."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., object])


def takes_properties(command: Command) -> Command:
    """Add the arguments `properties` (a path or None) and `overrides` (each `KEY=VALUE`)."""
    with_overrides = click.option(
        "--override",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one key, overriding the file. Repeatable.",
    )
    with_file = click.argument("properties", required=False, type=click.Path(dir_okay=False))
    return with_file(with_overrides(command))
