"""A broker whose ZooKeeper is suspended: requests that need it keep no others waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog.client.cluster_admin import ClusterAdmin
from plog.errors import ErrorCode
from plog.handlers.configs import ResourceType
from plog.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from plog.protocol.messages.producers import InitProducerIdRequest
from plog.protocol.messages.topics import CreateTopicsRequest
from plog.protocol.schema import Struct
from tests.cluster.processes import Brokers
from tests.cluster.zookeepers import Ensemble
from tests.handlers.clients import Clients, ask_alone, codes_of
from tests.handlers.wire import WAIT_MS, create_topic, create_topic_request, speak
from tests.servers import BrokerProcess

MOST = 8
SESSION_MS = 60_000
IN_THE_END = {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT}
"""The latter if the session has ended meanwhile."""


@pytest.fixture
def broker(tmp_path: Path, own_zookeeper: Ensemble) -> Iterator[BrokerProcess]:
    brokers = Brokers(
        tmp_path,
        own_zookeeper.bootstrap,
        1,
        queued_max_requests=MOST,
        zookeeper_session_timeout_ms=SESSION_MS,
    )
    with brokers:
        yield brokers[0]


def creating(number: int) -> Struct:
    asked = create_topic_request(f"new{number}")
    return CreateTopicsRequest(topics=asked.topics, timeout_ms=WAIT_MS)


def describing(_: int) -> Struct:
    resource = DescribeConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name="t", configuration_keys=None
    )
    return DescribeConfigsRequest(resources=[resource])


@pytest.mark.parametrize(("make", "version"), [(creating, 5), (describing, 1)])
def test_suspended_zookeeper_keeps_no_other_requests_waiting(
    own_zookeeper: Ensemble, broker: BrokerProcess, make: Callable[[int], Struct], version: int
) -> None:
    wire = speak(broker.port)
    create_topic(wire, "t")
    waiting = Clients(broker.port)
    own_zookeeper.pause(1)
    for number in range(MOST):
        waiting.send(make(number), version)
    metadata = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    for _ in range(MOST):
        (answer,) = ask_alone(broker.port, metadata, 4)
        assert {*codes_of(answer)} == {ErrorCode.NONE}
    assert waiting.answered == 0
    own_zookeeper.pause(1, goes_on=True)
    for answer in waiting.receive():
        assert {*codes_of(answer)} <= IN_THE_END
    wire.close()


def test_broker_that_has_just_started_gives_producer_ids_out(
    own_zookeeper: Ensemble, broker: BrokerProcess
) -> None:
    own_zookeeper.pause(1)
    wire = speak(broker.port)
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=WAIT_MS)
    assert wire.ask(request, 4).error_code == ErrorCode.NONE
    own_zookeeper.pause(1, goes_on=True)
    wire.close()


def test_overview_names_the_brokers_without_zookeeper(
    own_zookeeper: Ensemble, broker: BrokerProcess
) -> None:
    with ClusterAdmin(broker.bootstrap) as admin:
        assert admin.overview().without_zookeeper == []
        own_zookeeper.pause(1)
        assert admin.overview().without_zookeeper == [0]
        own_zookeeper.pause(1, goes_on=True)
