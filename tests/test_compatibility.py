"""docs/COMPATIBILITY.md has a row for all that is promised, and every row its tests."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from tests.compatibility import (
    FUZZ_SECONDS,
    PAGE,
    ROOT,
    ROWS,
    Plugin,
    Row,
    Shown,
    cells_of,
    is_worded,
    lines_of,
    page_of,
    parts_of,
    reworded,
    rows_of,
)

ids = [" ".join(row.key) for row in ROWS]


WHEN = re.compile(r"\d{4}-\d\d-\d\d, [0-9a-f]{7,40}")
"""What has been tested can be had again: it was a commit, and nothing but that commit."""


def test_page_has_the_rows_and_none_failed() -> None:
    found = dict(rows_of(PAGE.read_text()))
    assert list(found) == [row.key for row in lines_of(ROWS)]
    for row in ROWS:
        result = cells_of(found[row.key])[5]
        assert result == (f"not yet: {row.lacks}" if row.lacks else "passed")
        if row.long_row is not None:
            assert cells_of(found[row.long_row.key])[5] in ("passed", "not run")


def test_page_has_the_words_of_the_rows() -> None:
    found = dict(rows_of(PAGE.read_text()))
    other = [found[row.key] for row in lines_of(ROWS) if not is_worded(found[row.key], row)]
    assert not other, "`python -m tests.compatibility` writes the words anew"


def test_page_is_of_commits() -> None:
    for _, line in rows_of(PAGE.read_text()):
        *_, result, when = cells_of(line)
        assert WHEN.fullmatch(when) or (result != "passed" and not when), line


def test_page_is_of_commits_that_this_one_is_built_on() -> None:
    is_whole = _git("rev-parse", "--is-shallow-repository") == (0, "false")
    named = {cells_of(line)[-1].partition(", ")[2] for _, line in rows_of(PAGE.read_text())} - {""}
    assert named
    for commit in named:
        # A clone that is not whole cannot judge those that it lacks.
        if is_whole or _git("cat-file", "-e", commit)[0] == 0:
            assert _git("merge-base", "--is-ancestor", commit, "HEAD")[0] == 0, commit


def _git(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize(
    "when", ["2026-11-24, 3132e06 and changes", "2026-11-24, no commit", "2026-11-24", ""]
)
def test_what_is_of_no_commit_alone_is_none(when: str) -> None:
    assert not WHEN.fullmatch(when)


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_row_has_tests_or_says_what_it_lacks(row: Row) -> None:
    assert bool(row.tests) != bool(row.lacks)
    for tests in row.tests:
        path, _, name = tests.path.partition("::")
        assert (ROOT / path).exists()
        assert not name or re.search(rf"^def {name}\b", (ROOT / path).read_text(), re.MULTILINE)


FOLDERS = ("compat", "hostile", "hosts", "ops", "fuzz", "test_packages.py", "test_systemd.py")
NO_ROWS = {
    Shown("tests/compat/test_clients.py", ("plog",)): "plog's own client",
    Shown("tests/compat/against_kafka_4/test_commands.py"): "plog's own commands",
    Shown("tests/compat/test_transactional_workers.py", ("plog",)): "plog's own client",
    Shown("tests/compat/test_consumer_groups.py", ("kgo-1.18",)): "an older franz-go",
    Shown("tests/compat/test_java_and_go.py", ("kgo-1.18",)): "an older franz-go",
    Shown("tests/compat/test_kafka_versions.py"): "lists of Kafka's APIs, which other tests go by",
    Shown("tests/compat/test_load_shape.py"): "the benchmarks' traffic",
    Shown("tests/compat/test_made.py"): "how clients are built",
    Shown("tests/compat/test_tool_runner.py"): "how tools are run",
    Shown("tests/compat/test_requests.py"): "recordings, which other tests go by",
    Shown("tests/ops/test_host_metrics.py"): "plog's own agent",
    Shown("tests/ops/test_log_lines.py"): "the form of log lines",
    Shown("tests/ops/test_protocol_docs.py"): "a page",
    Shown("tests/ops/test_doctor_spark.py"): "where plog's own source is looked for",
    Shown("tests/test_packages.py::test_spark_finds_the_format_of_an_installed_wheel"): (
        "Spark's, which the page does not list"
    ),
    Shown("tests/test_packages.py::test_version_of_a_build_tells_its_commit_and_rises"): (
        "how packages are built"
    ),
    Shown("tests/test_packages.py::test_wheel_is_taken_again_where_it_is_of_the_same"): (
        "how packages are built"
    ),
    Shown("tests/test_packages.py::test_what_is_asked_for_is_of_the_python_that_builds"): (
        "how packages are built"
    ),
}
"""What is shown to nobody outside, and so in no row, and why."""
OF_SEVERAL = {
    Shown("tests/compat/test_clients.py::test_what_one_client_writes_another_reads"),
    Shown("tests/compat/test_consumer_groups.py::test_members_of_all_clients_share_a_group"),
    Shown(
        "tests/compat/test_consumer_protocol.py::test_group_is_upgraded_and_downgraded_one_by_one"
    ),
    Shown("tests/compat/test_consumer_protocol.py::test_members_keep_what_they_may"),
    Shown("tests/compat/test_transactional_workers.py::test_workers_of_all_clients_share_the_work"),
}
"""What has clients at work together, and so is in the row of each."""


def test_each_test_with_others_is_in_one_row() -> None:
    """By their ids, as many rows have those tests of a file that have a client's name."""
    where = [f"tests/{one}" for one in FOLDERS]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only"]
    done = subprocess.run(
        [*command, "--quiet", "--long", *where], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tests = [line for line in done.stdout.splitlines() if re.match(r"tests/\S+\.py::test_", line)]
    assert len(tests) > 2000
    wrong, no_rows, of_several = [], set(), set()
    for test in tests:
        found = [row.key for row in ROWS if any(one.has(test) for one in row.tests)]
        if len(found) == 1:
            continue
        known = [one for one in (OF_SEVERAL if found else NO_ROWS) if one.has(test)]
        (of_several if found else no_rows).update(known)
        if not known:
            wrong.append((test, found))
    assert not wrong
    assert no_rows == NO_ROWS.keys()
    assert of_several == OF_SEVERAL


def source_of(tests: Shown) -> str:
    """Return the text of a folder's modules, of a module, or of a test and its decorators."""
    path, _, name = tests.path.partition("::")
    modules = sorted((ROOT / path).rglob("*.py")) if (ROOT / path).is_dir() else [ROOT / path]
    text = "\n".join(module.read_text() for module in modules)
    if not name:
        return text
    (node,) = (
        one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef) and one.name == name
    )
    return "\n".join(map(ast.unparse, (*node.decorator_list, node)))


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_row_with_long_forms_says_what_they_show(row: Row) -> None:
    assert bool(row.long) == any("mark.long" in source_of(tests) for tests in row.tests)


