"""A client's view of the cluster: brokers, leaders, and a connection to each broker.

Owns the bootstrap list, the shared connections (one request at a time each) and
the last Metadata responses. Callers report what moved (`forget`), and decide whether to
repeat a request.
"""

from __future__ import annotations

import logging
import math
import random
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from plog.client.arguments import at_least
from plog.client.connection import BrokerUnreachable, Connection, address_of, introduction
from plog.client.retry_log import RetryLog
from plog.errors import (
    ErrorCode,
    InvalidConfig,
    KafkaError,
    LeaderNotAvailable,
    NetworkException,
    NotController,
    RequestTimedOut,
    UnknownTopicOrPartition,
    code_name,
    error_for,
)
from plog.protocol.messages.api_versions import ApiVersionsResponse
from plog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from plog.protocol.schema import Struct
from plog.types import NO_EPOCH, ZERO_UUID, TopicPartition

R = TypeVar("R", bound=Struct)

log = logging.getLogger(__name__)

DEFAULT_PORT = 9092
HIGHEST_PORT = 65535
SILENT_MS = 3_000
"""How long a broker may take to answer ApiVersions while another one can be asked instead."""
NOT_THERE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
"""Errors for a topic that does not exist, or that is being created."""


class ControllerUnreachable(NetworkException):
    """The controller does not answer. The cluster has others, of which one is elected."""


