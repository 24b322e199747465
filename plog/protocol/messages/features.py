"""UpdateFeatures: what the whole cluster may do from now on (KIP-584)."""

from plog.protocol.schema import Bool, Int8, Int16, Int32, String, Struct, field, message


class FeatureUpdateKey(Struct):
    """One of `feature_updates`."""

    feature: String = field("The feature.")
    max_version_level: Int16 = field("The level that is to be in force; below 1: none.")
    allow_downgrade: Bool = field(
        "Whether the level may become lower.", versions="0", default=False
    )
    upgrade_type: Int8 = field(
        "1 to raise the level, 2 to lower it where nothing is lost, 3 to lower it all the same.",
        versions="1+",
        default=1,
    )


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest(Struct):
    """Changes the levels of features."""

    timeout_ms: Int32 = field("How long the client waits, in ms.", default=60000)
    feature_updates: list[FeatureUpdateKey] = field("The changes.")
    validate_only: Bool = field("Check, and change nothing.", versions="1+", default=False)


class UpdatableFeatureResult(Struct):
    """One of `results`."""

    feature: String = field("The feature.")
    error_code: Int16 = field("0, or why it failed.")
    error_message: String | None = field("Why it failed, in words.", nullable="0+", default=None)


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse(Struct):
    """Which changes were made; v2 says so of all of them together."""

    throttle_time_ms: Int32 = field("How long a quota holds the client back, in ms.", default=0)
    error_code: Int16 = field("0, or why it failed.")
    error_message: String | None = field("Why it failed, in words.", nullable="0+", default=None)
    results: list[UpdatableFeatureResult] = field(
        "What became of each change.", versions="0-1", default=[], ignorable=True
    )