def test_what_is_long_is_marked_so() -> None:
    """A test that asked for the option would be counted with the short forms."""
    asks = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if re.search(r"getoption\(\s*[\"']--?long", path.read_text())
    ]
    assert asks == ["tests/conftest.py"]


def test_tests_are_told_by_file_function_and_parameters() -> None:
    some = Shown("tests/a.py::test_one", ("kafka-python",))
    assert some.has("tests/a.py::test_one[fast-kafka-python-lz4]")
    assert not some.has("tests/a.py::test_one[fast-kafka-python2]")
    assert not some.has("tests/a.py::test_other[fast-kafka-python-lz4]")
    assert Shown("tests/a.py").has("tests/a.py::test_one")
    assert Shown("tests/a").has("tests/a/b.py::test_one[x]")
    assert not Shown("tests/a").has("tests/ab.py::test_one")


def whole(row: Row) -> list[str]:
    """Return tests enough for its line to be written."""
    return [f"{part.path}[{'-'.join(part.words)}]" for one in row.tests for part in parts_of(one)]


def test_failure_is_told_and_what_did_not_run_stays() -> None:
    shown = next(row for row in ROWS if len(whole(row)) == 1 and not row.tests[0].words)
    (test,) = whole(shown)
    once = dict(rows_of(page_of({test: "passed"}, "", "today")))
    before = page_of({}, PAGE.read_text(), "")
    failed = page_of({test: "failed", f"{test[:-1]}2]": "passed"}, before, "later")
    assert "| 1 | passed | today |" in once[shown.key]
    assert "| 2 | 1 failed, 1 passed | later |" in dict(rows_of(failed))[shown.key]
    others = [key for key, line in rows_of(failed) if line == dict(rows_of(before))[key]]
    assert len(others) == len(lines_of(ROWS)) - 1


