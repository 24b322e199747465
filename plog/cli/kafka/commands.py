"""Command lines with subcommands, as Java's other parser (argparse4j) reads them.

Scripts that use it have other habits than those of `options`: required options, values of several
words, abbreviations, and other texts for errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plog.cli.kafka.declarations import Option, OptionValues, declared, help_lines
from plog.cli.kafka.options import HelpWanted, VersionWanted, java_integer
from plog.cli.option_words import divided, is_option

BITS = {"Short": 16, "Integer": 32, "Long": 64}


class CommandFault(Exception):
    """The command line is wrong; the script prints its usage and the message."""


class Words(OptionValues):
    """The options of one command line; `command` is the subcommand, "" without one."""

    def __init__(self, command: str, values: dict[str, list[str]]) -> None:
        super().__init__(values)
        self.command = command

    def number(self, name: str) -> int | None:
        """Return the last value of a numeric option; None without one."""
        value = self.value(name)
        return None if value is None else int(value)


class Commands:
    """The options and subcommands that a script declares.

    Args:
        program: the name in usage and errors.
        about: what the script does.
        common: declares options, as `declared` reads them.
        commands: the subcommands, each with a sentence and the declarations of its own options.
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
        self._common = declared(common)
        self._commands = {
            name: (text, declared(lines)) for name, (text, lines) in (commands or {}).items()
        }
        self._one_of = one_of

    def usage(self) -> str:
        """Return one line on how the script is called."""
        command = " COMMAND ..." if self._commands else ""
        return f"usage: {self.program} [-h] [OPTIONS]{command}\n"

    def help(self) -> str:
        """Return the help of the script with all its subcommands."""
        lines = [self.usage(), self.about, "", *help_lines(self._common.values())]
        for name, (text, options) in self._commands.items():
            lines += ["", f"{name}: {text}", *help_lines(options.values())]
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
            name, value = divided(word)
            option = _find(options, name[2:]) if word.startswith("--") else None
            if option is not None:
                self._take(option, value, left, values)
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
        self, option: Option, value: str | None, left: list[str], values: dict[str, list[str]]
    ) -> None:
        name = option.name
        for other in self._one_of:
            if name in self._one_of and other != name and other in values:
                raise CommandFault(f"argument --{name}: not allowed with argument --{other}")
        given = values.setdefault(name, [])
        if option.metavar is None:
            return
        words = [] if value is None else [value]
        while value is None and left and not is_option(left[-1]):
            words.append(left.pop())
            if not option.is_list:
                break
        if not words:
            count = "at least one argument" if option.is_list else "one argument"
            raise CommandFault(f"argument --{option.name}: expected {count}")
        for word in words:
            if option.number and java_integer(word, BITS[option.number]) is None:
                raise CommandFault(
                    f"argument --{option.name}: could not convert '{word}' to {option.number}"
                    f' (For input string: "{word}")'
                )
        given += words

    def _check_required(
        self, options: Mapping[str, Option], values: Mapping[str, list[str]]
    ) -> None:
        missing = [
            one.name for one in options.values() if one.is_required and one.name not in values
        ]
        if missing:
            raise CommandFault(f"argument --{missing[-1]} is required")
        if (
            options is self._common
            and self._one_of
            and not any(one in values for one in self._one_of)
        ):
            names = " ".join(f"--{one}" for one in self._one_of)
            raise CommandFault(f"one of the arguments {names} is required")


def _find(options: Mapping[str, Option], name: str) -> Option | None:
    """Return an option by its name, or by the only one that begins so."""
    if name in options:
        return options[name]
    similar = [option for known, option in options.items() if known.startswith(name)]
    return similar[0] if len(similar) == 1 and name else None
