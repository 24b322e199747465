"""ApiVersions: the APIs and versions that a broker supports."""

from plog.protocol.schema import Bool, Int16, Int32, Int64, String, Struct, field, message


@message(api_key=18, versions="0-5", flexible="3+")
class ApiVersionsRequest(Struct):
    """Asks for the supported APIs; the first request of most connections.

    V5 names the broker that the client expects (KIP-1242).
    """

    client_software_name: String = field(
        "The client library (KIP-511).", versions="3+", default="", ignorable=True
    )
    client_software_version: String = field(
        "Its version.", versions="3+", default="", ignorable=True
    )
    cluster_id: String | None = field(
        "The cluster that the client expects (KIP-1242), None when unknown.",
        versions="5+",
        nullable="5+",
        default=None,
        ignorable=True,
    )
    node_id: Int32 = field(
        "The node that the client expects, -1 when unknown.",
        versions="5+",
        default=-1,
        ignorable=True,
    )


class ApiVersion(Struct):
    """One of `api_keys`."""

    api_key: Int16 = field("The API.")
    min_version: Int16 = field("Lowest supported version.")
    max_version: Int16 = field("Highest supported version.")


class SupportedFeatureKey(Struct):
    """One of `supported_features`."""

    name: String = field("The name.", versions="3+", default="")
    min_version: Int16 = field("Lowest supported version.", versions="3+", default=0)
    max_version: Int16 = field("Highest supported version.", versions="3+", default=0)


class FinalizedFeatureKey(Struct):
    """One of `finalized_features`."""

    name: String = field("The name.", versions="3+", default="")
    max_version_level: Int16 = field("Finalized level.", versions="3+", default=0)
    min_version_level: Int16 = field("Lowest finalized level.", versions="3+", default=0)


@message(api_key=18, versions="0-5", flexible="3+")
class ApiVersionsResponse(Struct):
    """The supported APIs and features.

    Its header is version 0 whatever its own version (KIP-511). V3 features (KIP-584).
    """

    error_code: Int16 = field("Error code, 0 for success.")
    api_keys: list[ApiVersion] = field("The supported APIs.")
    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", versions="1+", default=0, ignorable=True
    )
    supported_features: list[SupportedFeatureKey] = field(
        "Features that the broker supports (KIP-584).",
        versions="3+",
        default=[],
        tag=0,
        ignorable=True,
    )
    finalized_features_epoch: Int64 = field(
        "Epoch of the finalised features, -1 when unknown.",
        versions="3+",
        default=-1,
        tag=1,
        ignorable=True,
    )
    finalized_features: list[FinalizedFeatureKey] = field(
        "Finalized features of the cluster.", versions="3+", default=[], tag=2, ignorable=True
    )
    zk_migration_ready: Bool = field(
        "Whether a migration to KRaft may begin.",
        versions="3+",
        default=False,
        tag=3,
        ignorable=True,
    )
