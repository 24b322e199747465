"""What comes by an earlier connection than its sender's latest one is late."""

from __future__ import annotations

from plog.network.latest_connections import MAX_SENDERS, LatestConnections


def test_earlier_connection_is_late_once_a_later_one_was_used() -> None:
    known = LatestConnections()
    assert [known.is_late("a", number) for number in (3, 3, 5, 3, 4, 5)] == [
        False,
        False,
        False,
        True,
        True,
        False,
    ]


def test_senders_have_connections_of_their_own() -> None:
    known = LatestConnections()
    assert not known.is_late("a", 9)
    assert not known.is_late("b", 2)
    assert known.is_late("a", 8)


def test_senders_are_forgotten_once_there_are_too_many() -> None:
    known = LatestConnections()
    known.is_late("used", 9)
    known.is_late("idle", 9)
    for number in range(MAX_SENDERS - 1):
        known.is_late("used", 9)
        known.is_late(f"forged {number}", 1)
    assert known.is_late("used", 8)
    assert not known.is_late("idle", 8)
