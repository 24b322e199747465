"""ApiVersions, and what happens to requests that nobody serves."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from plog.errors import ErrorCode
from plog.handlers.registry import load
from plog.protocol import codec, framing
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from plog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.handlers.conftest import ManyListeners
from tests.handlers.wire import Speaker, eventually, exchange, speak
from tests.kafka_versions import KAFKA_3_9, KAFKA_4_4, Row, highest_supported, names, skipped, table
from tests.served import SERVED
from tests.servers import BrokerProcess


def test_every_client_facing_version_is_served_or_listed_as_skipped() -> None:
    listed, handlers = skipped(), load()
    for key, (low, high) in KAFKA_3_9.items():
        wanted = set(range(low, high + 1))
        if key in handlers:
            assert None not in listed.get(key, []), f"{ApiKey(key).name} is served and skipped"
            served = handlers[key]
            wanted -= set(range(served.min_version, served.max_version + 1))
        else:
            assert listed.get(key) == [None], f"{key} is neither served nor skipped"
            wanted.clear()
        for versions in listed.get(key, []):
            if versions is not None:
                assert wanted >= set(range(versions[0], versions[1] + 1)), f"key {key}: {versions}"
                wanted -= set(range(versions[0], versions[1] + 1))
        assert not wanted, f"key {key}: versions {sorted(wanted)} are neither served nor skipped"
    assert {key for key, ranges in listed.items() if None in ranges} == (
        set(KAFKA_3_9) | set(KAFKA_4_4)
    ) - set(handlers)


def test_every_version_of_kafka_4_4_is_supported_or_in_the_table() -> None:
    handlers, expected = load(), []
    for key, api in KAFKA_4_4.items():
        handler = handlers.get(key)
        highest = max(api.highest, api.unstable or 0)
        if handler is not None:
            assert handler.min_version <= api.lowest
            assert handler.max_version <= highest, f"{api.name}: Kafka has no such version"
        if handler is None or handler.max_version < highest:
            kafka = str(api.highest)
            if api.unstable is not None:
                kafka += f" ({api.unstable} is unstable)"
            expected.append(
                Row(api.name, key, kafka, "none" if handler is None else str(handler.max_version))
            )
    assert table() == expected


def test_names_of_skipped_apis_are_those_of_their_keys() -> None:
    for key, name in names().items():
        if key in KAFKA_4_4:
            assert name == KAFKA_4_4[key].name
        if key in set(ApiKey):
            assert ApiKey(key).name.replace("_", "").lower() == name.lower()


@pytest.mark.parametrize("version", range(6))
def test_answer_is_the_registry(wire: Speaker, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="t", client_software_version="1.0-x")
    answer: ApiVersionsResponse = wire.ask(request, version)
    assert answer.error_code == ErrorCode.NONE
    found = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    assert found == {
        key: (handler.advertised_min, handler.max_version) for key, handler in SERVED.items()
    }
    assert {key: high for key, (_, high) in found.items()} == highest_supported()
    # aiokafka checks that no range is upside down.
    assert all(low <= high for low, high in found.values())
    unusual = {key: low for key, (low, _) in found.items() if low > 0}
    assert set(unusual) <= set(skipped()), "a minimum above 0 stands in docs/SKIPPED.md"


@pytest.mark.parametrize("version", [3, 4, 5])
def test_features_are_told_to_clients_that_can_read_them(wire: Speaker, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    answer: ApiVersionsResponse = wire.ask(request, version)
    supported = {(one.name, one.min_version, one.max_version) for one in answer.supported_features}
    levels = {("transaction.version", 0, 2), ("group.version", 0, 1)}
    assert supported == (levels if version >= 4 else set())
    finalized = {one.name: one.max_version_level for one in answer.finalized_features}
    assert finalized == {"transaction.version": 2, "group.version": 1}
    assert answer.finalized_features_epoch >= 0


@pytest.mark.parametrize("version", [6, 77, 32767])
def test_unsupported_version_of_api_versions_is_answered_in_version_0(
    broker: ManyListeners, version: int
) -> None:
    header = framing.encode_request_header(ApiKey.API_VERSIONS, version, 1234, "new")
    frame = exchange(broker.port, header + b"whatever a later version has here")
    assert frame is not None
    assert frame[:4] == struct.pack(">i", 1234)
    answer, end = codec.decode(ApiVersionsResponse, 0, frame, 4)
    assert end == len(frame)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    (entry,) = answer.api_keys
    assert (entry.api_key, entry.min_version, entry.max_version) == (ApiKey.API_VERSIONS, 0, 5)


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("apache-kafka-java", "3.9.0", ErrorCode.NONE),
        ("a", "1", ErrorCode.NONE),
        ("", "1.0", ErrorCode.INVALID_REQUEST),
        ("a", "", ErrorCode.INVALID_REQUEST),
        ("-a", "1.0", ErrorCode.INVALID_REQUEST),
        ("a.", "1.0", ErrorCode.INVALID_REQUEST),
        ("a b", "1.0", ErrorCode.INVALID_REQUEST),
        ("a", "1.0\n", ErrorCode.INVALID_REQUEST),
        ("é", "1.0", ErrorCode.INVALID_REQUEST),
    ],
)
def test_software_names_are_checked_from_version_3_on(
    wire: Speaker, name: str, version: str, expected: ErrorCode
) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    for api_version in (3, 4, 5):
        answer = wire.ask(request, api_version)
        assert answer.error_code == expected
        assert bool(answer.api_keys) == (expected == ErrorCode.NONE)


@pytest.mark.parametrize("version", [4, 5])
def test_client_of_another_broker_is_refused_from_version_5_on(wire: Speaker, version: int) -> None:
    cluster: MetadataResponse = wire.ask(MetadataRequest(topics=[]), 12)
    (node,) = cluster.brokers
    expected = {
        (cluster.cluster_id, node.node_id): ErrorCode.NONE,
        (None, -1): ErrorCode.NONE,
        # Kafka checks the node only with the cluster.
        (None, node.node_id + 1): ErrorCode.NONE,
        (cluster.cluster_id, node.node_id + 1): ErrorCode.REBOOTSTRAP_REQUIRED,
        (cluster.cluster_id, -1): ErrorCode.REBOOTSTRAP_REQUIRED,
        ("another", node.node_id): ErrorCode.REBOOTSTRAP_REQUIRED,
        ("", node.node_id): ErrorCode.REBOOTSTRAP_REQUIRED,
    }
    for (cluster_id, node_id), error in expected.items():
        request = ApiVersionsRequest(
            client_software_name="t",
            client_software_version="1",
            cluster_id=cluster_id,
            node_id=node_id,
        )
        answer: ApiVersionsResponse = wire.ask(request, version)
        # Version 4 cannot carry the fields.
        assert answer.error_code == (error if version >= 5 else ErrorCode.NONE)
        assert bool(answer.api_keys) == (answer.error_code == ErrorCode.NONE)
    assert wire.ask(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE


def _header(key: int, version: int, client_id: bytes = b"\x00\x01c", tags: bytes = b"") -> bytes:
    return struct.pack(">hhi", key, version, 7) + client_id + tags


REFUSED = {
    "unknown API": (_header(999, 0), "API key 999 is not supported"),
    "negative API": (_header(-1, 0), "API key -1 is not supported"),
    "API of KRaft's controllers": (_header(52, 0), "API key 52 is not supported"),
    "API between brokers": (_header(4, 7, tags=b"\0"), "this broker runs alone"),
    "old version of it": (_header(4, 0), "LeaderAndIsrRequest v0 is not supported"),
    "unknown version": (_header(3, 99, tags=b"\0"), "MetadataRequest v99 is not supported"),
    "negative version": (_header(3, -1), "MetadataRequest v-1 is not supported"),
    "old message sets": (_header(0, 2), "ProduceRequest v2 is not supported"),
    "truncated body": (_header(3, 1) + b"\0\0", "MetadataRequest v1"),
    "count beyond the bytes": (_header(3, 1) + b"\x7f\xff\xff\xff", "MetadataRequest v1"),
    "garbage": (_header(1, 12, tags=b"\0") + b"\xff" * 40, "FetchRequest v12"),
    "client id beyond the frame": (_header(3, 1, b"\x7f\xff"), "request header"),
    "header cut": (b"\0\x03\0\x01\0\0\0\x07\0", "request header"),
    "no header at all": (b"\0\x03", "no room for a header"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_request_that_nobody_serves_costs_its_connection_and_one_line(
    own_broker_of_refusals: BrokerProcess, case: str
) -> None:
    broker = own_broker_of_refusals
    frame, reason = REFUSED[case]
    bystander = speak(broker.port)
    before = len(_closings(broker))
    assert exchange(broker.port, frame) is None
    eventually(lambda: len(_closings(broker)) > before, "a line in the log")
    (line,) = _closings(broker)[before:]
    assert reason in line
    assert "127.0.0.1:" in line
    assert bystander.ask(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
    bystander.close()
    assert len(_closings(broker)) == before + 1


def _closings(broker: BrokerProcess) -> list[str]:
    return [line for line in broker.log.splitlines() if "closing connection" in line]


@pytest.fixture(scope="module")
def own_broker_of_refusals(tmp_path_factory: pytest.TempPathFactory):
    with BrokerProcess(tmp_path_factory.mktemp("refusals")) as running:
        yield running


def test_frame_longer_than_allowed_costs_its_connection(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    broker = own_broker(socket_request_max_bytes=100_000)
    assert exchange(broker.port, b"x" * 100_001) is None
    speak(broker.port).close()
