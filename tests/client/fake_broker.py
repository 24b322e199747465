"""A broker made of Python functions, for what no real one does: silence, nonsense, bad luck.

One node, the leader of everything. A subclass or an instance sets `answers`: API key ->
function of (request, header) that returns a response, CLOSE, SILENCE, or bytes to send as they are.
"""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress

from plog._native import batch, records
from plog.client.assignors import encode_assignment
from plog.errors import ErrorCode
from plog.protocol import codec, framing
from plog.protocol.api_keys import ApiKey
from plog.protocol.framing import RequestHeader, request_class
from plog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from plog.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from plog.protocol.messages.groups import (
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from plog.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from plog.protocol.messages.offsets import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from plog.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from plog.protocol.messages.producers import InitProducerIdResponse
from plog.protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnResponse,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from plog.types import TopicPartition

CLOSE, SILENCE = object(), object()
SERVED = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.METADATA,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.API_VERSIONS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
)
TOPIC_ID = uuid.UUID(int=77)


class FakeBroker:
    """Listens on a free port; `with` starts and stops it."""

    def __init__(self, partitions: int = 1, host: str = "127.0.0.1") -> None:
        self.partitions = partitions
        self.served: tuple[ApiKey, ...] = SERVED
        self.requests: list[object] = []
        self.lots: dict[int, list[object]] = {}
        self.answers: dict[int, Callable] = {
            ApiKey.API_VERSIONS: self.api_versions,
            ApiKey.METADATA: self.metadata,
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
        }
        self._host = host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.port = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._next_producer_id = 1000
        self.lock = threading.Lock()

    @property
    def bootstrap(self) -> str:
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connected in list(self._sockets):
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    # -- answers

    def api_versions(self, _request, header: RequestHeader):
        return ApiVersionsResponse(
            error_code=0,
            api_keys=[
                ApiVersion(
                    api_key=key,
                    min_version=0,
                    max_version=request_class(key).api.versions.high,
                )
                for key in self.served
            ],
        )

    def metadata(self, request, header: RequestHeader):
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host=self._host, port=self.port, rack=None)],
            controller_id=1,
            cluster_id="fake",
            topics=[self.describe(topic.name) for topic in request.topics or ()],
        )

    def describe(self, name: str, error: int = 0, leader: int = 1) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            error_code=error,
            name=name,
            topic_id=TOPIC_ID,
            partitions=[]
            if error
            else [
                MetadataResponsePartition(
                    error_code=0,
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=0,
                    replica_nodes=[1],
                    isr_nodes=[1],
                )
                for index in range(self.partitions)
            ],
        )

    def init_producer_id(self, _request, header: RequestHeader):
        self._next_producer_id += 1
        return InitProducerIdResponse(
            throttle_time_ms=0,
            error_code=0,
            producer_id=self._next_producer_id,
            producer_epoch=0,
        )

    def _find(self, _request, code: int):
        return FindCoordinatorResponse(error_code=code, node_id=1, host=self._host, port=self.port)

    def _lucky(self, answer: Callable) -> Callable:
        """Have `answer(request, code)` say what `lots` has for it."""

        def answered(request, header: RequestHeader):
            lots = self.lots.get(header.api_key)
            code = lots.pop(0) if lots else 0
            return code if code in (CLOSE, SILENCE) else answer(request, code)

        return answered

    # -- bytes

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self._listener.accept()
                self._sockets.add(connected)
                threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        with suppress(OSError, EOFError), connected:
            while True:
                (size,) = struct.unpack(">i", _exactly(connected, 4))
                frame = _exactly(connected, size)
                header, pos = framing.decode_request_header(frame)
                request, _ = codec.decode(
                    request_class(header.api_key), header.api_version, frame, pos
                )
                with self.lock:
                    self.requests.append(request)
                    answer = self.answers[header.api_key](request, header)
                if answer is CLOSE:
                    return
                if answer is SILENCE:
                    continue
                if not isinstance(answer, bytes):
                    answer = encoded(answer, header)
                connected.sendall(answer)

    def count(self, kind: type) -> int:
        with self.lock:
            return sum(isinstance(request, kind) for request in self.requests)


def encoded(answer, header: RequestHeader, *, version: int | None = None) -> bytes:
    """A response as the wire has it."""
    version = header.api_version if version is None else version
    body = framing.encode_response_header(
        header.api_key, version, header.correlation_id
    ) + codec.encode(answer, version)
    return struct.pack(">i", len(body)) + body


def produced(request: ProduceRequest) -> list[bytes]:
    """The values of all its records."""
    return [
        record.value
        for topic in request.topic_data
        for part in topic.partition_data
        for record in records.walk(part.records)
    ]


