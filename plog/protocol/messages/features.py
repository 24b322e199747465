"""UpdateFeatures: the finalized features of the cluster (KIP-584)."""

from plog.protocol.schema import Bool, Int8, Int16, Int32, String, Struct, field, message


class FeatureUpdateKey(Struct):
    """One of `feature_updates`."""

    feature: String = field("The feature.")
    max_version_level: Int16 = field("The new level; below 1 removes the feature.")
    allow_downgrade: Bool = field(
        "Whether the level may become lower.", versions="0", default=False
    )
    upgrade_type: Int8 = field(
        "1 raises the level, 2 lowers it if no data is lost, 3 lowers it in any case.",
        versions="1+",
        default=1,
    )


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest(Struct):
    """Changes the levels of features."""

    timeout_ms: Int32 = field("Timeout of the request, in ms.", default=60000)
    feature_updates: list[FeatureUpdateKey] = field("The changes.")
    validate_only: Bool = field(
        "Check the request without changing anything.", versions="1+", default=False
    )


class UpdatableFeatureResult(Struct):
    """One of `results`."""

    feature: String = field("The feature.")
    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field("Error message, or None.", nullable="0+", default=None)


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse(Struct):
    """The result of each change; from v2 on one result for all."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field("Error message, or None.", nullable="0+", default=None)
    results: list[UpdatableFeatureResult] = field(
        "The result of each change.", versions="0-1", default=[], ignorable=True
    )
