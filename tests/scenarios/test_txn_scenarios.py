"""The machine of a transactional id, told as stories with golden replies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.script import run
from tests.scenarios.txn_script import TxnScript

SCENARIOS = sorted((Path(__file__).parent / "transactions").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_transaction_scenario_plays_as_written(path: Path, request: pytest.FixtureRequest) -> None:
    run(path, TxnScript(), rewrite=request.config.getoption("--rewrite"))
