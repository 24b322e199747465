"""docs/REQUESTS.md is what the table of requests says."""

from pathlib import Path

from plog._native.request_line import Step
from plog._native.request_stages import TRANSITIONS, Event, Stage
from plog.ops import request_docs

PAGE = Path(__file__).parents[2] / "docs" / "REQUESTS.md"


def test_page_is_what_the_table_says():
    assert PAGE.read_text(encoding="utf-8") == request_docs.page(), (
        "run: python -m plog.ops.request_docs docs/REQUESTS.md"
    )


def test_every_stage_and_step_has_its_line():
    last = max(request_docs.STAGES)
    assert list(request_docs.STAGES) == [stage for stage in Stage if stage <= last]
    assert {after for _, _, after, _ in TRANSITIONS} <= set(request_docs.STAGES)
    assert list(request_docs.STEPS) == list(Step)


def test_every_row_has_its_line():
    page = request_docs.page()
    for stage, event, after, _ in TRANSITIONS:
        if event not in request_docs.IN_NO_TABLE:
            section = page.split(f"### {stage.name}\n")[1].split("\n### ")[0]
            assert f"| {event.name} | {after.name} |" in section


def test_stages_in_which_a_request_is_dropped_are_those_of_the_table():
    head = request_docs.page().split("is dropped then:\n  ")[1].split(". ")[0]
    left = {stage.name for stage, event, _, _ in TRANSITIONS if event == Event.CLIENT_LEFT}
    assert set(head.split(", ")) == left
    closed = {stage for stage, event, _, _ in TRANSITIONS if event == Event.CLOSED}
    assert closed <= {stage for stage in request_docs.STAGES if stage != Stage.OVER}