class Node(NamedTuple):
    """A broker as clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(slots=True)
class PartitionInfo:
    """Where one partition lives."""

    leader_id: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    error_code: int


@dataclass(slots=True)
class TopicInfo:
    """One topic as the cluster last described it."""

    name: str
    topic_id: uuid.UUID
    is_internal: bool
    partitions: dict[int, PartitionInfo] = field(default_factory=dict)


def parse_bootstrap(servers: str | Iterable[str]) -> list[tuple[str, int]]:
    """Read "host:port,host:port" (default port 9092; [::1]:9092 for IPv6).

    Raises:
        InvalidConfig: an entry is not an address, or the list is empty.
    """
    entries = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = [_address(entry.strip()) for entry in entries if entry.strip()]
    if not addresses:
        raise InvalidConfig("bootstrap servers are empty: use host:port,...")
    return addresses


def _address(entry: str) -> tuple[str, int]:
    if entry.startswith("["):
        host, bracket, rest = entry[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        well_formed = bool(bracket) and colon in ("", ":")
    else:
        host, colon, port = entry.partition(":")
        well_formed = True
    if not colon:
        port = str(DEFAULT_PORT)
    if not (well_formed and host and port.isascii() and port.isdigit()):
        raise InvalidConfig(f"bootstrap server {entry!r} is not host:port (IPv6: [address]:port)")
    if not 0 < int(port) <= HIGHEST_PORT:
        raise InvalidConfig(
            f"bootstrap server {entry!r}: invalid port {port}: use 1-{HIGHEST_PORT}"
        )
    return host, int(port)


def no_leader(partition: TopicPartition) -> LeaderNotAvailable:
    """Return the error for a partition without a leader."""
    return LeaderNotAvailable(
        f"partition {partition} has no leader: its broker is down, or its log directory is offline"
        " (see that broker's log)"
    )


class Cluster:
    """Connections and metadata of one cluster. Not thread-safe.

    Args:
        bootstrap_servers: "host:port,..." or a list of such; one that answers suffices.
        client_id: what the brokers' logs call this client.
        request_timeout_ms: how long each response may take; at least 1.
        stays_at_bootstrap: reach the broker of a cluster of one by its bootstrap address. The
            address that it advertises may be wrong.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        *,
        client_id: str = "plog",
        request_timeout_ms: int = 30_000,
        stays_at_bootstrap: bool = False,
    ) -> None:
        at_least(1, request_timeout_ms=request_timeout_ms)
        self._bootstrap = parse_bootstrap(bootstrap_servers)
        self._stays_at_bootstrap = stays_at_bootstrap
        self._answered = self._bootstrap[0]
        self._client_id = client_id
        self._timeout_ms = request_timeout_ms
        self._connections: dict[tuple[str, int], Connection] = {}
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.errors: dict[str, KafkaError] = {}
        """Topics that the last response refused, and why (an invalid name, no access)."""
        self.controller_id = -1
        self.cluster_id: str | None = None
        self._silences = RetryLog(log)
        self._opening: Connection | None = None
        self._is_interrupted = False

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers, as messages name them."""
        return ",".join(address_of(host, port) for host, port in self._bootstrap)

    def address(self, node_id: int) -> str:
        """Return a known broker's address, as messages name it."""
        node = self.nodes[node_id]
        return address_of(node.host, node.port)

    @property
    def request_timeout_s(self) -> float:
        """How long each response may take."""
        return self._timeout_ms / 1000

    def twin(self) -> Cluster:
        """Return another cluster that knows the same brokers, for another thread."""
        twin = Cluster(
            self.bootstrap,
            client_id=self._client_id,
            request_timeout_ms=self._timeout_ms,
            stays_at_bootstrap=self._stays_at_bootstrap,
        )
        twin._answered = self._answered
        twin.nodes = dict(self.nodes)
        return twin

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def interrupt(self) -> None:
        """Make the thread that uses the cluster give up with NetworkException. Thread-safe.

        The cluster opens no connection afterwards.
        """
        self._is_interrupted = True
        for connection in [*self._connections.values(), self._opening]:
            if connection is not None:
                connection.interrupt()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, node_id: int) -> Connection:
        """Return a new connection to a broker, which the caller owns.

        Raises:
            NetworkException: the broker is not known, or cannot be reached.
        """
        return self._connect(*self._address_of(node_id))

    def connection(self, node_id: int) -> Connection:
        """Return the shared connection to a broker; open it if necessary.

        Raises:
            NetworkException: the broker is not known, or cannot be reached.
        """
        return self._shared(*self._address_of(node_id))

    def ask_any(self, request: Struct, response: type[R]) -> R:
        """Ask the brokers in turn, for request_timeout_ms altogether; return the first response.

        While others are left, a broker has to answer ApiVersions soon. Then it gets all the time
        that is left, as the request may change something.

        Raises:
            NetworkException: no broker answers; the message names those that were asked.
        """
        faults: list[KafkaError] = []
        addresses = list(self._addresses())
        deadline = time.monotonic() + self.request_timeout_s
        for left, (host, port) in zip(range(len(addresses), 0, -1), addresses, strict=True):
            try:
                share_ms = _share_ms(deadline, left)
                if left > 1:
                    connection = self._answering(host, port, within_ms=share_ms)
                else:
                    connection = self._shared(host, port, within_ms=share_ms)
                answer = connection.call(request, response, timeout_ms=_share_ms(deadline, 1))
                self._answered = host, port
                return answer
            except (NetworkException, RequestTimedOut) as fault:
                faults.append(fault)
                if time.monotonic() >= deadline:
                    break
                if left > 1 and _is_silence(fault):
                    self._silences.warn(fault, "asking another broker")
        # Sorted: the brokers are asked in random order, and equal warnings are logged once.
        text = "; ".join(sorted(set(map(str, faults))))
        if all(isinstance(fault, BrokerUnreachable) for fault in faults):
            raise BrokerUnreachable(text)
        raise NetworkException(text)

    def controller(self) -> Connection:
        """Return a connection to the controller, which accepts administrative requests.

        Raises:
            NotController: the cluster has no controller at the moment.
            ControllerUnreachable: it does not answer, and other brokers could replace it.
            NetworkException, RequestTimedOut: the only broker does not answer.
        """
        if self.controller_id not in self.nodes:
            self.refresh([])
        if self.controller_id not in self.nodes:
            raise NotController("the cluster has no controller at the moment")
        if len(self.nodes) == 1:
            return self.connection(self.controller_id)
        try:
            return self._answering(
                *self._address_of(self.controller_id), within_ms=self._timeout_ms
            )
        except (NetworkException, RequestTimedOut) as fault:
            raise ControllerUnreachable(
                f"the controller (broker {self.controller_id} at"
                f" {self.address(self.controller_id)}) does not answer; another one is elected when"
                f" its session ends: {fault}"
            ) from fault

    def refresh(self, topics: Iterable[str] | None, *, create: bool = False) -> None:
        """Ask for the brokers and for these topics (None: all topics).

        Topics that do not exist are then missing in `topics`; topics that the broker refuses are
        in `errors`.

        Args:
            create: whether the broker may create the topics, if its configuration allows that.

        Raises:
            NetworkException: no broker answers.
            KafkaError: the broker refuses the request as a whole (KIP-1102).
        """
        asked = (
            None
            if topics is None
            else [MetadataRequestTopic(topic_id=ZERO_UUID, name=name) for name in topics]
        )
        answer = self.ask_any(
            MetadataRequest(topics=asked, allow_auto_topic_creation=create), MetadataResponse
        )
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code, "the broker refused Metadata")
        self.nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in answer.brokers}
        self.controller_id = answer.controller_id
        self.cluster_id = answer.cluster_id
        if topics is None:
            listed = {topic.name for topic in answer.topics}
            self.topics = {n: info for n, info in self.topics.items() if n in listed}
            self.errors.clear()
        for topic in answer.topics:
            self._learn(topic)

    def topic(self, name: str) -> TopicInfo:
        """Return a topic; ask the cluster if it is not known yet.

        Raises:
            UnknownTopicOrPartition: it does not exist.
            KafkaError: the cluster refuses it, for example for an invalid name.
        """
        if name not in self.topics:
            self.refresh([name])
        if name not in self.topics:
            raise self.errors.get(name) or UnknownTopicOrPartition(f"topic {name!r} does not exist")
        return self.topics[name]

    def leader(self, partition: TopicPartition) -> PartitionInfo:
        """Return a partition that has a leader.

        Raises:
            UnknownTopicOrPartition: no such topic or partition.
            LeaderNotAvailable: it has no leader at the moment.
        """
        found = self.topic(partition.topic).partitions.get(partition.partition)
        if found is None:
            raise UnknownTopicOrPartition(f"partition {partition} does not exist")
        if found.leader_id < 0:
            raise no_leader(partition)
        return found

    def known_leader(self, partition: TopicPartition) -> PartitionInfo | None:
        """Return a partition if it is known to have a leader; send no request."""
        topic = self.topics.get(partition.topic)
        found = None if topic is None else topic.partitions.get(partition.partition)
        return None if found is None or found.leader_id not in self.nodes else found

    def forget(self, topic: str) -> None:
        """Forget a topic, so that the next look-up asks the cluster."""
        self.topics.pop(topic, None)
        self.errors.pop(topic, None)

    def _learn(self, topic: MetadataResponseTopic) -> None:
        name = topic.name or ""
        self.errors.pop(name, None)
        known = self.topics.pop(name, None)
        if topic.error_code != ErrorCode.NONE:
            if topic.error_code not in NOT_THERE:
                self.errors[name] = error_for(
                    topic.error_code, f"topic {name!r}: {code_name(topic.error_code)}"
                )
            return
        info = self.topics[name] = TopicInfo(name, topic.topic_id, topic.is_internal)
        for part in topic.partitions:
            info.partitions[part.partition_index] = PartitionInfo(
                part.leader_id,
                part.leader_epoch,
                list(part.replica_nodes),
                list(part.isr_nodes),
                part.error_code,
            )
        if known is None or known.topic_id != info.topic_id:
            return
        for index, part_before in known.partitions.items():
            # A broker with old metadata must not send us back to a former leader.
            part_now = info.partitions.get(index)
            if part_now is not None and NO_EPOCH < part_now.leader_epoch < part_before.leader_epoch:
                info.partitions[index] = part_before

    def _address_of(self, node_id: int) -> tuple[str, int]:
        node = self.nodes.get(node_id)
        if node is None:
            raise NetworkException(f"broker {node_id} is not known")
        return self._answered if self._is_at_bootstrap else (node.host, node.port)

    @property
    def _is_at_bootstrap(self) -> bool:
        return self._stays_at_bootstrap and len(self.nodes) <= 1

    def _addresses(self) -> Iterator[tuple[str, int]]:
        """Yield every known address: connected ones first, then the others in random order."""
        connected = [at for at, connection in self._connections.items() if connection.is_usable]
        known = [(node.host, node.port) for node in self.nodes.values()]
        if self._is_at_bootstrap:
            known = []
        others = list(dict.fromkeys(known + self._bootstrap))
        random.shuffle(others)
        yield from dict.fromkeys(connected + others)

    def _answering(self, host: str, port: int, *, within_ms: int) -> Connection:
        """Return the shared connection to a broker that has just answered on it.

        An open connection says nothing of a broker that is suspended, or of a host that is gone.

        Args:
            within_ms: how long it may take; at most SILENT_MS.

        Raises:
            NetworkException, RequestTimedOut: the broker does not answer.
        """
        within_ms = min(within_ms, SILENT_MS)
        found = self._connections.get((host, port))
        if found is None or not found.is_usable:
            return self._shared(host, port, within_ms=within_ms)
        found.call(introduction(), ApiVersionsResponse, timeout_ms=within_ms)
        return found

    def _shared(self, host: str, port: int, *, within_ms: int | None = None) -> Connection:
        found = self._connections.get((host, port))
        if found is not None and found.is_usable:
            return found
        if found is not None:
            found.close()
            del self._connections[host, port]
        found = self._connect(host, port, within_ms=within_ms)
        self._connections[host, port] = found
        return found

    def _connect(self, host: str, port: int, *, within_ms: int | None = None) -> Connection:
        try:
            return Connection(
                host,
                port,
                client_id=self._client_id,
                timeout_ms=self._timeout_ms,
                setup_timeout_ms=within_ms,
                opened=self._opened,
            )
        finally:
            self._opening = None

    def _opened(self, connection: Connection) -> None:
        """Take note of a connection that negotiates: `interrupt` ends its wait, too."""
        self._opening = connection
        if self._is_interrupted:
            raise NetworkException(f"connection to {connection.peer}: interrupted")


def _share_ms(deadline: float, count: int) -> int:
    """Return an equal share of the time until a deadline (time.monotonic()); at least 1 ms."""
    return max(math.ceil((deadline - time.monotonic()) * 1000) // count, 1)


def _is_silence(fault: KafkaError) -> bool:
    """Return whether a broker took all its time, rather than refused the connection at once."""
    return isinstance(fault, RequestTimedOut) or isinstance(fault.__cause__, TimeoutError)


def cluster_of(
    servers: str | Iterable[str] | Cluster, client_id: str, request_timeout_ms: int
) -> tuple[Cluster, bool]:
    """Return the given cluster or a new one, and whether it is new and so the caller's to close."""
    if isinstance(servers, Cluster):
        return servers, False
    return Cluster(servers, client_id=client_id, request_timeout_ms=request_timeout_ms), True
