"""The table and the line of requests, played as stories with golden replies."""

from __future__ import annotations

from pathlib import Path

import pytest

from plog._native.request_stages import TRANSITIONS, Event, Stage
from tests.scenarios.request_script import RequestScript
from tests.scenarios.script import run

SCENARIOS = sorted((Path(__file__).parent / "requests").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_request_scenario_plays_as_written(path: Path, request: pytest.FixtureRequest) -> None:
    run(path, RequestScript(), rewrite=request.config.getoption("--rewrite"))


def test_scenarios_walk_every_row_of_the_table() -> None:
    walked: set[tuple[Stage, Event]] = set()
    for path in SCENARIOS:
        script = RequestScript()
        run(path, script, rewrite=False)
        walked.update(*(reactor.walked for reactor in script.reactors))
    rows = {(stage, event) for stage, event, _, _ in TRANSITIONS}
    missing = [f"{stage.name} {event.name}" for stage, event in sorted(rows - walked)]
    assert not missing, "no scenario walks these rows: " + ", ".join(missing)