def _exactly(connected: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connected.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


class Ledger:
    """A partition's log as a broker keeps it: sequences checked over the last five batches."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self._producers: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}

    def append(self, data) -> tuple[int, int]:
        """Return an error code and the base offset."""
        header = batch.check_batch(data)
        values = [record.value for record in records.walk(data)]
        if header.producer_id >= 0:
            epoch, known = self._producers.get(header.producer_id, (header.producer_epoch, None))
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > epoch:
                if header.base_sequence != 0:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                known = None
            for first, last, base_offset in known or ():
                if (first, last) == (header.base_sequence, header.last_sequence):
                    return ErrorCode.NONE, base_offset
            if known and header.base_sequence != known[-1][1] + 1:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            entry = (header.base_sequence, header.last_sequence, len(self.values))
            self._producers[header.producer_id] = (
                header.producer_epoch,
                [*(known or []), entry][-5:],
            )
        base_offset = len(self.values)
        self.values += values
        return ErrorCode.NONE, base_offset


class ProduceBroker(FakeBroker):
    """A broker that keeps ledgers. `luck(request)` says what befalls each Produce request:

    None (nothing), "before" (the connection breaks before it is appended), "after" (and after), or
    an error code and whether it is appended all the same.
    """

    def __init__(self, partitions: int = 1) -> None:
        super().__init__(partitions)
        self.ledgers = [Ledger() for _ in range(partitions)]
        self.luck: Callable = lambda _request: None
        self.answers[ApiKey.PRODUCE] = self.produce

    def produce(self, request, header: RequestHeader):
        luck = self.luck(request)
        if luck == "before":
            return CLOSE
        topics = []
        for topic in request.topic_data:
            parts = []
            for data in topic.partition_data:
                code, base_offset = luck[0] if luck else 0, -1
                if luck is None or luck == "after" or luck[1]:
                    found, base_offset = self.ledgers[data.index].append(data.records)
                    code = found if luck is None or luck == "after" else code
                parts.append(
                    PartitionProduceResponse(
                        index=data.index,
                        error_code=code,
                        base_offset=-1 if code else base_offset,
                    )
                )
            topics.append(TopicProduceResponse(name=topic.name, partition_responses=parts))
        if luck == "after":
            return CLOSE
        if request.acks == 0:
            return SILENCE
        return ProduceResponse(responses=topics)


class TxnBroker(ProduceBroker):
    """A coordinator of one transactional id too, which believes whatever it is told.

    `lots` has for an API key what befalls its next requests, one after the other: an error code,
    CLOSE or SILENCE. `ends` are the outcomes that were asked for and answered with success.
    """

    def __init__(self, partitions: int = 1) -> None:
        super().__init__(partitions)
        self.ends: list[bool] = []
        self.epoch = -1
        self.answers |= {
            ApiKey.FIND_COORDINATOR: self._lucky(self._find),
            ApiKey.INIT_PRODUCER_ID: self._lucky(self._init),
            ApiKey.ADD_PARTITIONS_TO_TXN: self._lucky(self._add),
            ApiKey.ADD_OFFSETS_TO_TXN: self._lucky(
                lambda _, code: AddOffsetsToTxnResponse(error_code=code)
            ),
            ApiKey.TXN_OFFSET_COMMIT: self._lucky(self._commit_offsets),
            ApiKey.END_TXN: self._lucky(self._end),
        }

    def _init(self, request, code: int):
        if code == 0:
            assert request.producer_epoch in (-1, self.epoch)
            self.epoch += 1
        return InitProducerIdResponse(
            error_code=code,
            producer_id=-1 if code else 77,
            producer_epoch=-1 if code else self.epoch,
        )

    def _add(self, request, code: int):
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(
                            partition_index=index, partition_error_code=code
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in request.v3_and_below_topics
            ]
        )

    def _commit_offsets(self, request, code: int):
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(
                            partition_index=part.partition_index, error_code=code
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _end(self, request, code: int):
        if code == 0:
            self.ends.append(request.committed)
        return EndTxnResponse(error_code=code)


class GroupBroker(FakeBroker):
    """The coordinator of a group that is led by somebody else, and of one member that is told of.

    Each Join makes a generation, and each Sync gives the first `given` partitions of topic "t".
    What was committed is the beginning of each, where there are three records. `lots` are as in
    `TxnBroker`.
    """

    def __init__(self, partitions: int = 2) -> None:
        super().__init__(partitions)
        self.generation = 0
        self.given = partitions
        self.answers |= {
            ApiKey.FIND_COORDINATOR: self._lucky(self._find),
            ApiKey.JOIN_GROUP: self._lucky(self._join),
            ApiKey.SYNC_GROUP: self._lucky(self._sync),
            ApiKey.HEARTBEAT: self._lucky(lambda _, code: HeartbeatResponse(error_code=code)),
            ApiKey.LEAVE_GROUP: lambda *_: LeaveGroupResponse(error_code=0),
            ApiKey.OFFSET_COMMIT: self._lucky(self._commit),
            ApiKey.OFFSET_FETCH: self._lucky(self._committed),
            ApiKey.FETCH: lambda request, _: fetched(
                request, lambda _, offset: b"" if offset else batch_of([b"a", b"b", b"c"])
            ),
        }

    def _join(self, request, code: int):
        if code == 0:
            self.generation += 1
        return JoinGroupResponse(
            error_code=code,
            generation_id=-1 if code else self.generation,
            protocol_type=request.protocol_type,
            protocol_name=request.protocols[0].name,
            leader="another",
            member_id=request.member_id or f"member-{self.generation}",
            members=[],
        )

    def _sync(self, request, code: int):
        every = [] if code else [TopicPartition("t", index) for index in range(self.given)]
        return SyncGroupResponse(
            error_code=code,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=encode_assignment(every),
        )

    def _commit(self, request, code: int):
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(
                            partition_index=part.partition_index, error_code=code
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _committed(self, request, code: int):
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartition(
                            partition_index=index,
                            committed_offset=-1 if code else 0,
                            error_code=code,
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )


def fetched(request, data: Callable[[int, int], bytes], high_watermark: int = 1 << 40):
    """A Fetch answer; `data` gives the bytes of (partition, offset)."""
    return FetchResponse(
        error_code=0,
        session_id=0,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(
                        partition_index=part.partition,
                        error_code=0,
                        high_watermark=high_watermark,
                        last_stable_offset=high_watermark,
                        log_start_offset=0,
                        aborted_transactions=None,
                        records=data(part.partition, part.fetch_offset),
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def batch_of(values: Iterable[bytes], base_offset: int = 0) -> bytes:
    """A record batch as a broker stores it."""
    return records.build_batch([(1000, None, v, ()) for v in values], base_offset=base_offset)
