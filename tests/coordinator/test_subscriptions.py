"""What members want, as far as the broker can tell."""

from __future__ import annotations

import struct

import pytest

from plog.client.assignors import RANGE, Subscription, encode_subscription
from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_events import Protocol
from plog.coordinator.subscriptions import subscribed_topics
from plog.protocol.framing import MOST_REQUEST_ELEMENTS
from tests.coordinator.group_play import Play


def group_of(*told: bytes, protocol_type: str = "consumer") -> ClassicGroup:
    """Return a group that is about to form, whose members have told this."""
    play = Play()
    for metadata in told:
        play.join(
            must_know_id=False,
            protocol_type=protocol_type,
            protocols=(Protocol("range", metadata),),
        )
    group = play.group
    group.protocol_name = "range"
    return group


def wanting(*topics: str) -> bytes:
    return encode_subscription(Subscription(topics), RANGE)


def test_topics_of_all_members_are_wanted() -> None:
    assert subscribed_topics(group_of(wanting("a", "b"), wanting("b", "c"))) == {"a", "b", "c"}


def test_newer_version_is_read_as_the_newest_that_is_known() -> None:
    told = struct.pack(">h", 99) + struct.pack(">ih1s", 1, 1, b"t") + b"\xff\xff\xff\xff"
    told += struct.pack(">iih", 0, -1, -1) + b"more"
    assert subscribed_topics(group_of(told)) == {"t"}


@pytest.mark.parametrize("told", [b"", b"\0", b"\0\0", b"\xff\xff\0\0\0\0", wanting("t")[:-1]])
def test_what_is_no_subscription_says_nothing_of_the_whole_group(told: bytes) -> None:
    assert subscribed_topics(group_of(wanting("t"), told)) is None


def test_groups_that_are_not_of_consumers_say_nothing() -> None:
    assert subscribed_topics(group_of(wanting("t"), protocol_type="connect")) is None


@pytest.mark.parametrize(("count", "expected"), [(0, {""}), (1, None)])
def test_more_topics_than_a_request_may_name_are_not_read(
    count: int, expected: set[str] | None
) -> None:
    # Two bytes each; what they become takes many times as much.
    count += MOST_REQUEST_ELEMENTS
    told = struct.pack(">hi", 0, count) + bytes(2 * count) + b"\xff\xff\xff\xff"
    assert subscribed_topics(group_of(told)) == expected
