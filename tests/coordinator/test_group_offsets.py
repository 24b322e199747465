"""What a group has committed: the order of the log decides, and transactions wait for markers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plog.coordinator.group_log import CommittedOffset
from plog.coordinator.group_offsets import GroupOffsets
from plog.types import TopicPartition

AT, OTHER = TopicPartition("t", 0), TopicPartition("u", 1)
DAY_MS = 86_400_000


def committed(offset: int, at_ms: int = 0, expires_ms: int = -1) -> CommittedOffset:
    return CommittedOffset(offset, committed_ms=at_ms, expires_ms=expires_ms)


def test_the_later_commit_stands_whichever_is_heard_of_first() -> None:
    offsets = GroupOffsets()
    offsets.commit(AT, committed(20), position=5)
    offsets.commit(AT, committed(10), position=4)
    assert offsets.get(AT) == committed(20)


def test_a_deletion_leaves_a_later_commit() -> None:
    offsets = GroupOffsets()
    offsets.commit(AT, committed(20), position=5)
    offsets.forget(AT, position=4)
    assert offsets.get(AT) == committed(20)
    offsets.forget(AT, position=6)
    assert offsets.get(AT) is None


def test_a_transactions_commit_stands_where_it_was_written() -> None:
    offsets = GroupOffsets()
    offsets.commit_in_transaction(7, AT, committed(10), position=1)
    assert offsets.is_undecided(AT)
    assert not offsets.is_undecided(OTHER)
    assert offsets.get(AT) is None
    offsets.commit(AT, committed(20), position=2)
    offsets.end_transaction(7, is_commit=True)
    assert offsets.get(AT) == committed(20)
    assert not offsets.is_undecided(AT)


def test_an_aborted_transaction_commits_nothing() -> None:
    offsets = GroupOffsets()
    offsets.commit_in_transaction(7, AT, committed(10), position=1)
    offsets.end_transaction(7, is_commit=False)
    offsets.end_transaction(8, is_commit=True)
    assert offsets.get(AT) is None
    assert offsets.is_forgettable


def expired(offsets: GroupOffsets, now_ms: int, **given: object) -> list[TopicPartition]:
    asked: dict = {"unused_since_ms": -1, "but_topics": ()} | given
    return offsets.expired(now_ms, DAY_MS, **asked)


def test_a_deletion_is_of_what_is_undecided_before_it() -> None:
    offsets = GroupOffsets()
    offsets.commit_in_transaction(7, AT, committed(10), position=1)
    offsets.commit_in_transaction(8, AT, committed(20), position=3)
    offsets.commit_in_transaction(8, OTHER, committed(30), position=4)
    offsets.commit(OTHER, committed(5), position=0)
    assert offsets.partitions == [OTHER, AT]
    offsets.forget(AT, position=2)
    offsets.end_transaction(7, is_commit=True)
    assert offsets.get(AT) is None
    offsets.end_transaction(8, is_commit=True)
    assert offsets.get(AT) == committed(20)
    assert offsets.get(OTHER) == committed(30)


def test_a_group_all_of_whose_offsets_were_deleted_is_forgettable() -> None:
    offsets = GroupOffsets()
    offsets.commit_in_transaction(7, AT, committed(10), position=1)
    offsets.forget(AT, position=2)
    assert offsets.is_forgettable
    assert not offsets.is_undecided(AT)


def test_offsets_expire_once_the_group_is_empty_for_long() -> None:
    offsets = GroupOffsets()
    offsets.commit(AT, committed(1, at_ms=1_000), position=0)
    assert expired(offsets, DAY_MS + 999) == []
    assert expired(offsets, DAY_MS + 1_000) == [AT]
    assert expired(offsets, DAY_MS + 1_000, unused_since_ms=5_000) == []
    assert expired(offsets, DAY_MS + 5_000, unused_since_ms=5_000) == [AT]


def test_what_members_want_never_expires() -> None:
    offsets = GroupOffsets()
    offsets.commit(AT, committed(1), position=0)
    offsets.commit(OTHER, committed(1), position=1)
    assert expired(offsets, 9 * DAY_MS, but_topics={"t"}) == [OTHER]


def test_an_offset_with_a_time_of_its_own_expires_then() -> None:
    offsets = GroupOffsets()
    offsets.commit(AT, committed(1, expires_ms=50), position=0)
    assert expired(offsets, 49) == []
    assert expired(offsets, 50, unused_since_ms=40) == [AT]


def test_what_is_about_to_be_committed_does_not_expire() -> None:
    offsets = GroupOffsets()
    offsets.commit(AT, committed(1), position=0)
    with offsets.committing([AT, AT]):
        assert expired(offsets, 9 * DAY_MS) == []
    assert expired(offsets, 9 * DAY_MS) == [AT]
    offsets.commit_in_transaction(7, AT, committed(2), position=1)
    assert expired(offsets, 9 * DAY_MS) == []


def test_a_group_that_is_about_to_commit_is_not_forgotten() -> None:
    offsets = GroupOffsets()
    with offsets.committing([AT]):
        assert not offsets.is_forgettable
    assert offsets.is_forgettable


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.sampled_from([AT, OTHER]), st.booleans()), max_size=20
    )
)
def test_the_end_is_the_same_in_every_order(events: list[tuple[int, TopicPartition, bool]]) -> None:
    """Commits alone, as deletions wait for those before them."""
    commits = list({position: (position, at) for position, at, _ in events}.values())
    forward, backward = GroupOffsets(), GroupOffsets()
    for position, at in commits:
        forward.commit(at, committed(position), position)
    for position, at in reversed(commits):
        backward.commit(at, committed(position), position)
    assert dict(forward) == dict(backward)
