"""Members of an in-sync set that come back, of which the first has lost its records."""

from __future__ import annotations

from plog.types import TopicPartition
from tests.scenarios.controller_script import ControllerScript

A0 = TopicPartition("a", 0)
ALL_HAVE_DIED = (
    "brokers 1@11",
    "topic a 0=0,1,2",
    "state a-0 leader=0 epoch=3 isr=0,1,2 version=5",
    "failover 2",
    "took-up 1 offline=a-0",
)
"""Only 1 is back, and its log is gone or damaged."""


def play(*commands: str) -> ControllerScript:
    script = ControllerScript()
    for command in commands:
        script(command.split())
    return script


def test_member_without_its_records_does_not_lead() -> None:
    assert play(*ALL_HAVE_DIED).states[A0].leader == -1


def test_other_members_lead_once_they_are_back() -> None:
    """Both have all acknowledged records."""
    script = play(*ALL_HAVE_DIED, "brokers 0@20 1@11 2@22")
    assert script.states[A0].leader in (0, 2)