def test_words_of_a_line_that_stays_are_written_anew() -> None:
    page = PAGE.read_text()
    row = next(row for row in ROWS if not row.long)
    before = dict(rows_of(page))[row.key]
    old = before.replace(row.shown, "something else")
    assert old != before
    assert page_of({}, page.replace(before, old), "later") == page_of({}, page, "later")


def test_seconds_of_a_line_that_stays_are_those_of_its_run() -> None:
    (row,) = (
        row for row in lines_of(ROWS) if row.shown == f"each target for {FUZZ_SECONDS} seconds"
    )
    line = f"| a | b | c | {row.shown.replace(FUZZ_SECONDS, '99999')} | 1 | passed | today |"
    assert is_worded(line, row)
    assert reworded(line, row) == line
    assert not is_worded(line.replace("target", "kernel"), row)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if len(whole(row)) > 1], ids=lambda row: " ".join(row.key)
)
def test_row_of_which_only_some_tests_ran_stays(row: Row) -> None:
    tests = dict.fromkeys(whole(row), "passed")
    last = page_of(tests, "", "today")
    assert f"| {len(tests)} | passed | today |" in dict(rows_of(last))[row.key]
    for test in tests:
        rest = {one: "failed" for one in tests if one != test}
        assert dict(rows_of(page_of(rest, last, "later")))[row.key] == dict(rows_of(last))[row.key]


def test_long_form_is_counted_in_a_line_of_its_own() -> None:
    row = next(row for row in ROWS if row.long and len(whole(row)) == 1)
    (short,) = whole(row)
    long = short.replace("[", "[long")
    assert row.long_row is not None

    def lines(page: str) -> tuple[str, str]:
        found = dict(rows_of(page))
        assert row.long_row is not None
        return found[row.key], found[row.long_row.key]

    first = page_of({short: "passed"}, "", "first")
    assert "| 1 | passed | first |" in lines(first)[0]
    assert f"| {row.long} | 0 | not run |  |" in lines(first)[1]
    second = page_of({long: "passed"}, first, "second", {long})
    assert lines(second)[0] == lines(first)[0]
    assert f"| {row.long} | 1 | passed | second |" in lines(second)[1]
    third = page_of({short: "passed", long: "failed"}, second, "third", {long})
    assert "| 1 | passed | third |" in lines(third)[0]
    assert "| 1 | 1 failed | third |" in lines(third)[1]
    assert lines(page_of({short: "passed"}, third, "fourth"))[1] == lines(third)[1]


def test_long_forms_are_known_by_their_mark(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    row = next(row for row in ROWS if row.long and len(whole(row)) == 1)
    assert row.long_row is not None
    monkeypatch.setattr("tests.compatibility.PAGE", tmp_path / "page.md")
    monkeypatch.setattr("tests.compatibility._commit", lambda: "abc")
    plugin = Plugin()
    (first,) = whole(row)
    for test, is_long in ((f"{first}[long]", False), (f"{first}[2]", True)):
        plugin.pytest_runtest_logreport(
            pytest.TestReport(
                test, ("", 1, ""), {"long": 1}, "passed", None, "call", is_long=is_long
            )
        )
    plugin.pytest_sessionfinish()
    found = dict(rows_of((tmp_path / "page.md").read_text()))
    assert "| 1 | passed | " in found[row.key]
    assert "| 1 | passed | " in found[row.long_row.key]
