"""How commands are given a broker's settings: a properties file, and keys over what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., object])


def takes_properties(command: Command) -> Command:
    """Have a command take `properties`, a path or None, and `overrides`, each `KEY=VALUE`."""
    with_overrides = click.option(
        "--override",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one key, over what the file says. May be given many times.",
    )
    with_file = click.argument("properties", required=False, type=click.Path(dir_okay=False))
    return with_file(with_overrides(command))
