"""Finds the metrics page of a broker that this host knows only by its address.

Owns the rule for addresses that mean another host on each host. Never opens the page.
"""

from __future__ import annotations

from typing import NamedTuple

from plog.client.admin import BROKER
from plog.client.connection import Connection, address_of
from plog.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from plog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from plog.settings.listeners import EVERYWHERE

LOOPBACK = ("127.", "localhost", "::1")
NO_PAGE = "the broker has no metrics page"


class PageAddress(NamedTuple):
    """The address of a page, as host:port for this host.

    Attributes:
        address: "" if this host cannot know it.
        reason: why it cannot; "" if it can.
    """

    address: str
    reason: str = ""


def find_page(host: str, port: int, timeout_ms: int) -> PageAddress:
    """Ask the broker at an address for its metrics page.

    Raises:
        KafkaError: the broker does not answer.
    """
    return page_from(metrics_listener(host, port, timeout_ms), host)


def page_from(listener: str, host: str) -> PageAddress:
    """Return the page at a broker's `metrics.listener`, as seen by clients that use `host`.

    A listener on all addresses is at the host of the clients. A loopback address is another host
    for them, unless they use one themselves.
    """
    if not listener:
        return PageAddress("", NO_PAGE)
    at, _, port = listener.rpartition(":")
    at = at.strip("[]")
    if at in EVERYWHERE:
        at = host
    if at.lower().startswith(LOOPBACK) and not host.lower().startswith(LOOPBACK):
        return PageAddress("", f"the page at {listener} can be read on the broker's own host only")
    return PageAddress(address_of(at, int(port)))


def metrics_listener(host: str, port: int, timeout_ms: int) -> str:
    """Return the `metrics.listener` of the broker at an address; "" if it has none.

    Raises:
        KafkaError: the broker does not answer.
    """
    connection = Connection(host, port, timeout_ms=timeout_ms)
    try:
        brokers = connection.call(MetadataRequest(topics=[]), MetadataResponse).brokers
        resource = DescribeConfigsResource(
            resource_type=BROKER,
            resource_name=str(min((one.node_id for one in brokers), default=0)),
            configuration_keys=["metrics.listener"],
        )
        request = DescribeConfigsRequest(resources=[resource])
        answer = connection.call(request, DescribeConfigsResponse)
    finally:
        connection.close()
    return next((entry.value or "" for one in answer.results for entry in one.configs), "")
