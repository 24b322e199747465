"""The help of every command is plain and complete: tests walk the whole tree of commands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import click
import pytest
from click.testing import CliRunner

from plog.cli import plog
from tests import plain_english

WIDTH = 10_000  # columns: a sentence is one line, and the list of commands is not cut


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from walk(below, (*path, name))


COMMANDS = list(walk(plog))
every_command = pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "plog")


def find(path: tuple[str, ...]) -> click.Command:
    command: click.Command = plog
    for name in path:
        assert isinstance(command, click.Group)
        below = command.get_command(click.Context(command), name)
        assert below is not None
        command = below
    return command


@cache
def render(path: tuple[str, ...]) -> str:
    done = CliRunner().invoke(
        plog, [*path, "--help"], prog_name="plog", terminal_width=WIDTH, max_content_width=WIDTH
    )
    assert done.exit_code == 0, done.output
    return done.output


def test_the_walk_reaches_nested_commands():
    assert {(), ("server",), ("groups", "reset"), ("perf", "latency")} <= set(COMMANDS)


@every_command
def test_help_has_no_markers_of_unclear_english(path):
    text = render(path)
    assert not plain_english.count(text, is_page=False), text


@every_command
def test_sentences_of_the_help_are_short(path):
    """Sentences of the description; usage, examples and lists of options are not prose."""
    prose = [line.strip() for line in render(path).splitlines()[1:] if is_prose(line)]
    long = [
        sentence
        for line in prose
        for sentence in plain_english.sentences(line)
        if len(sentence.split()) > plain_english.MAX_SENTENCE_WORDS
    ]
    assert not long, long


def is_prose(line: str) -> bool:
    return line.startswith("  ") and not line.startswith(("   ", "  -"))


@every_command
def test_every_option_and_command_is_described(path):
    command = find(path)
    assert command.get_short_help_str(WIDTH), "no description"
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{' '.join(path)} {option.opts[0]}: no help"


def test_lists_of_commands_are_not_cut():
    for path in COMMANDS:
        if isinstance(find(path), click.Group):
            done = CliRunner().invoke(plog, [*path, "--help"], prog_name="plog", terminal_width=100)
            section = done.output.partition("\nCommands:\n")[2]
            assert section
            assert "..." not in section, section
