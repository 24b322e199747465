"""IncrementalAlterConfigs' operations on what is set."""

from __future__ import annotations

import pytest

from plog.errors import InvalidRequest
from plog.settings import BrokerSettings, TopicSettings
from plog.settings.alterations import Alteration, alter

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
COMPACTED = TopicSettings(BrokerSettings({"log.cleanup.policy": "compact"}))

CASES = [
    ({}, [], {}),
    ({"a": "1"}, [("b", SET, "2")], {"a": "1", "b": "2"}),
    ({"a": "1"}, [("a", SET, "2")], {"a": "2"}),
    ({"a": "1"}, [("a", DELETE, None)], {}),
    ({"a": "1"}, [("b", DELETE, "ignored")], {"a": "1"}),
    ({}, [("cleanup.policy", APPEND, "delete")], {"cleanup.policy": "compact,delete"}),
    ({}, [("cleanup.policy", APPEND, "compact")], {"cleanup.policy": "compact"}),
    (
        {"cleanup.policy": "delete"},
        [("cleanup.policy", APPEND, "compact,delete")],
        {"cleanup.policy": "delete,compact"},
    ),
    ({}, [("cleanup.policy", SUBTRACT, "compact")], {"cleanup.policy": ""}),
    (
        {"cleanup.policy": "delete, compact"},
        [("cleanup.policy", SUBTRACT, "delete")],
        {"cleanup.policy": "compact"},
    ),
]


@pytest.mark.parametrize(("before", "alterations", "after"), CASES)
def test_alterations_give_what_is_set_after(before, alterations, after):
    kept = dict(before)
    altered, faults = alter(before, COMPACTED, [Alteration(*each) for each in alterations])
    assert (altered, faults) == (after, [])
    assert before == kept


@pytest.mark.parametrize(
    ("alterations", "error", "reason"),
    [
        ([("a", SET, "1"), ("a", DELETE, None)], InvalidRequest, "a appears twice"),
        ([("a", SET, None)], InvalidRequest, "a has no value in the request"),
        ([("cleanup.policy", APPEND, None)], InvalidRequest, "has no value"),
        ([("a", 4, "1")], InvalidRequest, "4 is not an operation"),
    ],
)
def test_wrong_alteration_is_refused(alterations, error, reason):
    with pytest.raises(error, match=reason):
        alter({}, COMPACTED, [Alteration(*each) for each in alterations])


def test_every_list_that_cannot_be_altered_is_named_and_left_as_it_was():
    alterations = [
        ("a", APPEND, "1"),
        ("retention.ms", SUBTRACT, "1"),
        ("leader.replication.throttled.replicas", APPEND, "4"),
        ("segment.bytes", SET, "7"),
    ]
    before = {"retention.ms": "9"}
    altered, faults = alter(before, COMPACTED, [Alteration(*each) for each in alterations])
    assert altered == {"retention.ms": "9", "segment.bytes": "7"}
    assert [fault.key for fault in faults] == [one[0] for one in alterations[:3]]
