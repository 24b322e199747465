"""The controller's machine, told as stories with golden replies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.controller_script import ControllerScript
from tests.scenarios.script import run

SCENARIOS = sorted((Path(__file__).parent / "controller").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_controller_scenario_plays_as_written(path: Path, request: pytest.FixtureRequest) -> None:
    run(path, ControllerScript(), rewrite=request.config.getoption("--rewrite"))
