"""Manual pages: `man` and mandoc render them without a complaint, and they have all of --help."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from plog.cli import COMMANDS as SUMMARIES
from plog.cli import main
from plog.cli.manual_pages import manual_pages, page_date
from tests.cli.test_help import COMMANDS, find

WIDTH = "500"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("manual") / "man1"
    with pytest.raises(SystemExit) as ended:
        main(["man", str(directory)])
    assert ended.value.code == 0
    return directory


def rendered(*arguments: object, width: str = WIDTH) -> subprocess.CompletedProcess[str]:
    if shutil.which("man") is None:
        pytest.skip("there is no man")
    return subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": width, "LANG": "C.UTF-8"},
        check=False,
    )


def test_there_is_a_page_for_each_command(pages: Path) -> None:
    assert {path.name for path in pages.iterdir()} == {
        "plog.1",
        *(f"plog-{name}.1" for name in SUMMARIES),
    }


def test_man_renders_every_page_without_a_warning(pages: Path) -> None:
    done = rendered("-l", *sorted(pages.iterdir()), width="80")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.count("EXIT STATUS") == len(SUMMARIES) + 1
    assert "\N{HYPHEN}" not in done.stdout, "a word is divided"


def test_mandoc_finds_nothing_wrong(pages: Path) -> None:
    if shutil.which("mandoc") is None:
        pytest.skip("there is no mandoc")
    checked = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "style", *sorted(pages.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.stdout + checked.stderr == ""


def test_pages_have_the_usage_and_the_options_of_every_command(pages: Path) -> None:
    text = " ".join(rendered("-l", *sorted(pages.iterdir())).stdout.split())
    for path in COMMANDS:
        command = find(path)
        context = click.Context(command, info_name=" ".join(["plog", *path]))
        usage = " ".join([context.info_name or "", *command.collect_usage_pieces(context)])
        assert usage in text
        for option in command.params:
            if isinstance(option, click.Option):
                assert ", ".join(option.opts) in text, (path, option.opts)
                assert " ".join((option.help or "").replace("`", "").split()) in text


def test_man_finds_a_command_by_its_words(pages: Path) -> None:
    shown = rendered("-M", pages.parent, "plog", "topics").stdout
    assert "plog-topics - list, describe, create, change and delete topics" in shown
    assert "plog topics create [OPTIONS]" in shown


def test_special_characters_stay_what_they_are(tmp_path: Path) -> None:
    @click.command(help=".start `a -b` 'c' \\n ~^\"\n\n\b\n'first\n.second  two\n\nlast.")
    @click.option("--much", help="more|less", type=click.Choice(["a|b", "c"]))
    def odd(much: str) -> None:
        """Never run."""

    group = click.Group("plog", {"odd": odd}, help="Top.")
    pages = dict(manual_pages(group, {"odd": "Odd -- 'things'."}, "1.0"))
    (tmp_path / "odd.1").write_text(pages["plog-odd.1"])
    shown = rendered("-l", tmp_path / "odd.1")
    assert shown.stderr == ""
    lines = [line.strip() for line in shown.stdout.splitlines()]
    assert ".start a -b 'c' \\n ~^\"" in lines
    assert {"'first", ".second  two", "last."} <= set(lines)
    assert "plog-odd - odd -- 'things'" in lines
    assert "--much [a|b|c]" in lines


def test_date_is_that_of_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert page_date("1.2.3+20260102030405.g0123456789") == "2026-01-02"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert page_date("1.2.3") == "1970-01-02"
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", page_date("1.2.3"))


def test_directory_that_cannot_be_written_is_an_error(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["man", str(tmp_path / "file" / "below")])
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plog: ")
    assert "Not a directory" in line
