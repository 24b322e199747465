"""The ways to other brokers: a thread and a connection for each that is registered, no more."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from plog.cluster.control_fence import ControlFence
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.peers import Peers
from plog.errors import BrokerNotAvailable, KafkaError
from plog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from plog.protocol.messages.replication import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)
from tests.waiting import PATIENCE_S, until

HERE, OTHER, UNKNOWN = 0, 1, 2
LISTENER = "A"


class Scene:
    """Brokers that accept connections, and never answer."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(PATIENCE_S)
        self._metadata = MetadataCache(ControlFence())
        self.peers = Peers(
            self._metadata,
            broker_id=HERE,
            listener=LISTENER,
            purpose="test",
            timeout_ms=10_000_000,
        )

    def register(self, *broker_ids: int, listener: str = LISTENER) -> None:
        """Have these be the live brokers, and no others."""
        host, port = self._listening.getsockname()
        end = UpdateMetadataEndpoint(port=port, host=host, listener=listener, security_protocol=0)
        live = [UpdateMetadataBroker(id=one, endpoints=[end], rack=None) for one in broker_ids]
        self._metadata.apply(
            UpdateMetadataRequest(
                controller_id=HERE,
                controller_epoch=1,
                broker_epoch=-1,
                topic_states=[],
                live_brokers=live,
            )
        )

    def ask(self, broker_id: int) -> Future[MetadataResponse]:
        return self.peers.ask(broker_id, MetadataRequest(topics=[]), MetadataResponse)

    def accept(self) -> socket.socket:
        """Return the next connection, by which a question has come."""
        connection, _ = self._listening.accept()
        connection.settimeout(PATIENCE_S)
        assert connection.recv(1)
        return connection

    @property
    def threads(self) -> set[str]:
        names = {one.name for one in threading.enumerate()}
        return {name for name in names if name.startswith("test ")}

    def close(self) -> None:
        self.peers.close()
        self._listening.close()
        until(lambda: not self.threads, "the threads end")


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


def is_at_end(connection: socket.socket) -> bool:
    """Wait for the end of the stream."""
    while connection.recv(1 << 16):
        pass
    return True


def test_thread_and_connection_of_a_broker_end_when_it_is_not_registered_any_more(
    scene: Scene,
) -> None:
    scene.register(HERE, OTHER)
    first, queued = scene.ask(OTHER), scene.ask(OTHER)
    connection = scene.accept()
    assert scene.threads == {"test 1"}
    scene.register(HERE)
    for one in first, queued:
        with pytest.raises(KafkaError):
            one.result(PATIENCE_S)
    assert is_at_end(connection)
    until(lambda: not scene.threads, "the thread ends")


def test_broker_that_is_registered_again_is_asked_again(scene: Scene) -> None:
    scene.register(OTHER)
    scene.ask(OTHER)
    scene.accept()
    scene.register(HERE)
    scene.register(OTHER)
    scene.ask(OTHER)
    scene.accept()
    assert scene.threads == {"test 1"}


def test_connections_of_brokers_that_stay_are_kept(scene: Scene) -> None:
    scene.register(OTHER, UNKNOWN)
    asked = scene.ask(OTHER)
    with scene.accept():
        scene.register(OTHER)
        assert not asked.done()
        assert scene.threads == {"test 1"}


@pytest.mark.parametrize("broker_id", [OTHER, UNKNOWN])
def test_question_to_a_broker_that_cannot_be_reached_takes_no_thread(
    scene: Scene, broker_id: int
) -> None:
    scene.register(OTHER, listener="B")
    with pytest.raises(BrokerNotAvailable, match=f"broker {broker_id} has no listener A now"):
        scene.ask(broker_id).result(0)
    assert not scene.threads


def test_question_without_a_thread_for_it_fails_and_the_next_is_asked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    scene.register(OTHER)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        asked = scene.ask(OTHER)
    with pytest.raises(BrokerNotAvailable, match="can't start new thread"):
        asked.result(0)
    scene.ask(OTHER)
    scene.accept()


def test_stopping_fails_what_is_under_way_and_what_comes(scene: Scene) -> None:
    scene.register(OTHER)
    asked = scene.ask(OTHER)
    scene.accept()
    scene.peers.close()
    with pytest.raises(KafkaError):
        asked.result(PATIENCE_S)
    with pytest.raises(BrokerNotAvailable, match="this broker stops"):
        scene.ask(OTHER).result(0)
