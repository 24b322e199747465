"""In-sync sets as their leader keeps them, as stories with golden replies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.in_sync_script import InSyncScript
from tests.scenarios.script import run

SCENARIOS = sorted((Path(__file__).parent / "in_sync_sets").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_in_sync_scenario_plays_as_written(path: Path, request: pytest.FixtureRequest) -> None:
    run(path, InSyncScript(), rewrite=request.config.getoption("--rewrite"))
