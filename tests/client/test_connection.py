"""One connection against brokers that misbehave in every way a socket allows."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

import plog.client.connection
from plog.client.admin import Admin
from plog.client.connection import BrokerUnreachable, Connection
from plog.errors import NetworkException, RequestTimedOut, UnsupportedVersion
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from plog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from plog.protocol.messages.topics import DeleteTopicsRequest
from tests.client.fake_broker import CLOSE, SILENCE, FakeBroker, encoded
from tests.servers import free_port

NOTHING = MetadataRequest(topics=[])


@pytest.fixture
def fake():
    with FakeBroker() as running:
        yield running


def connect(fake, **options):
    return Connection("127.0.0.1", fake.port, **options)


def test_highest_version_that_both_speak_is_used(broker, bootstrap):
    host, _, port = bootstrap.partition(",")[0].partition(":")
    connection = Connection(host, int(port))
    assert connection.version_for(MetadataRequest) == 13
    assert connection.call(NOTHING, MetadataResponse).controller_id in broker.ids
    connection.close()


def test_a_build_of_a_release_is_not_refused_for_its_version(bootstrap, monkeypatch):
    monkeypatch.setattr(plog.client.connection, "__version__", "0.1.0+20260131123456.g68165c8f00")
    with Admin(bootstrap) as admin:
        assert admin.features()


@pytest.mark.parametrize("served", [0, 1, 2])
def test_broker_that_knows_only_older_api_versions_is_asked_again(fake, served):
    def answer(request, header):
        if header.api_version > served:
            key = ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=served)
            refusal = ApiVersionsResponse(error_code=35, api_keys=[key])
            return encoded(refusal, header, version=0)
        return fake.api_versions(request, header)

    fake.answers[ApiKey.API_VERSIONS] = answer
    assert connect(fake).version_for(MetadataRequest) == 13
    assert len(fake.requests) == 2


def test_refusal_without_versions_is_answered_by_version_0(fake):
    versions = []

    def answer(request, header):
        versions.append(header.api_version)
        if header.api_version > 0:
            return encoded(ApiVersionsResponse(error_code=35, api_keys=[]), header, version=0)
        return fake.api_versions(request, header)

    fake.answers[ApiKey.API_VERSIONS] = answer
    connect(fake)
    assert versions == [4, 0]


def test_api_that_is_not_served_is_said_so(fake):
    connection = connect(fake)
    with pytest.raises(UnsupportedVersion, match="does not support DeleteTopics"):
        connection.version_for(DeleteTopicsRequest)
    assert connection.is_usable


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (
            lambda c: struct.pack(">i", 1 << 30) + b"\0" * 8,
            RequestTimedOut,
            r"Metadata within 0\.3 s",
        ),
        (lambda c: struct.pack(">i", (1 << 30) + 1), NetworkException, "bytes"),
        (lambda c: struct.pack(">i", -1), NetworkException, "a response of -1 bytes"),
        (lambda c: struct.pack(">i", 3) + b"abc", NetworkException, "a response of 3 bytes"),
        (lambda c: b"HTTP/1.1 400 Bad Request\r\n\r\n", NetworkException, "Kafka broker"),
        (lambda c: struct.pack(">iib", 5, c + 1, 0), NetworkException, "in place of"),
        (lambda c: struct.pack(">ii", 4, c), NetworkException, "malformed"),
        (lambda c: struct.pack(">iib", 5, c, 0), NetworkException, "malformed"),
        (lambda c: struct.pack(">iiib", 9, c, -1, 0), NetworkException, "malformed"),
        (lambda c: SILENCE, RequestTimedOut, r"did not answer Metadata within 0\.3 s"),
        (lambda c: CLOSE, NetworkException, "closed the connection before it answered Metadata"),
    ],
)
def test_answer_that_is_none_ends_the_connection(fake, answer, error, text):
    fake.answers[ApiKey.METADATA] = lambda request, header: answer(header.correlation_id)
    connection = connect(fake, timeout_ms=300)
    with pytest.raises(error, match=text):
        connection.call(NOTHING, MetadataResponse)
    assert connection.fileno() == -1
    assert not connection.is_usable
    with pytest.raises(NetworkException):
        connection.call(NOTHING, MetadataResponse)


@pytest.mark.parametrize(
    "answer",
    [struct.pack(">ii", 4, 1), struct.pack(">iih", 6, 1, 0), struct.pack(">i", (1 << 31) - 1)],
)
def test_malformed_api_versions_answer_ends_the_connection(fake, answer):
    fake.answers[ApiKey.API_VERSIONS] = lambda request, header: answer
    with pytest.raises((NetworkException, RequestTimedOut)):
        connect(fake, timeout_ms=300)


def test_closed_port_is_unreachable_and_named():
    port = free_port()
    with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{port}: Connection refused"):
        Connection("127.0.0.1", port)


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 300, "a..b"])
def test_name_without_address_is_unreachable(host):
    with pytest.raises(BrokerUnreachable):
        Connection(host, 9092)


def test_server_that_accepts_and_says_nothing_times_out():
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(RequestTimedOut):
        Connection("127.0.0.1", mute.getsockname()[1], timeout_ms=200)


def test_answer_that_drips_is_cut_off_at_its_deadline(fake):
    dripping = threading.Event()

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip():
            connected, _ = listener.accept()
            with connected:
                connected.recv(1000)
                try:
                    connected.sendall(struct.pack(">i", 1000))
                    while not dripping.wait(0.01):
                        connected.sendall(b"\0")
                except OSError:
                    pass

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(RequestTimedOut):
                Connection("127.0.0.1", listener.getsockname()[1], timeout_ms=200)
        finally:
            dripping.set()
            thread.join()


def test_interrupt_ends_the_wait_of_another_thread(fake):
    waiting = threading.Event()

    def silent(request, header):
        waiting.set()
        return SILENCE

    fake.answers[ApiKey.METADATA] = silent
    connection = connect(fake)
    found: list[BaseException] = []

    def call():
        try:
            connection.call(NOTHING, MetadataResponse)
        except NetworkException as fault:
            found.append(fault)

    thread = threading.Thread(target=call)
    thread.start()
    assert waiting.wait(10)
    connection.interrupt()
    thread.join(10)
    assert not thread.is_alive()
    assert len(found) == 1


def test_requests_in_flight_are_answered_in_order(fake):
    fake.answers[ApiKey.METADATA] = lambda request, header: fake.metadata(request, header)
    connection = connect(fake)
    for _ in range(5):
        connection.send(NOTHING, MetadataResponse)
    assert connection.in_flight == 5
    with pytest.raises(ValueError, match="have not been read"):
        connection.call(NOTHING, MetadataResponse)
    for _ in range(5):
        assert connection.receive(MetadataResponse).cluster_id == "fake"
    with pytest.raises(ValueError, match=r"no request to .* waits"):
        connection.receive(MetadataResponse)


def test_connection_that_the_broker_closed_is_not_usable(fake):
    connection = connect(fake)
    assert connection.is_usable
    fake.__exit__()
    assert connection.ready(10_000)
    assert not connection.is_usable


def test_ipv6_address_is_reached():
    with FakeBroker(host="::1") as fake:
        connection = Connection("::1", fake.port)
        assert connection.peer == f"[::1]:{fake.port}"
        assert connection.call(NOTHING, MetadataResponse).cluster_id == "fake"


def test_call_that_is_interrupted_leaves_no_answer_for_the_next(fake, monkeypatch):
    connection = connect(fake)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connection.call(NOTHING, MetadataResponse)
    assert not connection.is_usable
