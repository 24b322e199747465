"""docs/RENAMED.md: pages that are no part of the checkout find the names that they use."""

from __future__ import annotations

import pytest

from tests import renamed
from tests.renamed import DOCUMENT


def test_recorded_names_exist_or_are_listed_as_renamed() -> None:
    assert renamed.missing(renamed.recorded()) == []


def test_new_names_exist() -> None:
    """Those of a row that names something of plog: an old name never comes back as a new one."""
    new = {name for _, names in renamed.rows() for name in names}
    assert new - renamed.defined_now() == set()


def test_name_that_is_gone_is_missing_until_it_is_listed(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = next(name for name in sorted(renamed.renamed() - renamed.defined_now()))
    assert renamed.missing([listed, "defined_now"]) == []
    page = tmp_path / "RENAMED.md"
    lines = DOCUMENT.read_text("utf-8").splitlines(keepends=True)
    page.write_text("".join(line for line in lines if listed not in line), encoding="utf-8")
    monkeypatch.setattr(renamed, "DOCUMENT", page)
    assert renamed.missing([listed, "defined_now"]) == [listed]
