"""Configs: description and change."""

from plog.protocol.schema import Bool, Int8, Int16, Int32, String, Struct, field, message


class DescribeConfigsResource(Struct):
    """One of `resources`."""

    resource_type: Int8 = field("2 topic, 4 broker, 8 broker logger, 32 group.")
    resource_name: String = field("The topic's or group's name, or the broker's id.")
    configuration_keys: list[String] | None = field("Requested keys; None for all.", nullable="0+")


@message(api_key=32, versions="0-4", flexible="4+")
class DescribeConfigsRequest(Struct):
    """Asks for settings of topics, brokers and groups. V1 synonyms, v3 documentation."""

    resources: list[DescribeConfigsResource] = field("The resources.")
    include_synonyms: Bool = field("Whether to include synonyms.", versions="1+", default=False)
    include_documentation: Bool = field(
        "Whether to include documentation.", versions="3+", default=False
    )


class DescribeConfigsSynonym(Struct):
    """One of `synonyms`."""

    name: String = field("The name.", versions="1+", default="")
    value: String | None = field("The value.", versions="1+", nullable="1+", default=None)
    source: Int8 = field("Source of the value.", versions="1+", default=0)


class DescribeConfigsResourceResult(Struct):
    """One of `configs`."""

    name: String = field("The name.")
    value: String | None = field("The value.", nullable="0+")
    read_only: Bool = field("Whether it cannot be changed.")
    is_default: Bool = field("Whether the value is the default.", versions="0", default=False)
    config_source: Int8 = field("Source of the value.", versions="1+", default=-1, ignorable=True)
    is_sensitive: Bool = field("Whether it is a secret, whose value is None.")
    synonyms: list[DescribeConfigsSynonym] = field(
        "The values for this key at all levels, the most specific first.",
        versions="1+",
        default=[],
        ignorable=True,
    )
    config_type: Int8 = field("Type of the value.", versions="3+", default=0, ignorable=True)
    documentation: String | None = field(
        "Documentation of the key.", versions="3+", nullable="3+", default=None, ignorable=True
    )


class DescribeConfigsResult(Struct):
    """One of `results`."""

    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field("Error message, or None.", nullable="0+", default=None)
    resource_type: Int8 = field("2 topic, 4 broker, 8 broker logger, 32 group.")
    resource_name: String = field("The topic's or group's name, or the broker's id.")
    configs: list[DescribeConfigsResourceResult] = field("The settings.")


@message(api_key=32, versions="0-4", flexible="4+")
class DescribeConfigsResponse(Struct):
    """The settings."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    results: list[DescribeConfigsResult] = field("The results.")


class AlterableConfig(Struct):
    """One of `configs`."""

    name: String = field("The name.")
    value: String | None = field("The value.", nullable="0+")


class AlterConfigsResource(Struct):
    """One of `resources`."""

    resource_type: Int8 = field("2 topic, 4 broker, 8 broker logger, 32 group.")
    resource_name: String = field("The topic's or group's name, or the broker's id.")
    configs: list[AlterableConfig] = field("The settings.")


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest(Struct):
    """Replaces all dynamic settings of topics, brokers and groups."""

    resources: list[AlterConfigsResource] = field("The resources.")
    validate_only: Bool = field("Check the request without changing anything.")


class AlterConfigsResourceResponse(Struct):
    """One of `responses`."""

    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field("Error message, or None.", nullable="0+", default=None)
    resource_type: Int8 = field("2 topic, 4 broker, 8 broker logger, 32 group.")
    resource_name: String = field("The topic's or group's name, or the broker's id.")


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse(Struct):
    """The result for each resource."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    responses: list[AlterConfigsResourceResponse] = field("The result for each topic or resource.")


class IncrementalAlterableConfig(Struct):
    """One of `configs`."""

    name: String = field("The name.")
    config_operation: Int8 = field("0 set, 1 delete, 2 append, 3 subtract (KIP-339).")
    value: String | None = field("The value.", nullable="0+")


class IncrementalAlterConfigsResource(Struct):
    """One of `resources`."""

    resource_type: Int8 = field("2 topic, 4 broker, 8 broker logger, 32 group.")
    resource_name: String = field("The topic's or group's name, or the broker's id.")
    configs: list[IncrementalAlterableConfig] = field("The settings.")


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest(Struct):
    """Changes single settings of topics, brokers and groups (KIP-339)."""

    resources: list[IncrementalAlterConfigsResource] = field("The resources.")
    validate_only: Bool = field("Check the request without changing anything.")


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse(Struct):
    """The result for each resource."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    responses: list[AlterConfigsResourceResponse] = field("The result for each topic or resource.")


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest(Struct):
    """Lists resources with settings (KIP-1142); v0 only client metrics (KIP-1000)."""

    resource_types: list[Int8] = field(
        "Requested types, as in DescribeConfigs; empty for all.",
        versions="1+",
        default=[],
    )


class ListedConfigResource(Struct):
    """One of `config_resources`."""

    resource_name: String = field("The topic's or group's name, or the broker's id.")
    resource_type: Int8 = field(
        "2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group.",
        versions="1+",
        default=16,
        ignorable=True,
    )


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse(Struct):
    """The resources."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    error_code: Int16 = field("Error code, 0 for success.")
    config_resources: list[ListedConfigResource] = field("The resources.", default=[])
