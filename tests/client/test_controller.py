"""Requests for the controller, while the controller is away and another one is elected."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from plog.cli.advice import explain
from plog.client import metadata
from plog.client.admin import Admin
from plog.client.connection import BrokerUnreachable
from plog.client.metadata import ControllerUnreachable
from plog.errors import NotController
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.features import UpdateFeaturesResponse
from plog.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from plog.protocol.messages.topics import (
    CreatableTopicResult,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsResponse,
)
from tests.client.fake_broker import SILENCE, TOPIC_ID, FakeBroker
from tests.servers import free_port

NO_CONTROLLER, LIVE, DEAD = -1, 1, 2
REQUESTS: dict[str, Callable[[Admin], object]] = {
    "create_topic": lambda admin: admin.create_topic("t"),
    "delete_topic": lambda admin: admin.delete_topic("t"),
    "create_partitions": lambda admin: admin.create_partitions("t", 2),
    "set_feature": lambda admin: admin.set_feature("f", 1),
}
LONG_MS, SHORT_MS = 60_000, 300


class LiveBroker(FakeBroker):
    """One of two brokers. `controllers` are those of its next Metadata responses."""

    def __init__(self) -> None:
        super().__init__()
        self.dead_port = free_port()
        self.controllers: list[int] = [DEAD]
        self.node_ids = [LIVE, DEAD]
        answers = {
            ApiKey.CREATE_TOPICS: lambda *_: CreateTopicsResponse(
                topics=[CreatableTopicResult(name="t", topic_id=TOPIC_ID, error_code=0)]
            ),
            ApiKey.DELETE_TOPICS: lambda *_: DeleteTopicsResponse(
                responses=[DeletableTopicResult(name="t", topic_id=TOPIC_ID, error_code=0)]
            ),
            ApiKey.CREATE_PARTITIONS: lambda *_: CreatePartitionsResponse(
                results=[CreatePartitionsTopicResult(name="t", error_code=0)]
            ),
            ApiKey.UPDATE_FEATURES: lambda *_: UpdateFeaturesResponse(error_code=0),
        }
        self.answers |= answers
        self.served += tuple(answers)

    def metadata(self, _request, _header):
        controller = self.controllers[0]
        if len(self.controllers) > 1:
            self.controllers.pop(0)
        ports = {LIVE: self.port, DEAD: self.dead_port}
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=one, host="127.0.0.1", port=ports[one])
                for one in self.node_ids
            ],
            controller_id=controller,
            cluster_id="fake",
            topics=[],
        )


@pytest.fixture
def broker() -> Iterator[LiveBroker]:
    with LiveBroker() as running:
        yield running


@pytest.mark.parametrize("name", REQUESTS)
def test_request_goes_to_the_next_controller(
    broker: LiveBroker, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    broker.controllers = [DEAD, DEAD, DEAD, NO_CONTROLLER, LIVE]
    with caplog.at_level(logging.WARNING), Admin(broker.bootstrap) as admin:
        REQUESTS[name](admin)
    assert broker.controllers == [LIVE]
    (warning,) = caplog.messages
    assert f"the controller (broker 2 at 127.0.0.1:{broker.dead_port}) does not answer" in warning


@pytest.mark.parametrize("name", REQUESTS)
def test_controller_that_is_suspended_is_replaced_within_the_request(
    broker: LiveBroker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(metadata, "SILENT_MS", SHORT_MS)
    broker.controllers = [DEAD, LIVE]
    with FakeBroker() as suspended:
        suspended.answers[ApiKey.API_VERSIONS] = lambda *_: SILENCE
        broker.dead_port = suspended.port
        with Admin(broker.bootstrap, request_timeout_ms=LONG_MS) as admin:
            REQUESTS[name](admin)
            assert admin.controller_id() == LIVE


@pytest.mark.parametrize("name", REQUESTS)
def test_error_names_the_controller_when_the_time_is_over(broker: LiveBroker, name: str) -> None:
    with (
        Admin(broker.bootstrap, request_timeout_ms=SHORT_MS) as admin,
        pytest.raises(ControllerUnreachable) as failed,
    ):
        REQUESTS[name](admin)
    address = f"127.0.0.1:{broker.dead_port}"
    assert explain(failed.value) == (
        f"the controller (broker 2 at {address}) does not answer; another one is elected when its"
        f" session ends: cannot connect to {address}: Connection refused"
    )


@pytest.mark.parametrize("name", REQUESTS)
def test_cluster_stays_without_a_controller(broker: LiveBroker, name: str) -> None:
    broker.controllers = [NO_CONTROLLER]
    with (
        Admin(broker.bootstrap, request_timeout_ms=SHORT_MS) as admin,
        pytest.raises(NotController, match="no controller at the moment"),
    ):
        REQUESTS[name](admin)


@pytest.mark.parametrize("name", REQUESTS)
def test_only_broker_with_a_wrong_address_is_not_waited_for(broker: LiveBroker, name: str) -> None:
    broker.node_ids = [DEAD]
    with (
        Admin(broker.bootstrap, request_timeout_ms=LONG_MS) as admin,
        pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{broker.dead_port}"),
    ):
        REQUESTS[name](admin)


@pytest.mark.parametrize("controller", [DEAD, NO_CONTROLLER])
def test_features_are_those_of_any_broker_without_a_controller(
    broker: LiveBroker, controller: int
) -> None:
    broker.controllers = [controller]
    with Admin(broker.bootstrap) as admin:
        assert admin.features() == []
