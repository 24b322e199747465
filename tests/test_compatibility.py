"""docs/COMPATIBILITY.md has a row for all that is promised, and every row its tests."""

from __future__ import annotations

import ast
import re

import pytest

from tests.compatibility import PAGE, ROOT, ROWS, Plugin, Row, Shown, lines_of, page_of, rows_of

ids = [" ".join(row.key) for row in ROWS]


def test_page_has_the_rows_and_none_failed() -> None:
    found = dict(rows_of(PAGE.read_text()))
    assert list(found) == [row.key for row in lines_of(ROWS)]
    for row in ROWS:
        result = found[row.key].split("|")[6].strip()
        assert result == (f"not yet: {row.lacks}" if row.lacks else "passed")
        if row.long_row is not None:
            assert found[row.long_row.key].split("|")[6].strip() in ("passed", "not run")


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_row_has_tests_or_says_what_it_lacks(row: Row) -> None:
    assert bool(row.tests) != bool(row.lacks)
    for tests in row.tests:
        path, _, name = tests.path.partition("::")
        assert (ROOT / path).exists()
        assert not name or re.search(rf"^def {name}\b", (ROOT / path).read_text(), re.MULTILINE)


ABOUT_THE_TESTS_OR_PAGES = {
    "tests/compat/test_load_shape.py",
    "tests/compat/test_made.py",
    "tests/compat/test_requests.py",
    "tests/ops/test_log_lines.py",
    "tests/ops/test_protocol_docs.py",
}
"""What is shown to nobody outside: the benchmarks' traffic, how clients are built, recordings, log
lines, a page."""


def test_what_was_tried_with_others_is_in_a_row() -> None:
    in_rows = {tests.path.partition("::")[0] for row in ROWS for tests in row.tests}
    left_out = {
        path.relative_to(ROOT).as_posix()
        for folder in ("compat", "hostile", "hosts", "ops", "fuzz")
        for path in (ROOT / "tests" / folder).rglob("test_*.py")
        if not any(path.is_relative_to(ROOT / one) for one in in_rows)
    }
    assert left_out == ABOUT_THE_TESTS_OR_PAGES


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


def test_failure_is_told_and_what_did_not_run_stays() -> None:
    shown = next(row for row in ROWS if len(row.tests) == 1 and not row.tests[0].words)
    test = shown.tests[0].path
    once = dict(rows_of(page_of({test: "passed"}, "", "today")))
    failed = page_of({test: "failed", f"{test}[2]": "passed"}, PAGE.read_text(), "later")
    assert "| 1 | passed | today |" in once[shown.key]
    assert "| 2 | 1 failed, 1 passed | later |" in dict(rows_of(failed))[shown.key]
    others = [key for key, line in rows_of(failed) if line == dict(rows_of(PAGE.read_text()))[key]]
    assert len(others) == len(lines_of(ROWS)) - 1


def test_row_of_which_only_some_tests_ran_stays() -> None:
    row = next(row for row in ROWS if len(row.tests) == 2)
    one, other = (f"{tests.path}::test_a[{'-'.join(tests.words)}]" for tests in row.tests)
    last = page_of({one: "passed", other: "passed"}, "", "today")
    assert "| 2 | passed | today |" in dict(rows_of(last))[row.key]
    assert page_of({one: "passed"}, last, "later") == last


def test_long_form_is_counted_in_a_line_of_its_own() -> None:
    row = next(row for row in ROWS if row.long and len(row.tests) == 1)
    short, long = f"{row.tests[0].path}::test_a[short]", f"{row.tests[0].path}::test_a[long]"
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
    row = next(row for row in ROWS if row.long and len(row.tests) == 1)
    assert row.long_row is not None
    monkeypatch.setattr("tests.compatibility.PAGE", tmp_path / "page.md")
    monkeypatch.setattr("tests.compatibility._commit", lambda: "abc")
    plugin = Plugin()
    for name, is_long in (("test_a[long]", False), ("test_a[2]", True)):
        test = f"{row.tests[0].path}::{name}"
        plugin.pytest_runtest_logreport(
            pytest.TestReport(
                test, ("", 1, ""), {"long": 1}, "passed", None, "call", is_long=is_long
            )
        )
    plugin.pytest_sessionfinish()
    found = dict(rows_of((tmp_path / "page.md").read_text()))
    assert "| 1 | passed | " in found[row.key]
    assert "| 1 | passed | " in found[row.long_row.key]
