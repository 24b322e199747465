"""A cluster of which one broker is suspended: connections open, and nothing is answered."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterator

import pytest

from plog.client import connection, metadata
from plog.client.admin import SET, TOPIC, Admin
from plog.client.metadata import Cluster
from plog.errors import NetworkException, RequestTimedOut
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.configs import IncrementalAlterConfigsRequest
from plog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
)
from plog.protocol.messages.topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.client.fake_broker import SILENCE, TOPIC_ID, FakeBroker
from tests.waiting import until

LONG_MS, SHORT_MS = 60_000, 300
FIRST, SECOND = 1, 2


class Member(FakeBroker):
    """A broker of a cluster of two."""

    def __init__(self) -> None:
        super().__init__()
        self.others: dict[int, Member] = {}
        self.controller = FIRST
        self.answers[ApiKey.CREATE_TOPICS] = lambda *_: CreateTopicsResponse(
            topics=[CreatableTopicResult(name="t", topic_id=TOPIC_ID, error_code=0)]
        )
        self.served += (ApiKey.CREATE_TOPICS,)

    def suspend(self) -> None:
        self.answers = dict.fromkeys(self.answers, lambda *_: SILENCE)

    def metadata(self, request, header):
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=one.port)
                for node_id, one in self.others.items()
            ],
            controller_id=self.controller,
            cluster_id="fake",
            topics=[],
        )


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Member, Member]]:
    """Two brokers, asked in this order."""
    monkeypatch.setattr(metadata, "SILENT_MS", SHORT_MS, raising=False)
    monkeypatch.setattr(random, "shuffle", lambda addresses: None)
    with Member() as first, Member() as second:
        first.others = second.others = {FIRST: first, SECOND: second}
        yield first, second


def servers(pair: tuple[Member, Member]) -> list[str]:
    return [one.bootstrap for one in pair]


@pytest.mark.parametrize("is_connected", [False, True])
def test_next_broker_is_asked_soon_and_the_silent_one_named(
    pair: tuple[Member, Member], caplog: pytest.LogCaptureFixture, is_connected: bool
) -> None:
    first, second = pair
    with Cluster(servers(pair), request_timeout_ms=LONG_MS) as cluster:
        if is_connected:
            cluster.refresh([])
            assert second.requests == []
        first.suspend()
        cluster.refresh([])
    assert second.count(MetadataRequest) == 1
    asked = f"{first.bootstrap} did not answer ApiVersions within 0.3 s"
    assert caplog.messages == [f"{asked}; asking another broker"]


def test_silent_brokers_share_the_time_of_a_request(pair: tuple[Member, Member]) -> None:
    for one in pair:
        one.suspend()
    with (
        Cluster(servers(pair), request_timeout_ms=SHORT_MS) as cluster,
        pytest.raises(NetworkException) as failed,
    ):
        cluster.refresh([])
    waited_s = dict(
        re.findall(r"(\S+) did not answer ApiVersions within (\S+) s", str(failed.value))
    )
    assert set(waited_s) == set(servers(pair))
    assert float(waited_s[pair[0].bootstrap]) <= SHORT_MS / 1000 / 2


def test_controller_that_is_suspended_on_an_open_connection_is_replaced(
    pair: tuple[Member, Member], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = pair
    with Admin(servers(pair), request_timeout_ms=LONG_MS) as admin:
        admin.create_topic("t")
        assert first.count(CreateTopicsRequest) == 1
        first.suspend()
        second.controller = SECOND
        admin.create_topic("t")
    assert first.count(CreateTopicsRequest) == 1
    assert second.count(CreateTopicsRequest) == 1
    assert f"the controller (broker 1 at {first.bootstrap}) does not answer" in caplog.text


def test_request_that_a_controller_may_have_obeyed_is_not_repeated(
    pair: tuple[Member, Member],
) -> None:
    first, second = pair
    first.answers[ApiKey.CREATE_TOPICS] = lambda *_: SILENCE
    with (
        Admin(servers(pair), request_timeout_ms=SHORT_MS) as admin,
        pytest.raises(RequestTimedOut, match="did not answer CreateTopics"),
    ):
        admin.create_topic("t")
    assert first.count(CreateTopicsRequest) == 1
    assert second.count(CreateTopicsRequest) == 0


def test_change_of_settings_that_a_broker_may_have_obeyed_is_not_repeated(
    pair: tuple[Member, Member],
) -> None:
    first, second = pair
    for one in pair:
        one.served += (ApiKey.INCREMENTAL_ALTER_CONFIGS,)
        one.answers[ApiKey.INCREMENTAL_ALTER_CONFIGS] = lambda *_: SILENCE
    with (
        Admin(servers(pair), request_timeout_ms=SHORT_MS) as admin,
        pytest.raises(NetworkException, match="did not answer IncrementalAlterConfigs"),
    ):
        admin.alter_configs(TOPIC, "t", [("retention.ms", SET, "1")])
    assert first.count(IncrementalAlterConfigsRequest) == 1
    assert second.count(IncrementalAlterConfigsRequest) == 0


@pytest.mark.parametrize("api", [ApiKey.API_VERSIONS, ApiKey.METADATA])
def test_wait_for_a_broker_names_it_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, api: ApiKey
) -> None:
    monkeypatch.setattr(connection, "SAY_AFTER_MS", 50, raising=False)
    with FakeBroker() as fake, caplog.at_level(logging.WARNING):
        answer = fake.answers[api]

        def late(request, header):
            until(lambda: caplog.messages)
            return answer(request, header)

        fake.answers[api] = late
        with Cluster(fake.bootstrap, request_timeout_ms=LONG_MS) as cluster:
            cluster.refresh([])
    name = {ApiKey.API_VERSIONS: "ApiVersions", ApiKey.METADATA: "Metadata"}[api]
    assert caplog.messages == [f"waiting for {fake.bootstrap} to answer {name}"]
