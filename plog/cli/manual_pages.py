r"""Manual pages of plog's commands, in roff (man(7)), made from their `--help`.

Owns the pages' sections, and how text becomes roff. There is a page for plog, and one for each of
its commands, which has that command's subcommands too: `man plog`, `man plog topics`.
"""

from __future__ import annotations

import inspect
import os
import re
import textwrap
import time
from collections.abc import Iterator, Mapping

import click

SECTION = 1
WIDTH = 60
"""Characters of a line of the source; roff fills the lines that are shown."""
VERBATIM = "\b"
"""By this line click marks a paragraph whose lines stay as they are."""
CODE = re.compile(r"`([^`]+)`")
SPECIAL = {
    "\\": r"\e",
    "-": r"\-",
    "'": r"\(aq",
    "`": r"\(ga",
    "^": r"\(ha",
    "~": r"\(ti",
}
BUILT = re.compile(r"\+(\d{4})(\d\d)(\d\d)\d{6}\b")
"""The commit's time in the version of a package."""
STATUS = (
    ("0", "Success."),
    ("1", "An error, which is described in one line on stderr."),
    ("2", "Wrong usage: an unknown command or option, or an invalid value."),
    ("130", "The command was interrupted by Ctrl-C."),
)
DOCUMENTATION = (
    "OPERATIONS and the other pages about plog, which the package for Debian installs in"
    " /usr/share/doc/plog."
)


def manual_pages(
    root: click.Group, summaries: Mapping[str, str], version: str
) -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of each manual page.

    Args:
        root: the `plog` command.
        summaries: its commands, and a line about each.
        version: plog's version, for the last line of a page.
    """
    context = click.Context(root, info_name="plog")
    yield f"plog.{SECTION}", Page(root, context, summaries, version).text()
    for name in summaries:
        command = root.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        yield f"plog-{name}.{SECTION}", Page(command, below, summaries, version).text()


class Page:
    """One manual page.

    Args:
        summaries: the commands of plog, which have pages as well, and a line about each.
    """

    def __init__(
        self,
        command: click.Command,
        context: click.Context,
        summaries: Mapping[str, str],
        version: str,
    ) -> None:
        self._command = command
        self._context = context
        self._version = version
        self._summaries = summaries
        self._name = context.command_path.replace(" ", "-")
        self._lines: list[str] = []

    def text(self) -> str:
        """Return the page."""
        summary = self._summaries.get(str(self._context.info_name)) or _summary(self._command)
        described = summary[0].lower() + summary[1:].rstrip(".")
        self._lines = [
            f'.TH {_quoted(self._name.upper())} {SECTION} "{page_date(self._version)}"'
            f" {_quoted('plog ' + self._version)} {_quoted('plog')}",
            # No hyphens inside words, which would be wrong in a setting's name.
            ".nr HY 0",
            ".nh",
            ".ad l",
            ".SH NAME",
            *_wrapped(f"{self._name} - {described}"),
            ".SH SYNOPSIS",
            _usage(self._context),
            ".SH DESCRIPTION",
            *_paragraphs(_help(self._command)),
        ]
        if options := list(_options(self._context)):
            self._lines += [".SH OPTIONS", *options]
        self._add_commands()
        self._add_environment()
        self._lines.append(".SH EXIT STATUS")
        for status, meaning in STATUS:
            self._lines += [".TP", f".B {status}", *_wrapped(meaning)]
        self._add_references()
        return "\n".join(self._lines) + "\n"

    def _below(self) -> Iterator[tuple[click.Command, click.Context]]:
        if isinstance(self._command, click.Group):
            for name in self._command.list_commands(self._context):
                command = self._command.get_command(self._context, name)
                assert command is not None
                yield command, click.Context(command, info_name=name, parent=self._context)

    def _add_commands(self) -> None:
        """Describe the commands below; those of plog itself have pages of their own."""
        below = list(self._below())
        if below:
            self._lines.append(".SH COMMANDS")
        for command, context in below:
            if self._context.parent is None:
                self._lines += [
                    ".TP",
                    f".BR plog\\-{_roff(str(context.info_name))} ({SECTION})",
                    *_wrapped(self._summaries[str(context.info_name)]),
                ]
                continue
            self._lines += [
                f".SS {_quoted(context.command_path)}",
                _usage(context),
                ".PP",
                *_paragraphs(_help(command)),
                *_options(context),
            ]

    def _add_environment(self) -> None:
        """Describe the variables that set options; plog's own page has those of all commands."""
        used: dict[str, set[str]] = {}
        for command, context in [(self._command, self._context), *self._below()]:
            every = [command]
            if self._context.parent is None and isinstance(command, click.Group):
                every += [command.commands[name] for name in command.list_commands(context)
                          if name in command.commands]  # fmt: skip
            for one in every:
                for option in one.params:
                    if isinstance(option, click.Option) and isinstance(option.envvar, str):
                        used.setdefault(option.envvar, set()).add(option.opts[-1])
        if used:
            self._lines.append(".SH ENVIRONMENT")
        for variable, options in sorted(used.items()):
            names = " or ".join(sorted(options))
            meaning = f"The value of {names}, where the command line has none."
            self._lines += [".TP", f".B {variable}", *_wrapped(meaning)]

    def _add_references(self) -> None:
        names = [f"plog-{name}" for name in self._summaries]
        others = [name for name in ("plog", *names) if name != self._name]
        if self._context.parent is not None:
            others = ["plog"]
        self._lines.append(".SH SEE ALSO")
        for name in others:
            end = "," if name != others[-1] else ""
            self._lines.append(f".BR {_roff(name)} ({SECTION}){end}")
        self._lines += [".PP", *_wrapped(DOCUMENTATION)]


