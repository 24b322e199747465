"""The format of the records of `__consumer_offsets`.

Owns the versions to write (those of Kafka 3.9, which older and newer brokers read), and reading all
versions that Kafka has ever written. Keys of unknown types are ignored, so that a broker can start
with the records of a newer release.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_events import Protocol
from plog.coordinator.group_states import GroupState
from plog.coordinator.roster import Member, Roster
from plog.coordinator.versioned import decode, encode, version_of
from plog.errors import CorruptRecord
from plog.protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from plog.types import NO_TIMESTAMP, ZERO_UUID, TopicPartition

OFFSET_KEYS, GROUP_KEY = (0, 1), 2
"""Versions of keys; the version is the type of the record."""
OFFSET_VALUE, EXPIRING_OFFSET_VALUE, GROUP_VALUE = 3, 1, 3
"""Versions of values to write."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset of a partition. Times in ms.

    `expires_ms` is the expiry that a client requested (OffsetCommit v2 to v4), or -1. Records have
    no `topic_id`: it is zero in offsets that were read from the log.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = NO_TIMESTAMP
    expires_ms: int = NO_TIMESTAMP
    topic_id: uuid.UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """The record of a committed offset."""

    group: str
    topic_partition: TopicPartition


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The record of a group itself."""

    group: str


RecordKey: TypeAlias = OffsetKey | GroupKey


def decode_key(data: bytes) -> RecordKey | None:
    """Decode a record's key; return None for unknown types.

    Raises:
        CorruptRecord: the bytes are not a valid key.
    """
    version = version_of(data)
    if version in OFFSET_KEYS:
        found = decode(OffsetCommitKey, version, data)
        return OffsetKey(found.group, TopicPartition(found.topic, found.partition))
    if version == GROUP_KEY:
        return GroupKey(decode(GroupMetadataKey, version, data).group)
    return None


def encode_offset_key(group: str, at: TopicPartition) -> bytes:
    """Encode the key of a committed offset."""
    key = OffsetCommitKey(group=group, topic=at.topic, partition=at.partition)
    return encode(key, OFFSET_KEYS[-1])


def encode_group_key(group: str) -> bytes:
    """Encode the key of a group."""
    return encode(GroupMetadataKey(group=group), GROUP_KEY)


def encode_offset(committed: CommittedOffset) -> bytes:
    """Encode a committed offset; the version with an expiry time has no leader epoch."""
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.committed_ms,
        expire_timestamp=committed.expires_ms,
    )
    expires = committed.expires_ms != NO_TIMESTAMP
    return encode(value, EXPIRING_OFFSET_VALUE if expires else OFFSET_VALUE)


def decode_offset(data: bytes) -> CommittedOffset:
    """Decode a committed offset. Raises CorruptRecord."""
    found = decode(OffsetCommitValue, version_of(data), data)
    return CommittedOffset(
        found.offset,
        found.leader_epoch,
        found.metadata,
        found.commit_timestamp,
        found.expire_timestamp,
    )


def encode_group(group: ClassicGroup, assignments: Mapping[str, bytes], since_ms: int) -> bytes:
    """Encode a group with these assignments.

    Args:
        since_ms: the time when it entered its state.
    """
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.roster.leader or None,
        current_state_timestamp=since_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name),
                assignment=assignments.get(member.member_id, b""),
            )
            for member in group.roster
        ],
    )
    return encode(value, GROUP_VALUE)


def decode_group(group_id: str, data: bytes, *, initial_delay_ms: int = 0) -> ClassicGroup:
    """Decode a group: stable with its members, or empty. Raises CorruptRecord.

    The record has the members' metadata only for the chosen assignor.
    """
    found = decode(GroupMetadataValue, version_of(data), data)
    roster = Roster()
    for member in found.members:
        _check_is_another(member, roster)
        timeout_ms = member.rebalance_timeout
        roster.add(
            Member(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.session_timeout if timeout_ms < 0 else timeout_ms,
                session_timeout_ms=member.session_timeout,
                protocols=(Protocol(found.protocol or "", member.subscription),),
                assignment=member.assignment,
            )
        )
    if found.leader is not None and found.leader in roster:
        roster.leader = found.leader
    return ClassicGroup(
        group_id,
        initial_delay_ms,
        GroupState.STABLE if len(roster) else GroupState.EMPTY,
        found.generation,
        found.protocol_type or None,
        found.protocol,
        roster,
    )


def _check_is_another(member: MemberMetadata, roster: Roster) -> None:
    """Check that a member's id and instance are unique. Raises CorruptRecord."""
    if not member.member_id or member.member_id in roster:
        raise CorruptRecord(f"empty or duplicate member id: {member.member_id!r}")
    if roster.of_instance(member.group_instance_id) is not None:
        raise CorruptRecord(f"duplicate group instance id: {member.group_instance_id!r}")


def group_since_ms(data: bytes) -> int:
    """Return the time when a group entered its state, in ms; -1 in old records without it."""
    since_ms: int = decode(GroupMetadataValue, version_of(data), data).current_state_timestamp
    return since_ms
