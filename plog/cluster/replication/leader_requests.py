"""What a follower asks its leader, in the newest version that both know.

Owns the form of the requests and of their answers. A leader whose Fetch is older than version 12
says no diverging epochs: it is asked where an epoch ends instead (KIP-101, KIP-320). Decides
nothing about logs, and retries nothing.

Used by one thread, the fetcher's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from plog.cluster.peer_link import PeerLink
from plog.cluster.replication.fetch_decisions import Answer, Asked, Range
from plog.cluster.replication.fetch_session import Fetchable, FetchSession, SessionRequest
from plog.cluster.replication.followed import Followed
from plog.errors import ErrorCode, error_for
from plog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from plog.protocol.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from plog.storage.leader_epochs import EpochEnd
from plog.types import TopicPartition

FETCH_VERSION: Final = 17
DIVERGENCE_SINCE: Final = 12
IDS_SINCE: Final = 13
"""Before, topics go by their names."""
BROKER_EPOCHS_SINCE: Final = 15
EARLIEST: Final = -2
LATEST: Final = -1
ERROR_CODES: Final = frozenset(ErrorCode)


class Limits(NamedTuple):
    """Limits of a fetch: the settings `replica.fetch.*`."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    backoff_ms: int
    """The longest pause after a failure."""


class Asking(NamedTuple):
    """A partition in a request."""

    followed: Followed
    asked: Asked
    log_start_offset: int


class LeaderRequests:
    """The requests to one leader.

    Args:
        leader: its broker id.
        link: the way to it.
        who: this broker, with the epoch of its registration of now.

    Every method raises PlogError if there is no answer.
    """

    def __init__(
        self, leader: int, link: PeerLink, *, limits: Limits, who: Callable[[], ReplicaState]
    ) -> None:
        self._leader = leader
        self._link = link
        self._limits = limits
        self._who = who
        self._session = FetchSession()
        self._ids: dict[str, uuid.UUID] = {}
        """Of the topics that were asked for by their names."""

    def end_session(self) -> None:
        """Open a new fetch session with the next fetch."""
        self._session.end()

    def says_divergence(self) -> bool:
        """Return whether the leader's answers to fetches say where a log parts from its own."""
        return self._fetch_version() >= DIVERGENCE_SINCE

    def _fetch_version(self) -> int:
        return self._link.version_for(FetchRequest, at_most=FETCH_VERSION)

    def fetch(
        self, asking: Mapping[Fetchable, Asking], max_wait_ms: int
    ) -> Iterator[tuple[Asking, PartitionData]]:
        """Fetch; yield the answers. Some partitions of the session may have none."""
        version = self._fetch_version()
        if version < IDS_SINCE:
            self._note_names(asking.values())
        session = self._session.request(
            {
                name: FetchPartition(
                    partition=name.partition,
                    current_leader_epoch=one.asked.leader_epoch,
                    fetch_offset=one.asked.position,
                    last_fetched_epoch=one.asked.last_epoch if version >= DIVERGENCE_SINCE else -1,
                    log_start_offset=one.log_start_offset,
                    partition_max_bytes=self._limits.partition_max_bytes,
                )
                for name, one in asking.items()
            }
        )
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=self._limits.min_bytes,
            max_bytes=self._limits.max_bytes,
            session_id=session.session_id,
            session_epoch=session.session_epoch,
            topics=session.topics,
            forgotten_topics_data=session.forgotten,
        )
        if version < IDS_SINCE:
            self._name_topics(session)
        if version >= BROKER_EPOCHS_SINCE:
            request.replica_state = self._who()
        else:
            request.replica_id = self._who().replica_id
        response = self._link.call(request, FetchResponse, at_most=version)
        goes_on = self._session.answered(response.error_code, response.session_id)
        if not goes_on and response.error_code != ErrorCode.NONE:
            raise error_for(response.error_code, f"fetch from broker {self._leader}")
        return self._answers(asking, response)

    def _answers(
        self, asking: Mapping[Fetchable, Asking], response: FetchResponse
    ) -> Iterator[tuple[Asking, PartitionData]]:
        for topic in response.responses:
            topic_id = self._ids.get(topic.topic, topic.topic_id)
            for answer in topic.partitions:
                one = asking.get(Fetchable(topic_id, answer.partition_index))
                if one is not None:  # otherwise it is of this session, but waits
                    yield one, answer

    def _note_names(self, asking: Iterable[Asking]) -> None:
        """Note how topics are named. A new topic of an old one's name needs another session."""
        for one in asking:
            name, topic_id = one.followed.at.topic, one.followed.partition.topic_id
            if self._ids.setdefault(name, topic_id) != topic_id:
                self._ids[name] = topic_id
                self._session.end()

    def _name_topics(self, session: SessionRequest) -> None:
        names = {topic_id: name for name, topic_id in self._ids.items()}
        for topic in session.topics:
            topic.topic = names[topic.topic_id]
        for forgotten in session.forgotten:
            forgotten.topic = names[forgotten.topic_id]

    def range_of(self, one: Asking) -> Range:
        """Return where the leader's log of a partition begins and ends."""
        return Range(self._list_offset(one, EARLIEST), self._list_offset(one, LATEST))

    def _list_offset(self, one: Asking, timestamp: int) -> int:
        at = one.followed.at
        request = ListOffsetsRequest(
            replica_id=self._who().replica_id,
            topics=[
                ListOffsetsTopic(
                    name=at.topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=at.partition,
                            current_leader_epoch=one.asked.leader_epoch,
                            timestamp=timestamp,
                        )
                    ],
                )
            ],
        )
        ((found,),) = (
            topic.partitions for topic in self._link.call(request, ListOffsetsResponse).topics
        )
        if found.error_code != ErrorCode.NONE:
            raise error_for(found.error_code, f"the range of {at} at broker {self._leader}")
        return found.offset

    def epoch_ends(
        self, asking: Collection[Asking]
    ) -> Iterator[tuple[Asking, EpochEnd | ErrorCode]]:
        """Yield where the last epoch of each log ends in the leader's, or why that is not known."""
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for one in asking:
            topics.setdefault(one.followed.at.topic, []).append(
                OffsetForLeaderPartition(
                    partition=one.followed.at.partition,
                    current_leader_epoch=one.asked.leader_epoch,
                    leader_epoch=one.asked.last_epoch,
                )
            )
        request = OffsetForLeaderEpochRequest(
            replica_id=self._who().replica_id,
            topics=[
                OffsetForLeaderTopic(topic=name, partitions=parts) for name, parts in topics.items()
            ],
        )
        answer = self._link.call(request, OffsetForLeaderEpochResponse)
        by_place = {one.followed.at: one for one in asking}
        for topic in answer.topics:
            for found in topic.partitions:
                place = TopicPartition(topic.topic, found.partition)
                if place in by_place:
                    yield by_place[place], _epoch_end(found)


def answer_of(data: PartitionData) -> Answer:
    """Return what the leader's answer to a fetch says about a log, beside the records."""
    diverging = data.diverging_epoch
    return Answer(
        _error(data.error_code),
        data.high_watermark,
        data.log_start_offset,
        None if diverging.end_offset < 0 else EpochEnd(diverging.epoch, diverging.end_offset),
    )


def _epoch_end(found: EpochEndOffset) -> EpochEnd | ErrorCode:
    error = _error(found.error_code)
    return EpochEnd(found.leader_epoch, found.end_offset) if error is ErrorCode.NONE else error


def _error(code: int) -> ErrorCode:
    return ErrorCode(code) if code in ERROR_CODES else ErrorCode.UNKNOWN_SERVER_ERROR
