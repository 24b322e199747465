"""The keys of a consumer group (KIP-848), each with the broker key it falls back on."""

from __future__ import annotations

from plog.settings.coordinator_keys import CoordinatorKeys
from plog.settings.keys import INT, Settings, entity_key


class GroupKeys(Settings):
    """Groups."""

    consumer_session_timeout_ms = entity_key(
        "consumer.session.timeout.ms",
        INT,
        CoordinatorKeys.group_consumer_session_timeout_ms,
        doc="Session timeout of this consumer group's members, from "
        "`group.consumer.min.session.timeout.ms` to "
        "`group.consumer.max.session.timeout.ms`.",
    )
    consumer_heartbeat_interval_ms = entity_key(
        "consumer.heartbeat.interval.ms",
        INT,
        CoordinatorKeys.group_consumer_heartbeat_interval_ms,
        doc="Interval of heartbeats from this consumer group's members, from "
        "`group.consumer.min.heartbeat.interval.ms` to "
        "`group.consumer.max.heartbeat.interval.ms`, and below "
        "`consumer.session.timeout.ms`.",
    )
