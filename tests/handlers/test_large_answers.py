"""Answers of thousands of parts: others' requests are handled while they are made.

Decided by order: whether the last part of the large answer was made before the small request of
another connection was answered. Until then each part takes a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plog.handlers import configs, metadata
from plog.protocol.messages.api_versions import ApiVersionsRequest
from plog.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from plog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from plog.protocol.schema import Struct
from tests.handlers.running import Running
from tests.handlers.wire import WAIT_MS, create_topic

MANY = 20_000
"""Parts of an answer: more than are made in one go."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    one = Running(tmp_path, auto_create_topics_enable="false")
    create_topic(one.wire, "t")
    yield one
    one.stop()


def unknown_topics() -> tuple[Struct, int]:
    asked = [MetadataRequestTopic(name=f"unknown-{n}") for n in range(MANY)]
    return MetadataRequest(topics=asked), 9


def configs_of_topics() -> tuple[Struct, int]:
    asked = [
        DescribeConfigsResource(
            resource_type=2, resource_name=f"unknown-{n}", configuration_keys=None
        )
        for n in range(MANY)
    ]
    return DescribeConfigsRequest(resources=asked), 4


@pytest.mark.parametrize(
    ("handler", "part", "request_of_many"),
    [(metadata, "_one", unknown_topics), (configs, "_describe", configs_of_topics)],
    ids=["Metadata", "DescribeConfigs"],
)
def test_small_request_is_answered_before_a_large_one_that_came_first(
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    handler: Any,
    part: str,
    request_of_many: Callable[[], tuple[Struct, int]],
) -> None:
    make = getattr(handler, part)
    begun, small_is_answered = threading.Event(), threading.Event()
    made = 0
    is_late = False

    def made_slowly(*arguments: object) -> object:
        nonlocal made, is_late
        begun.set()
        made += 1
        if not small_is_answered.is_set():
            is_late = made == MANY
            time.sleep(0.001)
        return make(*arguments)

    monkeypatch.setattr(handler, part, made_slowly)
    running.send(*request_of_many())
    assert begun.wait(WAIT_MS / 1000)
    running.wire.ask(ApiVersionsRequest(client_software_name="c", client_software_version="1"), 3)
    small_is_answered.set()
    running.receive()
    assert made == MANY
    assert not is_late
