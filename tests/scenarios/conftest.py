"""`--rewrite` replaces the golden replies of scenarios by what the code answers now."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite golden replies of scenarios")
