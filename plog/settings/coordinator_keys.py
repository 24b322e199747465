"""The broker's keys about consumer groups, committed offsets and transactions."""

from __future__ import annotations

from typing import Final

from plog.settings.keys import INT, INT_MAX, LIST, LONG, SHORT, STRING, Settings, key

ASSIGNOR_CLASSES: Final = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
"""By which Kafka 3.9 names the assignors that Kafka 4 has short names for."""


class CoordinatorKeys(Settings):
    """Consumer groups, committed offsets and transactions."""

    group_min_session_timeout_ms = key(
        "group.min.session.timeout.ms",
        INT,
        "Minimum session timeout that a group member may request.",
        default=6000,
    )
    group_max_session_timeout_ms = key(
        "group.max.session.timeout.ms",
        INT,
        "Maximum session timeout that a group member may request.",
        default=1800000,
    )
    group_initial_rebalance_delay_ms = key(
        "group.initial.rebalance.delay.ms",
        INT,
        "How long an empty group waits for more members before its first rebalance.",
        default=3000,
    )
    group_max_size = key(
        "group.max.size",
        INT,
        "Maximum number of members in a group.",
        default=INT_MAX,
        at_least=1,
    )
    group_members_max_bytes = key(
        "group.members.max.bytes",
        LONG,
        "plog's own. Memory for the metadata and assignments of all group members, "
        "including the matches of their topic expressions. One group may use a "
        "sixteenth of the free part. A member that does not fit gets the retriable "
        "`COORDINATOR_NOT_AVAILABLE`, or `GROUP_MAX_SIZE_REACHED` if it would not "
        "fit alone.",
        default=268435456,
        at_least=1048576,
    )
    group_coordinator_rebalance_protocols = key(
        "group.coordinator.rebalance.protocols",
        LIST,
        "Protocols that groups may use. Without `consumer`, requests of KIP-848 are refused.",
        default=("classic", "consumer"),
        values=("classic", "consumer"),
    )
    group_consumer_session_timeout_ms = key(
        "group.consumer.session.timeout.ms",
        INT,
        "Session timeout of members of a consumer group (KIP-848).",
        default=45000,
        at_least=1,
    )
    group_consumer_min_session_timeout_ms = key(
        "group.consumer.min.session.timeout.ms",
        INT,
        "Minimum value of `group.consumer.session.timeout.ms`.",
        default=45000,
        at_least=1,
    )
    group_consumer_max_session_timeout_ms = key(
        "group.consumer.max.session.timeout.ms",
        INT,
        "Maximum value of `group.consumer.session.timeout.ms`.",
        default=60000,
        at_least=1,
    )
    group_consumer_heartbeat_interval_ms = key(
        "group.consumer.heartbeat.interval.ms",
        INT,
        "Interval of heartbeats from members of a consumer group (KIP-848).",
        default=5000,
        at_least=1,
    )
    group_consumer_min_heartbeat_interval_ms = key(
        "group.consumer.min.heartbeat.interval.ms",
        INT,
        "Minimum value of `group.consumer.heartbeat.interval.ms`.",
        default=5000,
        at_least=1,
    )
    group_consumer_max_heartbeat_interval_ms = key(
        "group.consumer.max.heartbeat.interval.ms",
        INT,
        "Maximum value of `group.consumer.heartbeat.interval.ms`.",
        default=15000,
        at_least=1,
    )
    group_consumer_max_size = key(
        "group.consumer.max.size",
        INT,
        "Maximum number of members in a consumer group (KIP-848).",
        default=INT_MAX,
        at_least=1,
    )
    group_consumer_assignors = key(
        "group.consumer.assignors",
        LIST,
        "Assignors of the coordinator, by name or by Kafka's class. The first is "
        "the default for consumer groups.",
        default=("uniform", "range"),
        values=("uniform", "range", *ASSIGNOR_CLASSES),
    )
    group_consumer_migration_policy = key(
        "group.consumer.migration.policy",
        STRING,
        "Convert a classic group when the first member of the consumer protocol "
        "joins (`upgrade`), and back when the last one leaves (`downgrade`).",
        default="bidirectional",
        values=("disabled", "upgrade", "downgrade", "bidirectional"),
    )
    offset_metadata_max_bytes = key(
        "offset.metadata.max.bytes",
        INT,
        "Maximum size of the metadata committed with an offset.",
        default=4096,
    )
    offsets_topic_num_partitions = key(
        "offsets.topic.num.partitions",
        INT,
        "Number of partitions of `__consumer_offsets`. Do not change it once the topic exists.",
        default=50,
        at_least=1,
    )
    offsets_topic_replication_factor = key(
        "offsets.topic.replication.factor",
        SHORT,
        "Replication factor of `__consumer_offsets`.",
        default=3,
        at_least=1,
    )
    offsets_topic_segment_bytes = key(
        "offsets.topic.segment.bytes",
        INT,
        "Segment size of `__consumer_offsets`. A small size makes compaction and loading fast.",
        default=104857600,
        at_least=1,
    )
    offsets_topic_compression_codec = key(
        "offsets.topic.compression.codec",
        INT,
        "The codec of committed offsets, by number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        default=0,
        at_least=0,
        at_most=4,
    )
    offsets_load_buffer_size = key(
        "offsets.load.buffer.size",
        INT,
        "Bytes per read when committed offsets are loaded.",
        default=5242880,
        at_least=1,
    )
    offsets_retention_minutes = key(
        "offsets.retention.minutes",
        INT,
        "How long the offsets of an empty group are kept. For classic groups the "
        "time starts when the last member leaves, for KIP-848 groups at each "
        "commit.",
        default=10080,
        at_least=1,
    )
    offsets_retention_check_interval_ms = key(
        "offsets.retention.check.interval.ms",
        LONG,
        "How often expired offsets are removed.",
        default=600000,
        at_least=1,
    )
    offsets_commit_timeout_ms = key(
        "offsets.commit.timeout.ms",
        INT,
        "Timeout for replicating a commit.",
        default=5000,
        at_least=1,
    )
    transaction_max_timeout_ms = key(
        "transaction.max.timeout.ms",
        INT,
        "Maximum transaction timeout that a producer may request.",
        default=900000,
        at_least=1,
    )
    transactional_id_expiration_ms = key(
        "transactional.id.expiration.ms",
        INT,
        "How long an unused transactional id is remembered.",
        default=604800000,
        at_least=1,
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        "How often transactions past their timeout are aborted.",
        default=10000,
        at_least=1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        "How often unused transactional ids are removed.",
        default=3600000,
        at_least=1,
    )
    transaction_state_log_num_partitions = key(
        "transaction.state.log.num.partitions",
        INT,
        "Number of partitions of `__transaction_state`. Do not change it once the topic exists.",
        default=50,
        at_least=1,
    )
    transaction_state_log_replication_factor = key(
        "transaction.state.log.replication.factor",
        SHORT,
        "Replication factor of `__transaction_state`.",
        default=3,
        at_least=1,
    )
    transaction_state_log_min_isr = key(
        "transaction.state.log.min.isr",
        INT,
        "`min.insync.replicas` of `__transaction_state`.",
        default=2,
        at_least=1,
    )
    transaction_state_log_segment_bytes = key(
        "transaction.state.log.segment.bytes",
        INT,
        "Segment size of `__transaction_state`.",
        default=104857600,
        at_least=1,
    )
    transaction_state_log_load_buffer_size = key(
        "transaction.state.log.load.buffer.size",
        INT,
        "Bytes per read when transaction states are loaded.",
        default=5242880,
        at_least=1,
    )