def page_date(version: str) -> str:
    """Return the date of a page: that of the commit if the version has it."""
    if (built := BUILT.search(version)) is not None:
        return "-".join(built.groups())
    moment = float(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def _help(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "")


def _summary(command: click.Command) -> str:
    """Return the first sentence of a command's help."""
    return " ".join(_help(command).partition("\n\n")[0].split()).partition(". ")[0]


def _usage(context: click.Context) -> str:
    pieces = context.command.collect_usage_pieces(context)
    return f"\\fB{_roff(context.command_path)}\\fR {_roff(' '.join(pieces))}"


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of a help text; examples keep their line breaks."""
    for number, paragraph in enumerate(text.split("\n\n")):
        first, _, rest = paragraph.partition("\n")
        if first == VERBATIM:
            yield from (".PP", ".RS 4", ".EX", *map(_line, textwrap.dedent(rest).split("\n")))
            yield from (".EE", ".RE")
            continue
        if number:
            yield ".PP"
        yield from _wrapped(" ".join(paragraph.split()))


def _options(context: click.Context) -> Iterator[str]:
    """Yield the lines of a command's options; `--help` is the same everywhere."""
    for option in context.command.get_params(context):
        if not isinstance(option, click.Option):
            continue
        record = option.get_help_record(context)
        if record is None or (context.parent is not None and "--help" in option.opts):
            continue
        names, text = record
        words = [
            f"\\fB{_roff(word)}\\fR" if word.startswith("-") else f"\\fI{_roff(word)}\\fR"
            for word in names.split(" ")
        ]
        yield ".TP"
        # A long list of choices may be broken behind each of them.
        yield " ".join(words).replace(",\\fR", "\\fR,").replace("|", "|\\:")
        yield from _wrapped(" ".join(text.split()))


def _wrapped(text: str) -> list[str]:
    """Return the lines of a paragraph; `code` is bold."""
    # A space in code must not end a line of the source: both of its ends are on one line.
    joined = CODE.sub(lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(joined, WIDTH, break_long_words=False, break_on_hyphens=False)
    return [_line(line.replace("\0", " ")) for line in lines]


def _line(text: str) -> str:
    """Return one line of text; it is no request of roff, whatever it begins with."""
    parts = CODE.split(text)
    line = "".join(
        f"\\fB{_roff(part)}\\fR" if number % 2 else _roff(part) for number, part in enumerate(parts)
    )
    return f"\\&{line}" if line.startswith((".", "'")) else line


def _roff(text: str) -> str:
    return "".join(SPECIAL.get(one, one) for one in text)


def _quoted(text: str) -> str:
    """Return an argument of a macro."""
    return '"' + _roff(text).replace('"', r"\(dq") + '"'
