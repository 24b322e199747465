"""Repeated warnings of the client: one line per cause and interval, whatever comes between."""

from __future__ import annotations

import logging
import time

import pytest

from plog.client.group_consumer import GroupConsumer
from plog.client.retry_log import WARN_INTERVAL_S, RetryLog
from plog.runtime import repeats
from tests.servers import free_port

LOG = logging.getLogger("plog.client.tests")


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(repeats.time, "monotonic", lambda: now[0])
    return now


def test_causes_that_alternate_are_logged_once_each(caplog, clock):
    retries = RetryLog(LOG)
    for _ in range(10):
        retries.warn("one")
        retries.warn("other")
    assert caplog.messages == ["one; trying again", "other; trying again"]


def test_cause_is_logged_again_after_the_interval(caplog, clock):
    retries = RetryLog(LOG)
    for clock[0] in (0.0, WARN_INTERVAL_S - 0.1, WARN_INTERVAL_S, WARN_INTERVAL_S + 1):
        retries.warn("one", "waiting")
    assert caplog.messages == ["one; waiting"] * 2


def test_group_consumer_names_all_unreachable_addresses_in_one_line(caplog):
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    with GroupConsumer(",".join(addresses), "g") as consumer:
        consumer.subscribe(["t"])
        end = time.monotonic() + 2
        while time.monotonic() < end:
            consumer.poll(200)
    (line,) = caplog.messages
    assert all(address in line for address in addresses)
