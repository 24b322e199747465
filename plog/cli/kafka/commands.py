"""Command lines with subcommands, as Java's other parser (argparse4j) reads them.

Scripts that use it have other habits than those of `options`: required options, values of several
words, abbreviations, and other texts for errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plog.cli.kafka.options import HelpWanted, VersionWanted, java_integer

DECLARATION = re.compile(
    r"(--[\w.-]+)(!)?(?: (\S+?)(\.\.\.)?(?::(Integer|Long|Short))?)?(?:  +(\S.*))?"
)
BITS = {"Short": 16, "Integer": 32, "Long": 64}
HELP_COLUMN = 36


class CommandFault(Exception):
    """The command line is wrong; the script prints its usage and the message."""


class Declared(NamedTuple):
    """A declared option; `metavar` is None for a flag."""

    name: str
    is_required: bool
    metavar: str | None
    is_list: bool
    number: str | None
    help: str


class Words:
    """The options of one command line; `command` is the subcommand, "" without one."""

    def __init__(self, command: str, values: dict[str, list[str]]) -> None:
        self.command = command
        self._values = values

    def has(self, name: str) -> bool:
        """Return whether the option was given."""
        return name in self._values

    def values(self, name: str) -> list[str]:
        """Return every value of an option."""
        return list(self._values.get(name, ()))

    def value(self, name: str) -> str | None:
        """Return the last value of an option; None without one."""
        given = self._values.get(name)
        return given[-1] if given else None

    def text(self, name: str, default: str = "") -> str:
        """Return the last value of an option, or a default."""
        value = self.value(name)
        return default if value is None else value

    def number(self, name: str) -> int | None:
        """Return the last value of a numeric option; None without one."""
        value = self.value(name)
        return None if value is None else int(value)


class Commands:
    """The options and subcommands that a script declares.

    Args:
        program: the name in usage and errors.
        about: what the script does.
        common: lines `--name! VALUE:Type  Help.`: `!` if the option is required, `...` after VALUE
            if several words may follow, Type if it is a number.
        commands: the subcommands, each with a sentence and its own lines.
        one_of: options of which exactly one is required.
    """

    def __init__(
        self,
        program: str,
        about: str,
        common: str,
        commands: Mapping[str, tuple[str, str]] | None = None,
        one_of: Sequence[str] = (),
    ) -> None:
        self.program = program
        self.about = about
        self._common = _declared(common)
        self._commands = {
            name: (text, _declared(lines)) for name, (text, lines) in (commands or {}).items()
        }
        self._one_of = one_of

    def usage(self) -> str:
        """Return one line on how the script is called."""
        command = " COMMAND ..." if self._commands else ""
        return f"usage: {self.program} [-h] [OPTIONS]{command}\n"

    def help(self) -> str:
        """Return the help of the script with all its subcommands."""
        lines = [self.usage(), self.about, "", *_help_lines(self._common)]
        for name, (text, options) in self._commands.items():
            lines += ["", f"{name}: {text}", *_help_lines(options)]
        return "\n".join(lines) + "\n"

    def read(self, arguments: Sequence[str]) -> Words:
        """Read a command line.

        Raises:
            CommandFault: it does not fit the declarations.
            HelpWanted, VersionWanted: the command line asks for them.
        """
        if not arguments and not self._commands:
            raise HelpWanted(0)
        left = list(reversed(arguments))
        values: dict[str, list[str]] = {}
        unknown: list[str] = []
        command = ""
        options = self._common
        while left:
            word = left.pop()
            if word in ("-h", "--help"):
                raise HelpWanted
            if word in ("-v", "--version") and self._commands:
                raise VersionWanted
            name, equals, value = word.partition("=")
            option = _find(options, name) if word.startswith("--") else None
            if option is not None:
                self._take(option, value if equals else None, left, values)
            elif self._commands and not command and not word.startswith("-"):
                self._check_required(self._common, values)
                if word not in self._commands:
                    known = ", ".join(f"'{one}'" for one in self._commands)
                    raise CommandFault(f"invalid choice: '{word}' (choose from {known})")
                command, (_, options) = word, self._commands[word]
            else:
                unknown.append(word)
        if self._commands and not command:
            raise CommandFault("too few arguments")
        if unknown:
            words = " ".join(f"'{one}'" for one in unknown)
            raise CommandFault(f"unrecognized arguments: {words}")
        self._check_required(options, values)
        return Words(command, values)

    def _take(
        self, option: Declared, value: str | None, left: list[str], values: dict[str, list[str]]
    ) -> None:
        name = option.name[2:]
        for other in self._one_of:
            if name in self._one_of and other != name and other in values:
                raise CommandFault(f"argument --{name}: not allowed with argument --{other}")
        given = values.setdefault(name, [])
        if option.metavar is None:
            return
        words = [] if value is None else [value]
        while value is None and left and not _looks_like_option(left[-1]):
            words.append(left.pop())
            if not option.is_list:
                break
        if not words:
            count = "at least one argument" if option.is_list else "one argument"
            raise CommandFault(f"argument {option.name}: expected {count}")
        for word in words:
            if option.number and java_integer(word, BITS[option.number]) is None:
                raise CommandFault(
                    f"argument {option.name}: could not convert '{word}' to {option.number}"
                    f' (For input string: "{word}")'
                )
        given += words

    def _check_required(
        self, options: Mapping[str, Declared], values: Mapping[str, list[str]]
    ) -> None:
        missing = [
            one.name for one in options.values() if one.is_required and one.name[2:] not in values
        ]
        if missing:
            raise CommandFault(f"argument {missing[-1]} is required")
        if (
            options is self._common
            and self._one_of
            and not any(one in values for one in self._one_of)
        ):
            names = " ".join(f"--{one}" for one in self._one_of)
            raise CommandFault(f"one of the arguments {names} is required")


def _declared(lines: str) -> dict[str, Declared]:
    found = {}
    for line in filter(str.strip, lines.splitlines()):
        match = DECLARATION.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"not a declaration: {line!r}")
        name, required, metavar, is_list, number, text = match.groups()
        found[name] = Declared(
            name, required is not None, metavar, is_list is not None, number, text or ""
        )
    return found


def _find(options: Mapping[str, Declared], name: str) -> Declared | None:
    """Return an option by its name, or by the only one that begins so."""
    if name in options:
        return options[name]
    similar = [option for known, option in options.items() if known.startswith(name)]
    return similar[0] if len(similar) == 1 and len(name) > len("--") else None


def _looks_like_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and java_integer(word, BITS["Long"]) is None


def _help_lines(options: Mapping[str, Declared]) -> list[str]:
    return [
        f"  {one.name} {one.metavar or ''}".rstrip().ljust(HELP_COLUMN) + f" {one.help}"
        for one in options.values()
    ]
