"""The machine of a consumer group (KIP-848), told as stories with golden replies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.consumer_script import ConsumerScript
from tests.scenarios.script import run

SCENARIOS = sorted((Path(__file__).parent / "consumer_groups").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_consumer_group_scenario_plays_as_written(
    path: Path, request: pytest.FixtureRequest
) -> None:
    run(path, ConsumerScript(), rewrite=request.config.getoption("--rewrite"))
