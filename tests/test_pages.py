"""The pages: links resolve, lengths have limits, and quoted log lines are those of the source."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections import Counter

import click
import pytest

from plog.cli import plog
from tests.conftest import ROOT

README_WORDS = range(600, 801)
LINE_CHARACTERS = 120
SHORT_LINES = (
    "README.md",
    "docs/FIRST_STEPS.md",
    "docs/MIGRATION.md",
    "docs/OPERATIONS.md",
    "docs/TESTING.md",
    "examples/README.md",
)
QUOTING = ("docs/OPERATIONS.md", "docs/MIGRATION.md")
CODE_BLOCK = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(`+)(.+?)\1")
LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)? *$", re.MULTILINE)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(
    r"(?:^ *|[|;] |&& |-- |do |=/opt/plog/bin/)plog +([^#|&;<>()\n]*)", re.MULTILINE
)
OUTSIDE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def pages() -> list[str]:
    """Return every page of the checkout: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return sorted(name for name in set(listed) if (ROOT / name).is_file())


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = CODE_BLOCK.sub("", page)
    found: Counter[str] = Counter()
    names = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for heading in HEADING.findall(text):
        bare = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", bare.strip().lower()).replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return names


def links(page: str) -> list[str]:
    """Return the targets of a page's links that are not addresses of the web."""
    text = CODE.sub("", CODE_BLOCK.sub("", page))
    return [link for link in LINK.findall(text) if not OUTSIDE.match(link)]


def broken(name: str, text: str) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading of it."""
    wrong = []
    for link in links(text):
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        exists = target.exists()
        if exists and anchor:
            exists = anchor in anchors(target.read_text("utf-8") if path else text)
        if not exists:
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("name", pages())
def test_links_and_anchors_of_a_page_resolve(name: str) -> None:
    assert broken(name, (ROOT / name).read_text("utf-8")) == []


def test_broken_links_are_found() -> None:
    page = """# A `b` (c)
[good](#a-b-c) [also](docs/OPERATIONS.md#first-start) [web](https://example.org/none) `[no](link)`
[bad](#a-b) [bad](docs/NONE.md) [bad](docs/OPERATIONS.md#none)
"""
    assert len(links(page)) == 5
    assert broken("README.md", page) == ["#a-b", "docs/NONE.md", "docs/OPERATIONS.md#none"]


def test_readme_is_read_in_minutes() -> None:
    """Words are those between white space in the whole file, code and tables included."""
    assert len((ROOT / "README.md").read_text("utf-8").split()) in README_WORDS


def test_readme_counts_the_comparisons_with_kafka_as_the_page_does() -> None:
    rows = re.findall(
        r"^\| responses \| beside a live Kafka.*\| (\d+) \| passed \|",
        (ROOT / "docs" / "COMPATIBILITY.md").read_text("utf-8"),
        re.MULTILINE,
    )
    (said,) = re.findall(
        r"([\d,]+) tests compare responses", (ROOT / "README.md").read_text("utf-8")
    )
    assert said == f"{sum(map(int, rows)):,}"


@pytest.mark.parametrize("name", SHORT_LINES)
def test_lines_fit_except_in_tables(name: str) -> None:
    lines = (ROOT / name).read_text("utf-8").splitlines()
    long = [line for line in lines if len(line) > LINE_CHARACTERS and not line.startswith("|")]
    assert long == []


def literals() -> str:
    """Return the text in the literals of the source, those of a line each."""
    found: list[str] = []
    for path in (ROOT / "plog").rglob("*.py"):
        found += [
            " ".join(node.value.split())
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    for path in (ROOT / "plog").rglob("*.pyx"):
        joined = re.sub(r"\"\s*\n\s*f?\"", "", path.read_text("utf-8"))
        found += re.findall(r"\"([^\"\n]*)\"", joined)
    return "\n".join(found)


def fragments(quoted: str) -> list[str]:
    """Return the parts of a quoted log line that are the same in each such line."""
    parts = re.split(r"\.\.\.|: |'[^']*'|\bN\b|\b\d+\b|\b[a-z]+-\d+\b", quoted)
    return [part.strip() for part in parts if len(part.split()) > 1]


@pytest.mark.parametrize("name", QUOTING)
def test_quoted_log_lines_are_those_of_the_source(name: str) -> None:
    """A quotation is code with `...` for the parts that differ."""
    text = CODE_BLOCK.sub("", (ROOT / name).read_text("utf-8"))
    quoted = [code for _, code in CODE.findall(text) if "..." in code]
    source = literals()
    wrong = [part for line in quoted for part in fragments(line) if part not in source]
    assert wrong == []
    assert len(quoted) >= 10 or name != "docs/OPERATIONS.md"


def commands(page: str) -> list[list[str]]:
    """Return the arguments of `plog` in a page's blocks of commands."""
    shown = [text for language, text in BLOCK.findall(page) if not language]
    lines = [shlex.split(line) for text in shown for line in COMMAND.findall(text)]
    return [arguments for arguments in lines if arguments != ["--version"]]


def refusal(arguments: list[str]) -> str:
    """Return why a command line would be refused; files that it names need not exist."""
    command: click.Command = plog
    context = click.Context(command, info_name="plog")
    rest = list(arguments)
    while isinstance(command, click.Group):
        if command.invoke_without_command and (not rest or rest[0].startswith("-")):
            break
        found = command.get_command(context, rest[0])
        if found is None:
            return f"{rest[0]} is no command"
        command, context, rest = found, click.Context(found, parent=context), rest[1:]
    try:
        command.make_context(command.name, rest)
    except click.exceptions.Exit:
        return ""  # --help
    except click.UsageError as error:
        kind = getattr(getattr(error, "param", None), "type", None)
        is_missing_file = isinstance(kind, click.File | click.Path)
        return "" if is_missing_file else error.format_message()
    return ""


@pytest.mark.parametrize("name", pages())
def test_commands_that_a_page_shows_are_accepted(name: str) -> None:
    """They are parsed, not run."""
    shown = commands((ROOT / name).read_text("utf-8"))
    refused = {shlex.join(line): why for line in shown if (why := refusal(line))}
    assert refused == {}
    assert len(shown) >= 25 or name != "docs/OPERATIONS.md"


def test_wrong_commands_are_refused() -> None:
    assert refusal(["groups", "describe", "readers", "--members"]) == ""
    assert "--none" in refusal(["groups", "describe", "readers", "--none"])
    assert "nothing" in refusal(["groups", "nothing"])
