"""Hints for wrong command lines: plog's command for the words of Kafka's scripts and of kcat.

Owns the translation of a command line by the rules in `foreign_words`, and of one with misspelt
commands or options. A hint is a command that plog would accept, with the user's own words. It is
only printed, never run. Loaded after a usage error, and not before.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property

import click

from plog.cli.foreign_words import (
    CONNECTION,
    OPTIONS_WITHOUT_COUNTERPART,
    OWN_OPTIONS_WITHOUT_COUNTERPART,
    REPEATING,
    SPELLINGS,
    TOOLS,
    WITHOUT_COUNTERPART,
    Action,
    Tool,
)
from plog.cli.option_words import divided, is_option
from plog.cli.rule_options import PLACEHOLDER, Given, Option, options_of

CLOSE = 0.7
"""How alike a misspelt word and the right one are at least; 1 means equal."""
PREFIX, SUFFIXES = "kafka-", (".sh", ".bat")
HELP = ("--help", "-h")


def hint(root: click.Group, words: Sequence[str]) -> str | None:
    """Return a line that gives the command that the user probably means, or None.

    Args:
        root: the `plog` command.
        words: the words after `plog`.
    """
    asked = [word for word in words if word in HELP]
    rest = [word for word in words if word not in HELP]
    wants_help = bool(asked)
    if "--" in words or not rest or _is_accepted(root, rest, wants_help=wants_help):
        return None
    for name in (_tool_name(rest[0]), f"{rest[0]}s"):
        if name in WITHOUT_COUNTERPART:
            return f"plog has no command for {PREFIX}{name}: {WITHOUT_COUNTERPART[name]}"
    for word in rest:
        name, _ = divided(word)
        if reason := OWN_OPTIONS_WITHOUT_COUNTERPART.get((rest[0], name)):
            return f"plog {rest[0]} has no option {name}: {reason}"
    for path in (rest[1:] if rest[0] == "help" else rest, rest[:-1]):
        if "help" in rest and _command(root, path)[1] == len(path) == len(rest) - 1:
            return f"did you mean: {shell_line(['plog', *path, '--help'])}"
    if (line := _line(root, rest)) is not None:
        for given in line.given:
            if reason := OPTIONS_WITHOUT_COUNTERPART.get(given.name):
                return f"plog has no option for {given.name}: {reason}"
    readings = [joined, translated, respelt]
    if wants_help and not any(word.startswith("-") for word in rest):
        readings.reverse()  # `topic describe --help` is about that command, without a topic
    for suggestion in (read(root, rest) for read in readings):
        if suggestion is None or suggestion == rest:
            continue
        if _is_accepted(root, suggestion, given=rest, wants_help=wants_help):
            return f"did you mean: {shell_line(['plog', *suggestion, *asked[:1]])}"
    return None


def shell_line(words: Iterable[str]) -> str:
    """Return words as a line to paste into a shell."""
    return " ".join(
        shlex.quote(word) if word.isprintable() else f"$'{_escaped(word)}'" for word in words
    )


def _escaped(word: str) -> str:
    return word.encode("unicode_escape").decode("ascii").replace("'", r"\'")


# -- Kafka's words


@dataclass
class Line:
    """The words of a user, read with the rules of a tool."""

    tool: Tool
    given: list[Given] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    bound: dict[str, list[str]] = field(default_factory=dict)

    @cached_property
    def rules(self) -> list[tuple[Option, str]]:
        """Return each option of the tool, and plog's words for it."""
        table = {**CONNECTION, **self.tool.options}
        return [(option, text) for key, text in table.items() for option in options_of(key)]

    def bind(self, found: dict[str, list[str]]) -> None:
        """Remember the user's words for placeholders."""
        for name, words in found.items():
            self.bound.setdefault(name, []).extend(words)


def translated(root: click.Group, words: Sequence[str]) -> list[str] | None:
    """Return plog's command for a command line in the words of Kafka or kcat."""
    line = _line(root, words)
    action = None if line is None else _action(line)
    if line is None or action is None:
        return None
    return _compose(root, line, action.command.split(" "))


def _line(root: click.Group, words: Sequence[str]) -> Line | None:
    """Read a command line by the rules of the tool that it names; None without such a tool."""
    found = _tool(words)
    if found is None:
        return None
    line = Line(found[0])
    _read(root, line, found[1])
    return line


