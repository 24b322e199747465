"""Leaders that a fetcher asks: real logs, answered from without a broker or a connection."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from plog._native.batch import read_header
from plog.cluster.replication.leader_requests import (
    DIVERGENCE_SINCE,
    FETCH_VERSION,
    IDS_SINCE,
)
from plog.errors import ErrorCode, NetworkException
from plog.protocol import codec
from plog.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from plog.protocol.messages.offsets import EpochEndOffset as OffsetEpochEnd
from plog.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from plog.protocol.schema import Struct
from plog.storage.leader_epochs import UnknownEpoch
from plog.storage.log import Log
from tests.storage.storage_logs import read_all

T = TypeVar("T", bound=Struct)
SESSION = 77
LATEST, EARLIEST = -1, -2


@dataclass
class Leader:
    """A broker that leads some logs, and the way to it.

    Attributes:
        most_bytes: of a partition in a response. The last batch is cut there, the first is whole.
        change: makes another answer of one.
    """

    logs: dict[tuple[uuid.UUID, int], Log] = field(default_factory=dict)
    names: dict[str, uuid.UUID] = field(default_factory=dict)
    most_bytes: int = 1 << 20
    change: Callable[[PartitionData], PartitionData] = lambda answer: answer
    is_away: bool = False
    session_error: ErrorCode = ErrorCode.NONE
    has_sessions: bool = True
    fetch_version: int = FETCH_VERSION
    """The newest that it knows."""
    requests: list[FetchRequest] = field(default_factory=list)
    epochs_asked: int = 0
    _session: dict[tuple[uuid.UUID, int], FetchPartition] = field(default_factory=dict)
    _epoch: int = 0

    # -- the way to it -----------------------------------------------------------------------

    def version_for(self, request: type[Struct], *, at_most: int) -> int:
        if self.is_away:
            raise NetworkException("no route")
        return min(self.fetch_version, at_most)

    def call(
        self, request: Struct, response: type[Struct], *, at_most: int | None = None
    ) -> Struct:
        if self.is_away:
            raise NetworkException("no route")
        if isinstance(request, ListOffsetsRequest):
            return self._offsets(request)
        if isinstance(request, OffsetForLeaderEpochRequest):
            return self._epoch_ends(request)
        assert isinstance(request, FetchRequest)
        assert at_most == self.fetch_version
        self.requests.append(request)
        return self._through_the_wire(self._fetch(self._through_the_wire(request)))

    def _through_the_wire(self, message: T) -> T:
        data = memoryview(codec.encode(message, self.fetch_version))
        return codec.decode(type(message), self.fetch_version, data, 0)[0]

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass

    # -- answers -----------------------------------------------------------------------------

    def _fetch(self, request: FetchRequest) -> FetchResponse:
        if self.session_error:
            error, self.session_error = self.session_error, ErrorCode.NONE
            return FetchResponse(error_code=error, session_id=0, responses=[])
        asked = {
            (self._id_of(topic), part.partition): part
            for topic in request.topics
            for part in topic.partitions
        }
        if request.session_epoch == 0:
            assert request.session_id == 0
            self._session, self._epoch = asked, 0
        else:
            assert (request.session_id, request.session_epoch) == (SESSION, self._epoch)
            self._session |= asked
            for topic in request.forgotten_topics_data:
                for index in topic.partitions:
                    del self._session[self._id_of(topic), index]
        self._epoch += 1
        return FetchResponse(
            session_id=SESSION if self.has_sessions else 0,
            responses=[
                FetchableTopicResponse(**self._named(one[0]), partitions=[self.change(answer)])
                for one, answer in self._answers()
            ],
        )

    def _id_of(self, topic: FetchTopic | ForgottenTopic) -> uuid.UUID:
        return self.names[topic.topic] if self.fetch_version < IDS_SINCE else topic.topic_id

    def _named(self, topic_id: uuid.UUID) -> dict[str, Any]:
        if self.fetch_version >= IDS_SINCE:
            return {"topic_id": topic_id}
        (name,) = (name for name, one in self.names.items() if one == topic_id)
        return {"topic": name}

    def _answers(self) -> Iterator[tuple[tuple[uuid.UUID, int], PartitionData]]:
        for one, asked in self._session.items():
            yield one, self._answer(self.logs[one], asked)

    def _answer(self, log: Log, asked: FetchPartition) -> PartitionData:
        answer = PartitionData(
            partition_index=asked.partition,
            error_code=ErrorCode.NONE,
            high_watermark=log.high_watermark,
            log_start_offset=log.log_start_offset,
            records=b"",
        )
        if (refusal := _refusal(asked.current_leader_epoch, log)) != ErrorCode.NONE:
            answer.error_code = refusal
            return answer
        diverging = None
        try:
            if self.fetch_version >= DIVERGENCE_SINCE:
                diverging = log.divergence(asked.last_fetched_epoch, asked.fetch_offset)
        except UnknownEpoch:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return answer
        if diverging is not None:
            answer.diverging_epoch = EpochEndOffset(
                epoch=diverging.epoch, end_offset=diverging.end_offset
            )
        elif not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        elif asked.fetch_offset < log.log_end_offset:
            data = read_all(log, asked.fetch_offset)
            first = read_header(data).size_bytes
            answer.records = data[: max(first, self.most_bytes)]
        return answer

    def _epoch_ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        assert self.fetch_version < DIVERGENCE_SINCE, "its fetches say it"
        self.epochs_asked += 1
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[self._epoch_end(topic.topic, part) for part in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _epoch_end(self, topic: str, asked: OffsetForLeaderPartition) -> OffsetEpochEnd:
        log = self.logs[self.names[topic], asked.partition]
        answer = OffsetEpochEnd(partition=asked.partition, error_code=ErrorCode.NONE)
        answer.error_code = _refusal(asked.current_leader_epoch, log)
        if answer.error_code == ErrorCode.NONE:
            answer.leader_epoch, answer.end_offset = log.epoch_end_offset(asked.leader_epoch)
        return answer

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        ((part,),) = (topic.partitions for topic in request.topics)
        log = self.logs[self.names[request.topics[0].name], part.partition_index]
        offset = log.log_end_offset if part.timestamp == LATEST else log.log_start_offset
        answer = ListOffsetsPartitionResponse(
            partition_index=part.partition_index,
            error_code=ErrorCode.NONE,
            old_style_offsets=[],
            offset=offset,
        )
        return ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(name=request.topics[0].name, partitions=[answer])]
        )


def _refusal(leader_epoch: int, log: Log) -> ErrorCode:
    if leader_epoch == log.native.leader_epoch:
        return ErrorCode.NONE
    older = leader_epoch < log.native.leader_epoch
    return ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
