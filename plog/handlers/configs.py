"""Configs of topics, brokers and groups: described, altered, and which there are.

Checks and writes are the cluster's (`ConfigAdmin`), descriptions the settings'. Log levels are
configs too; `broker_loggers` has them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import TypeVar

from plog.cluster.znodes import ConfigEntity
from plog.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    KafkaStorageError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from plog.handlers.broker_loggers import alter_loggers, describe_loggers
from plog.handlers.context import Context
from plog.handlers.registry import handles
from plog.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)
from plog.settings.alterations import Alteration
from plog.settings.dynamic import ConfigEntry, ConfigSource
from plog.types import is_legal_topic_name


class ResourceType(IntEnum):
    """What a config belongs to, as requests number it."""

    TOPIC = 2
    BROKER = 4
    LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


R = TypeVar("R", AlterConfigsResource, IncrementalAlterConfigsResource)

CLUSTER_DEFAULT = ""
"""Name of the broker that stands for all brokers."""


# -- DescribeConfigs


@handles(DescribeConfigsRequest, versions="0-4")
async def describe_configs(
    ctx: Context, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe the settings of each resource.

    Named twice is told once, with all the keys that were asked for: five bytes of a request would
    else be answered by twenty thousand, as often as there is room for them.
    """
    resources = _each_once(request.resources)
    await _refresh_topics(ctx, resources)
    return DescribeConfigsResponse(
        results=await ctx.each(partial(_describe, ctx, request), resources)
    )


async def _refresh_topics(ctx: Context, resources: Sequence[DescribeConfigsResource]) -> None:
    """Read what other brokers may have written, unless the store is away."""
    metadata, refresh = ctx.services.metadata, ctx.services.configs.refresh_topics
    topics = [
        one.resource_name
        for one in resources
        if one.resource_type == ResourceType.TOPIC and metadata.topic(one.resource_name) is not None
    ]
    if refresh is not None and topics:
        with suppress(KafkaStorageError, RequestTimedOut):
            await ctx.in_thread(refresh, topics)


def _each_once(resources: Sequence[DescribeConfigsResource]) -> list[DescribeConfigsResource]:
    found: dict[tuple[int, str], list[DescribeConfigsResource]] = defaultdict(list)
    for one in resources:
        found[one.resource_type, one.resource_name].append(one)
    return [
        DescribeConfigsResource(
            resource_type=kind,
            resource_name=name,
            configuration_keys=_all_keys(asked),
        )
        for (kind, name), asked in found.items()
    ]


def _all_keys(asked: Sequence[DescribeConfigsResource]) -> list[str] | None:
    # An empty list means all keys too, to Kafka's clients before 2.5.
    if not all(one.configuration_keys for one in asked):
        return None
    return list(dict.fromkeys(key for one in asked for key in one.configuration_keys or ()))


def _describe(
    ctx: Context, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    try:
        entries = _entries(ctx, resource)
    except KafkaError as refusal:
        return DescribeConfigsResult(
            error_code=refusal.code,
            error_message=str(refusal),
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[],
        )
    # As from Kafka: that of a logger is empty, never null.
    is_logger = resource.resource_type == ResourceType.LOGGER
    with_documentation = request.include_documentation or is_logger
    return DescribeConfigsResult(
        error_code=ErrorCode.NONE,
        error_message="",  # not null, as from Kafka
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[
            DescribeConfigsResourceResult(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                is_default=ctx.version == 0 and entry.source == ConfigSource.DEFAULT,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
                synonyms=[
                    DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source)
                    for s in entry.synonyms
                ]
                if request.include_synonyms
                else [],
                config_type=entry.type,
                documentation=entry.doc if with_documentation else None,
            )
            for entry in entries
        ],
    )


def _entries(ctx: Context, resource: DescribeConfigsResource) -> list[ConfigEntry]:
    settings, name, keys = (
        ctx.services.settings,
        resource.resource_name,
        resource.configuration_keys,
    )
    if resource.resource_type == ResourceType.TOPIC:
        if not is_legal_topic_name(name):
            raise InvalidTopic(f"invalid topic name {name!r}")
        if ctx.services.metadata.topic(name) is None:
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
        return settings.describe_topic(name, keys)
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise InvalidRequest("the group name is empty")
        return settings.describe_group(name, keys)
    if resource.resource_type == ResourceType.LOGGER:
        return describe_loggers(ctx, name, keys)
    if resource.resource_type != ResourceType.BROKER:
        raise InvalidRequest(f"resources of type {resource.resource_type} have no configs")
    if name == CLUSTER_DEFAULT:
        return settings.describe_cluster_default(keys)
    if name != str(ctx.services.node_id):
        raise InvalidRequest(
            f"request for broker {name!r} was sent to broker {ctx.services.node_id}"
        )
    return settings.describe_broker(keys)