def _tool_name(word: str) -> str:
    name = word.rpartition("/")[2]
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name.removeprefix(PREFIX)


def _tool(words: Sequence[str]) -> tuple[Tool, list[str]] | None:
    """Return the tool that the first words name, and the others."""
    if words[0].startswith("-"):
        # kcat's options without its name: at least its mode or a topic is there.
        if not any(re.match(r"-[LCPGQt]", word) for word in words):
            return None
        return TOOLS[-1], list(words)
    for count in (2, 1):
        named = " ".join(_tool_name(word) for word in words[:count])
        for tool in TOOLS:
            if named in tool.names:
                return tool, list(words[count:])
    return None


def _read(root: click.Group, line: Line, words: Sequence[str]) -> None:
    """Divide words into options with their values, and others."""
    takes = {name: {True} for name in OPTIONS_WITHOUT_COUNTERPART}
    for action in line.tool.actions:
        if action.word:
            takes.setdefault(f"--{action.word}", set()).add(False)
            takes.setdefault(f"-{action.word}", set()).add(False)
        for option in options_of(action.needs):
            takes.setdefault(option.name, set()).add(bool(option.value))
    for option, _ in line.rules:
        takes.setdefault(option.name, set()).add(bool(option.value))
        if option.value and len(option.name) == 2:
            takes[option.name] = {True}  # kcat's -G is a mode with a value
    for action in line.tool.actions:
        for name, has_value in _own_options(root, action.command.split(" ")).items():
            takes.setdefault(name, {has_value})
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not is_option(word):
            if line.given and line.given[-1].name in REPEATING:
                line.given.append(Given(line.given[-1].name, word))
            else:
                line.words.append(word)
            continue
        name, value = _divided(word, takes)
        name = SPELLINGS.get(name, name)
        if name not in takes and (close := get_close_matches(name, takes, 1, CLOSE)):
            name = close[0]
        kinds = takes.get(name, {False})
        if value is None and True in kinds and rest:
            if kinds == {True} or not is_option(rest[0]):
                value = rest.pop(0)
        elif value is not None and kinds == {False} and not word.startswith("--"):
            rest.insert(0, f"-{value}")  # -eq is -e -q
            value = None
        line.given.append(Given(name, value))


def _divided(word: str, takes: dict[str, set[bool]]) -> tuple[str, str | None]:
    """Return the name and the value of `--name=value`, `-nvalue` and others."""
    if word.startswith("--"):
        return divided(word)
    if len(word) > 2 and word not in takes and word[:2] in takes:
        return word[:2], word[2:]
    return word, None


def _action(line: Line) -> Action | None:
    """Return the first action whose word and needs are there; take them out of the line."""
    words = {action.word for action in line.tool.actions if action.word}
    chosen = ""
    if line.words and line.words[0] in words:
        chosen = line.words.pop(0)
        line.given = [one for one in line.given if one.name != f"--{chosen}"]
    else:
        for given in line.given:
            if given.name.lstrip("-") in words:
                chosen = given.name.lstrip("-")
                _bind_option(line, given)
                line.given.remove(given)
                break
    for action in line.tool.actions:
        if action.word != chosen:
            continue
        needs = options_of(action.needs)
        met = {one: found for one in needs if (found := _given_for(line, one))}
        if len(met) == len(needs):
            for option, each in met.items():
                for given in each:
                    line.bind(option.match(given) or {})
                    line.given.remove(given)
            return action
    return None


def _given_for(line: Line, option: Option) -> list[Given]:
    return [given for given in line.given if option.match(given) is not None]


def _bind_option(line: Line, given: Given) -> list[str] | None:
    """Bind the words of an option; return plog's words for it, or None if there is no rule."""
    for option, text in line.rules:
        if (found := option.match(given)) is None:
            continue
        words: list[str] = []
        for word in text.split():
            name, equals, value = word.partition("=")
            if equals and PLACEHOLDER.fullmatch(name):
                line.bind({name: [_filled(value, found)]})
            elif PLACEHOLDER.fullmatch(word) and not words:
                line.bind({word: found[word]})
            else:
                words.append(_filled(word, found))
        return words
    return None


