"""docs/COMPATIBILITY.md has a row for all that is promised, and every row its tests."""

from __future__ import annotations

import re

import pytest

from tests.compatibility import PAGE, ROOT, ROWS, Row, Shown, page_of, rows_of

ids = [" ".join(row.key) for row in ROWS]


def test_page_has_the_rows_and_none_failed() -> None:
    found = dict(rows_of(PAGE.read_text()))
    assert list(found) == [row.key for row in ROWS]
    for row in ROWS:
        result = found[row.key].split("|")[6].strip()
        assert result == (f"not yet: {row.lacks}" if row.lacks else "passed")


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_row_has_tests_or_says_what_it_lacks(row: Row) -> None:
    assert bool(row.tests) != bool(row.lacks)
    for tests in row.tests:
        path, _, name = tests.path.partition("::")
        assert (ROOT / path).exists()
        assert not name or re.search(rf"^def {name}\b", (ROOT / path).read_text(), re.MULTILINE)


def test_tests_are_told_by_file_function_and_parameters() -> None:
    some = Shown("tests/a.py::test_one", ("kafka-python",))
    assert some.has("tests/a.py::test_one[fast-kafka-python-lz4]")
    assert not some.has("tests/a.py::test_one[fast-kafka-python2]")
    assert not some.has("tests/a.py::test_other[fast-kafka-python-lz4]")
    assert Shown("tests/a.py").has("tests/a.py::test_one")
    assert Shown("tests/a").has("tests/a/b.py::test_one[x]")
    assert not Shown("tests/a").has("tests/ab.py::test_one")


def test_failure_is_told_and_what_did_not_run_stays() -> None:
    shown = next(row for row in ROWS if row.tests and not row.tests[0].words)
    test = shown.tests[0].path
    once = dict(rows_of(page_of({test: "passed"}, "", "today")))
    failed = page_of({test: "failed", f"{test}[2]": "passed"}, PAGE.read_text(), "later")
    assert "| 1 | passed | today |" in once[shown.key]
    assert "| 2 | 1 failed, 1 passed | later |" in dict(rows_of(failed))[shown.key]
    others = [key for key, line in rows_of(failed) if line == dict(rows_of(PAGE.read_text()))[key]]
    assert len(others) == len(ROWS) - 1
