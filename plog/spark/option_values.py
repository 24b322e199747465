"""Functions that read the text of an option; each raises ValueError with the fault."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
"""The largest values of the protocol's and Spark's integers."""


SERVERS, SERVERS_VARIABLE = "kafka.bootstrap.servers", "PLOG_BOOTSTRAP_SERVER"
"""The option that names the brokers, and the driver's variable that does so without it."""


def with_servers(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with the brokers of the variable, if no option names them."""
    servers = os.environ.get(SERVERS_VARIABLE, "").strip()
    if not servers or any(key.lower() == SERVERS for key in options):
        return dict(options)
    return {**options, SERVERS: servers}


MISSING_SERVERS = (
    f"{SERVERS} is required: set it to a broker's host:port, or export {SERVERS_VARIABLE} before "
    "the driver starts"
)
"""No default: another cluster than the intended one would be read or written silently."""


def whole(text: str, most: int = INT_MAX) -> int:
    """Read a whole number that is not above `most`."""
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
    return not_above(value, most)


def not_above(value: int, most: int) -> int:
    """Return a number that is not above `most`."""
    if value > most:
        raise ValueError(f"{value} is above {most}")
    return value


def positive(text: str, most: int = INT_MAX) -> int:
    """Read a whole number above 0."""
    value = whole(text, most)
    if value <= 0:
        raise ValueError(f"{value} is not above 0")
    return value


def positive_long(text: str) -> int:
    """Read a whole number above 0, of 64 bits."""
    return positive(text, LONG_MAX)


def at_least_0(text: str, most: int = INT_MAX) -> int:
    """Read a whole number that is not below 0."""
    value = whole(text, most)
    if value < 0:
        raise ValueError(f"{value} is below 0")
    return value


def long_time_ms(text: str) -> int:
    """Read a 64-bit time in ms, as in Kafka, limited to 24 days.

    Python cannot wait for longer than that.
    """
    return min(at_least_0(text, LONG_MAX), INT_MAX)


def not_empty(text: str) -> str:
    """Read a text, without surrounding blanks."""
    if not text.strip():
        raise ValueError("is empty")
    return text.strip()


def one_of(choices: Mapping[str, T]) -> Callable[[str], T]:
    """Return a function that reads one of these words, in any case, as the word's value."""

    def read(text: str) -> T:
        word = text.strip().lower()
        if word not in choices:
            raise ValueError(f"invalid value {text!r}: use {' or '.join(choices)}")
        return choices[word]

    return read


def security_protocol(text: str) -> str:
    """Read kafka.security.protocol; only PLAINTEXT is supported."""
    if text.strip().upper() != "PLAINTEXT":
        raise ValueError(f"{text!r} is not supported yet; only PLAINTEXT is")
    return "PLAINTEXT"


boolean: Callable[[str], Any] = one_of({"true": True, "false": False})


def unknown_option(key: str, of: str, names: Iterable[str]) -> str:
    """Return the error for an unknown option, with the most similar one."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.8)
    meant = f"; did you mean {by_lower[close[0]]}?" if close else ""
    return f"unknown option {key} for the {of}{meant}"