def _compose(root: click.Group, line: Line, template: Sequence[str]) -> list[str] | None:
    """Return plog's words: those of the action's command, then the user's options."""
    own = _own_options(root, template)
    options: list[list[str]] = []
    for given in line.given:
        if given.name in own and own[given.name] == (given.value is not None):
            options.append([given.name] if given.value is None else [given.name, given.value])
            continue
        words = _bind_option(line, given)
        if words is None:
            return None
        if words not in options and not set(words) <= set(template):
            options.append(words)
    if line.bound.keys() - set(PLACEHOLDER.findall(" ".join(template))):
        return None  # plog's command has no place for one of the user's words
    rest = list(line.words)
    composed: list[str] = []
    for word in template:
        name = word.rstrip("?.")
        if not PLACEHOLDER.fullmatch(name):
            if any(len(line.bound.get(part, [])) > 1 for part in PLACEHOLDER.findall(word)):
                return None
            composed.append(_filled(word, line.bound))
            continue
        if name not in line.bound and rest:
            line.bound[name] = rest if word.endswith("...") else [rest.pop(0)]
            rest = [] if word.endswith("...") else rest
        values = line.bound.get(name, [] if word.endswith("?") else [name])
        if len(values) > 1 and not word.endswith("..."):
            return None
        composed += values
    if rest:
        return None
    return composed + [word for option in options for word in option]


def _filled(word: str, bound: dict[str, list[str]]) -> str:
    """Return a rule's word with the user's own in the place of its placeholders."""
    return PLACEHOLDER.sub(lambda name: bound.get(name[0], [name[0]])[0], word)


# -- plog's own words


def _own_options(root: click.Group, words: Sequence[str]) -> dict[str, bool]:
    """Return the options of a command of plog, and whether each takes a value."""
    command, _ = _command(root, words)
    return {
        name: not option.is_flag
        for option in command.params
        if isinstance(option, click.Option)
        for name in option.opts
    }


def _command(root: click.Group, words: Sequence[str]) -> tuple[click.Command, int]:
    """Return the command that the first words name, and their number."""
    command: click.Command = root
    for count, word in enumerate(words):
        if not isinstance(command, click.Group):
            return command, count
        found = command.get_command(click.Context(command), word)
        if found is None:
            return command, count
        command = found
    return command, len(words)


def joined(root: click.Group, words: Sequence[str]) -> list[str]:
    """Return the words with `--to earliest` as `--to-earliest`, where that is an option."""
    own = _own_options(root, words)
    right: list[str] = []
    for word in words:
        if right and is_option(right[-1]) and f"{right[-1]}-{word}" in own:
            right[-1] += f"-{word}"
        else:
            right.append(word)
    return right


def respelt(root: click.Group, words: Sequence[str]) -> list[str] | None:
    """Return the words with misspelt commands and options replaced, or None if that fails."""
    rest, right = list(words), list[str]()
    command: click.Command = root
    while isinstance(command, click.Group) and rest:
        if command.invoke_without_command and rest[0].startswith("-"):
            break
        names = command.list_commands(click.Context(command))
        close = get_close_matches(rest[0], names, 1, CLOSE)
        if not close:
            return None
        found = command.get_command(click.Context(command), close[0])
        assert found is not None
        right.append(close[0])
        command, rest = found, rest[1:]
    own = _own_options(root, right)
    for word in rest:
        name, equals, value = word.partition("=")
        if name.startswith("--") and name not in own:
            close = get_close_matches(name, own, 1, CLOSE)
            if not close:
                return None
            name = close[0]
        right.append(f"{name}{equals}{value}")
    return right


def _is_accepted(
    root: click.Group, words: Sequence[str], *, given: Sequence[str] = (), wants_help: bool
) -> bool:
    """Return whether click accepts a command line, with its values.

    A file may be missing. A suggestion may have placeholders: words in capitals that the user has
    not given.

    Args:
        words: without options that ask for help.
        wants_help: such an option follows, so that groups and missing arguments are accepted.
    """
    command, count = _command(root, words)
    if isinstance(command, click.Group):
        acts = command.invoke_without_command and words[count : count + 1] != ["--help"]
        if count < len(words) and not (acts and words[count].startswith("-")):
            return False
        if not acts:
            return wants_help
    try:
        # Without its help option, click cannot print a help text here.
        command.make_context(command.name, list(words[count:]), help_option_names=[])
    except click.MissingParameter:
        return wants_help
    except click.BadParameter as fault:
        if isinstance(getattr(fault.param, "type", None), click.File | click.Path):
            return True
        return any(PLACEHOLDER.search(word) for word in words if given and word not in given)
    except click.UsageError:
        return False
    return True
