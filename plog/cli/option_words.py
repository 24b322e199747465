"""Words of a command line: options, and values behind `=`, by one rule for plog's own parsers.

Kafka's scripts have two parsers, and the hints read the lines of both, and of kcat. They differ in
abbreviations, repeated and unknown options; those rules stay with each. click reads plog's lines.
"""

from __future__ import annotations

import re

NUMBER = re.compile(r"-\d+", re.ASCII)


def is_option(word: str, *, numbers: bool = False) -> bool:
    """Return whether a word is an option; a lone - is a value.

    Args:
        numbers: whether -1 is an option, too.
    """
    return len(word) > 1 and word.startswith("-") and (numbers or not NUMBER.fullmatch(word))


def divided(word: str) -> tuple[str, str | None]:
    """Return the name and the value of `--name=value`; None for a value in the next word."""
    name, equals, value = word.partition("=")
    return name, value if equals else None