# -- ListConfigResources

LISTED_TYPES_SINCE = 1
"""From this version of ListConfigResources on it is about more than client metrics (KIP-1142)."""


@handles(ListConfigResourcesRequest, versions="0-1")
def list_config_resources(
    ctx: Context, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """List brokers (also as the names of their loggers), topics, and groups with own configs."""
    types = request.resource_types or list(ResourceType)
    if ctx.version < LISTED_TYPES_SINCE:
        types = [ResourceType.CLIENT_METRICS]
    if any(one not in set(ResourceType) for one in types):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        error_code=ErrorCode.NONE,
        config_resources=[
            ListedConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(set(types))
            for name in _listed(ctx, ResourceType(kind))
        ],
    )


def _listed(ctx: Context, kind: ResourceType) -> list[str]:
    cluster = ctx.services.metadata.snapshot
    match kind:
        case ResourceType.TOPIC:
            return sorted(cluster.topics)
        case ResourceType.BROKER | ResourceType.LOGGER:
            return [str(broker_id) for broker_id in sorted(cluster.brokers)]
        case ResourceType.GROUP:
            return sorted(ctx.services.settings.groups())
        case _:
            return []


# -- AlterConfigs, IncrementalAlterConfigs


@handles(AlterConfigsRequest, versions="0-2")
async def alter_configs(ctx: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Replace all settings of each resource."""

    async def replace(resource: AlterConfigsResource) -> None:
        if resource.resource_type == ResourceType.LOGGER:
            raise InvalidRequest("AlterConfigs sets no log levels: use IncrementalAlterConfigs")
        entity = _entity(resource.resource_type, resource.resource_name)
        keys = [config.name for config in resource.configs]
        if len(set(keys)) < len(keys):
            raise InvalidRequest("duplicate key")
        await ctx.in_thread(
            ctx.services.configs.replace,
            entity,
            {config.name: config.value for config in resource.configs},
            validate_only=request.validate_only,
        )

    return AlterConfigsResponse(responses=await _alter_all(request.resources, replace))


@handles(IncrementalAlterConfigsRequest, versions="0-1")
async def incremental_alter_configs(
    ctx: Context, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change some settings of each resource (KIP-339)."""

    async def alter(resource: IncrementalAlterConfigsResource) -> None:
        alterations = [
            Alteration(config.name, config.config_operation, config.value)
            for config in resource.configs
        ]
        validate_only, name = request.validate_only, resource.resource_name
        if resource.resource_type == ResourceType.LOGGER:
            alter_loggers(ctx, name, alterations, validate_only=validate_only)
            return
        entity = _entity(resource.resource_type, name)
        alter = ctx.services.configs.alter
        await ctx.in_thread(alter, entity, alterations, validate_only=validate_only)

    return IncrementalAlterConfigsResponse(responses=await _alter_all(request.resources, alter))


async def _alter_all(
    resources: Sequence[R], change: Callable[[R], Awaitable[None]]
) -> list[AlterConfigsResourceResponse]:
    named = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    return [
        await _alter(resource, change, named[resource.resource_type, resource.resource_name] > 1)
        for resource in resources
    ]


async def _alter(
    resource: R, change: Callable[[R], Awaitable[None]], is_twice: bool
) -> AlterConfigsResourceResponse:
    code, message = ErrorCode.NONE, None
    try:
        if is_twice:
            raise InvalidRequest("duplicate resource")
        await change(resource)
    except KafkaError as refusal:
        code, message = refusal.code, str(refusal)
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _entity(resource_type: int, name: str) -> ConfigEntity:
    if resource_type == ResourceType.TOPIC:
        return ConfigEntity.topic(name)
    if resource_type == ResourceType.GROUP:
        return ConfigEntity.group(name)
    if resource_type != ResourceType.BROKER:
        raise InvalidRequest(f"resources of type {resource_type} have no configs")
    if name == CLUSTER_DEFAULT:
        return ConfigEntity.broker(None)
    if not (name.isascii() and name.isdecimal()):
        raise InvalidRequest(f"{name!r} is not a broker id")
    return ConfigEntity.broker(int(name))
