"""The options that one of Kafka's scripts declares, and the values that a command line gives them.

Lines of text declare the options, and are their help. `options` and `commands` read command lines,
each as one of Java's parsers does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

HELP_COLUMN = 36
DECLARATION = re.compile(
    r"--([^\s!]+)(!)?(?: (\[)?(\S+?)((?<!,)\.\.\.)?(?::(Integer|Long|Short))?\]?)?(?:  +(\S.*))?"
)


class Option(NamedTuple):
    """A declared option.

    Attributes:
        metavar: names the value; None for a flag.
        is_optional: the value may be left out.
        is_list: several words may follow.
        number: the type of a value that is a number: Short, Integer or Long.
    """

    name: str
    is_required: bool
    metavar: str | None
    is_optional: bool
    is_list: bool
    number: str | None
    help: str

    @property
    def usage(self) -> str:
        """Return the option as the help shows it."""
        if self.metavar is None:
            return f"--{self.name}"
        return f"--{self.name} " + (f"[{self.metavar}]" if self.is_optional else self.metavar)


def declared(lines: str) -> dict[str, Option]:
    """Read declarations: a line for each option, such as `--name VALUE  Help.`

    `!` after the name requires the option, [brackets] make the value optional, and no value makes a
    flag. `...` after the value allows several words, and `:Integer` behind it requires a number.
    `,...` is a part of the value's name.

    Raises:
        ValueError: a line is no declaration.
    """
    found: dict[str, Option] = {}
    for line in filter(str.strip, lines.splitlines()):
        match = DECLARATION.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"not a declaration: {line!r}")
        name, required, bracket, metavar, is_list, number, text = match.groups()
        found[name] = Option(
            name,
            required is not None,
            metavar,
            bracket is not None,
            is_list is not None,
            number,
            text or "",
        )
    return found


def help_lines(options: Iterable[Option]) -> list[str]:
    """Return a line of help for each option."""
    return [f"{f'  {one.usage}'.ljust(HELP_COLUMN)} {one.help}".rstrip() for one in options]


class OptionValues:
    """The options that a command line gives, each with its values."""

    def __init__(self, values: Mapping[str, Sequence[str]]) -> None:
        self._values = values

    def has(self, name: str) -> bool:
        """Return whether the option was given."""
        return name in self._values

    def values(self, name: str) -> list[str]:
        """Return every value of a repeated option."""
        return list(self._values.get(name, ()))

    def value(self, name: str) -> str | None:
        """Return the last value of an option; None without one."""
        given = self._values.get(name)
        return given[-1] if given else None

    def text(self, name: str, default: str = "") -> str:
        """Return the value of an option, or a default."""
        value = self.value(name)
        return default if value is None else value
