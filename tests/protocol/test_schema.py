"""Declarations that contradict themselves are refused when made; instances are sound."""

import copy
import pickle

import pytest

from plog.protocol.messages.fetch import LeaderIdAndEpoch, PartitionData
from plog.protocol.messages.metadata import MetadataResponsePartition
from plog.protocol.schema import (
    DEFAULT,
    BadDeclaration,
    Int32,
    Records,
    String,
    Struct,
    Versions,
    field,
    message,
    parse_versions,
)
from tests.protocol.schema_faults import FAULTS


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("0+", Versions(0, 32767)),
        ("3-7", Versions(3, 7)),
        ("2", Versions(2, 2)),
        (None, Versions(0, -1)),
    ],
)
def test_ranges_of_versions_are_read_and_written(text, span):
    assert parse_versions(text) == span
    assert str(span) == (text or "none")


@pytest.mark.parametrize(
    "text", ["", "+", "3-", "-3", "7-3", "1-2+", "a", "1,3", "40000", "0-40000"]
)
def test_anything_else_is_no_range_of_versions(text):
    with pytest.raises(BadDeclaration):
        parse_versions(text)


@pytest.mark.parametrize(("words", "declare"), FAULTS, ids=[words for words, _ in FAULTS])
def test_contradictory_declaration_is_refused(words, declare):
    with pytest.raises(BadDeclaration, match=words):
        declare()


def _partition(**changes: object) -> PartitionData:
    values = {"partition_index": 1, "error_code": 0, "high_watermark": 5, "records": None}
    return PartitionData(**values | changes)  # type: ignore[arg-type]


def test_constructor_demands_fields_without_default():
    with pytest.raises(TypeError, match="high_watermark"):
        PartitionData(partition_index=1, error_code=0, records=None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="leader_ids"):
        LeaderIdAndEpoch(leader_ids=3)  # type: ignore[call-arg]


def test_misspelt_attribute_is_refused():
    with pytest.raises(AttributeError):
        _partition().high_water_mark = 4  # type: ignore[attr-defined]


def test_lists_of_two_instances_are_not_shared():
    first, second = (
        MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=1, replica_nodes=[], isr_nodes=[]
        )
        for _ in range(2)
    )
    first.offline_replicas.append(3)
    assert second.offline_replicas == []


def test_shared_default_structure_refuses_to_be_changed():
    partition = _partition()
    with pytest.raises(AttributeError, match="assign a new LeaderIdAndEpoch"):
        partition.current_leader.leader_id = 4
    partition.current_leader = LeaderIdAndEpoch(leader_id=4)
    assert _partition().current_leader == LeaderIdAndEpoch(leader_id=-1)


def test_equality_is_by_fields_and_hashing_refused():
    assert _partition() == _partition(current_leader=LeaderIdAndEpoch())
    assert _partition() != _partition(high_watermark=6)
    assert _partition() != 3
    with pytest.raises(TypeError):
        hash(_partition())


def test_instances_are_shown_copied_and_pickled():
    partition = _partition(current_leader=LeaderIdAndEpoch(leader_id=4))
    assert "high_watermark=5" in repr(partition)
    assert copy.deepcopy(partition) == partition
    assert pickle.loads(pickle.dumps(partition)) == partition


def test_copy_of_a_shared_default_may_be_changed():
    for made in (copy.deepcopy(_partition()), pickle.loads(pickle.dumps(_partition()))):
        made.current_leader.leader_id = 4
    assert _partition().current_leader.leader_id == -1


def test_structure_without_fields_takes_none():
    @message(versions="0")
    class Nothing(Struct):
        pass

    assert Nothing() == Nothing()
    with pytest.raises(TypeError):
        Nothing(a=1)  # type: ignore[call-arg]


def test_field_added_later_and_dropped_is_declared_by_one_range():
    @message(versions="0-9", flexible="6+")
    class Middle(Struct):
        """Only some versions have it."""

        old: String = field("Gone in v4.", versions="0-3", default="")
        records: Records | None = field("Records.", nullable="2-5", versions="2-5", default=None)
        new: Int32 = field("A tag.", versions="6+", default=DEFAULT, tag=0)

    assert [f.versions for f in Middle.fields] == [
        Versions(0, 3),
        Versions(2, 5),
        Versions(6, 32767),
    ]
