"""The machine of a classic group, told as stories with golden replies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.classic_script import ClassicScript
from tests.scenarios.script import run

SCENARIOS = sorted((Path(__file__).parent / "classic_groups").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_classic_group_scenario_plays_as_written(
    path: Path, request: pytest.FixtureRequest
) -> None:
    run(path, ClassicScript(), rewrite=request.config.getoption("--rewrite"))
