"""Settings with their synonyms, as kafka-configs prints them."""

from __future__ import annotations

from typing import NamedTuple

from plog.client.admin import BROKER, LOGGER
from plog.client.metadata import Cluster
from plog.errors import ErrorCode, InvalidRequest, error_for
from plog.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "CLIENT_METRICS_CONFIG",
    8: "GROUP_CONFIG",
}
"""Kafka's names of the places where a setting comes from."""


class Synonym(NamedTuple):
    """A value that applies, or would apply without those before it."""

    source: str
    name: str
    value: str | None


class Setting(NamedTuple):
    """A setting of an entity; `value` is None for secrets."""

    name: str
    value: str | None
    source: str
    is_sensitive: bool
    synonyms: list[Synonym]


def describe(cluster: Cluster, resource_type: int, name: str) -> list[Setting]:
    """Return the settings of a resource by name.

    Raises:
        InvalidRequest: no broker has the id.
        KafkaError: the broker refuses.
    """
    resource = DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=False
    )
    if resource_type in (BROKER, LOGGER) and name:
        cluster.refresh([])
        if int(name) not in cluster.nodes:
            raise InvalidRequest(f"no broker has id {name}")
        answer = cluster.connection(int(name)).call(request, DescribeConfigsResponse)
    else:
        answer = cluster.ask_any(request, DescribeConfigsResponse)
    (result,) = answer.results
    if result.error_code != ErrorCode.NONE:
        fault = error_for(result.error_code, result.error_message or "")
        fault.broker_message = result.error_message
        raise fault
    return sorted(
        Setting(
            config.name,
            config.value,
            SOURCES.get(config.config_source, "UNKNOWN"),
            config.is_sensitive,
            [
                Synonym(SOURCES.get(one.source, "UNKNOWN"), one.name, one.value)
                for one in config.synonyms
            ],
        )
        for config in result.configs
    )
