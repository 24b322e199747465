"""Checks of what applications pass to the clients' constructors."""

from __future__ import annotations

from plog.errors import InvalidConfig


def at_least(least: int, **given: int) -> None:
    """Check arguments, named as the application names them.

    Raises:
        InvalidConfig: an argument is below `least`.
    """
    for name, value in given.items():
        if value < least:
            raise InvalidConfig(f"invalid {name}={value}: at least {least}")
