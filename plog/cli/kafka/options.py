"""The options of Kafka's scripts, as Java's parser (joptsimple) reads them.

Owns the reading of a command line and the texts of its errors. Which options fit together is
decided by each script.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

from plog.cli.kafka.declarations import OptionValues, declared, help_lines
from plog.cli.option_words import divided, is_option

INT_BITS, LONG_BITS = 32, 64
COMMON = """
--help                       Print this help.
--version                    Print the version.
"""


class UsageFault(Exception):
    """The options do not fit together; the script prints the message and its help."""


class OptionFault(Exception):
    """An option is unknown, or its value cannot be read."""


class HelpWanted(Exception):
    """The command line asks for the help; `status` is the exit status."""

    def __init__(self, status: int = 1) -> None:
        super().__init__()
        self.status = status


class VersionWanted(Exception):
    """The command line asks for the version."""


class Options:
    """The options that a script declares.

    Args:
        about: what the script does, in one sentence.
        lines: declares the options, as `declared` reads them.
        helps: whether a command line without any option prints the help.
    """

    def __init__(self, about: str, lines: str, *, helps: bool = True) -> None:
        self.about = about
        self._helps = helps
        self._options = declared(lines + COMMON)

    def help(self) -> str:
        """Return the help: what the script does, and its options in the order of the alphabet."""
        options = [option for _, option in sorted(self._options.items())]
        lines = [self.about, "", *help_lines(options)]
        return "\n".join(lines) + "\n"

    def read(self, arguments: Sequence[str]) -> Given:
        """Read a command line. Words that belong to no option are ignored, as by Kafka.

        Raises:
            OptionFault: an unknown option, or a missing value.
            HelpWanted, VersionWanted: the command line asks for them.
        """
        values: dict[str, list[str]] = {}
        left = list(arguments)
        left.reverse()
        while left:
            word = left.pop()
            if word == "--":
                break
            if not is_option(word, numbers=True):
                continue
            name, value = divided(word.lstrip("-"))
            option = self._options.get(name)
            if option is None:
                raise OptionFault(f"{name} is not a recognized option")
            given = values.setdefault(name, [])
            if option.metavar is None:
                continue
            if value:
                given.append(value)
            elif option.is_optional:
                if left and not is_option(left[-1], numbers=True):
                    given.append(left.pop())
            elif not left:
                raise OptionFault(f"Option {name} requires an argument")
            else:
                given.append(left.pop())
        if (self._helps and not arguments) or "help" in values:
            raise HelpWanted
        if "version" in values:
            raise VersionWanted
        return Given(values, list(arguments))


class Given(OptionValues):
    """The options of one command line; `arguments` are its words."""

    def __init__(self, values: dict[str, list[str]], arguments: Sequence[str] = ()) -> None:
        super().__init__(values)
        self.arguments = arguments

    def value(self, name: str) -> str | None:
        """Return the value of an option; None without one.

        Raises:
            OptionFault: the option has several values.
        """
        if len(self.values(name)) > 1:
            raise OptionFault(
                f"Found multiple arguments for option {name}, but you asked for only one"
            )
        return super().value(name)

    def integer(self, name: str, *, bits: int = INT_BITS) -> int | None:
        """Return the value of an option as a Java int or long; None without one.

        Raises:
            OptionFault: it is not such a number.
        """
        value = self.value(name)
        if value is None:
            return None
        number = java_integer(value, bits)
        if number is None:
            raise OptionFault(f"Cannot parse argument '{value}' of option {name}")
        return number

    def require(self, *names: str) -> None:
        """Raise UsageFault for the first of these options that is missing."""
        for name in names:
            if not self.has(name):
                raise UsageFault(f'Missing required argument "[{name}]"')

    def refuse(self, used: str, *names: str) -> None:
        """Raise UsageFault if `used` was given together with one of these options."""
        if self.has(used):
            for name in names:
                if self.has(name):
                    raise UsageFault(f'Option "[{used}]" can\'t be used with option "[{name}]"')


def java_integer(text: str, bits: int = INT_BITS) -> int | None:
    """Read a number as Java's Integer.parseInt or Long.parseLong; None if it is none."""
    if not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII) or len(text) > LONG_BITS:
        return None
    number = int(text)
    return number if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) else None


def number_fault(text: str) -> NoReturn:
    """Raise the error for text that is not a number, as Java words it."""
    raise ValueError(f'For input string: "{text}"')
