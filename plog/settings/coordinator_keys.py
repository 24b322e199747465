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
        "The shortest session timeout a group member may ask for.",
        default=6000,
    )
    group_max_session_timeout_ms = key(
        "group.max.session.timeout.ms",
        INT,
        "The longest session timeout a group member may ask for.",
        default=1800000,
    )
    group_initial_rebalance_delay_ms = key(
        "group.initial.rebalance.delay.ms",
        INT,
        "How long an empty group waits for more members before its first assignment.",
        default=3000,
    )
    group_max_size = key(
        "group.max.size",
        INT,
        "The most members of a group.",
        default=INT_MAX,
        at_least=1,
    )
    group_members_max_bytes = key(
        "group.members.max.bytes",
        LONG,
        "plog's own. How much memory what members tell of themselves and are assigned may take, "
        "over all groups, with what their expressions match. A group may have a sixteenth of what "
        "others leave; a member with which it would be larger is told "
        "`COORDINATOR_NOT_AVAILABLE`, and tries again, or `GROUP_MAX_SIZE_REACHED`, where it would "
        "find no room without the others either.",
        default=268435456,
        at_least=1048576,
    )
    group_coordinator_rebalance_protocols = key(
        "group.coordinator.rebalance.protocols",
        LIST,
        "Which protocols groups may use. Without `consumer` its requests (KIP-848) are not served.",
        default=("classic", "consumer"),
        values=("classic", "consumer"),
    )
    group_consumer_session_timeout_ms = key(
        "group.consumer.session.timeout.ms",
        INT,
        "How long a member of a consumer group (KIP-848) may be silent.",
        default=45000,
        at_least=1,
    )
    group_consumer_min_session_timeout_ms = key(
        "group.consumer.min.session.timeout.ms",
        INT,
        "The least that `group.consumer.session.timeout.ms` may be.",
        default=45000,
        at_least=1,
    )
    group_consumer_max_session_timeout_ms = key(
        "group.consumer.max.session.timeout.ms",
        INT,
        "The most that `group.consumer.session.timeout.ms` may be.",
        default=60000,
        at_least=1,
    )
    group_consumer_heartbeat_interval_ms = key(
        "group.consumer.heartbeat.interval.ms",
        INT,
        "How often members of a consumer group (KIP-848) are told to send heartbeats.",
        default=5000,
        at_least=1,
    )
    group_consumer_min_heartbeat_interval_ms = key(
        "group.consumer.min.heartbeat.interval.ms",
        INT,
        "The least that `group.consumer.heartbeat.interval.ms` may be.",
        default=5000,
        at_least=1,
    )
    group_consumer_max_heartbeat_interval_ms = key(
        "group.consumer.max.heartbeat.interval.ms",
        INT,
        "The most that `group.consumer.heartbeat.interval.ms` may be.",
        default=15000,
        at_least=1,
    )
    group_consumer_max_size = key(
        "group.consumer.max.size",
        INT,
        "The most members of a consumer group (KIP-848).",
        default=INT_MAX,
        at_least=1,
    )
    group_consumer_assignors = key(
        "group.consumer.assignors",
        LIST,
        "The coordinator's assignors, by their names or Kafka's classes. The first is used where a"
        " consumer group's members prefer none.",
        default=("uniform", "range"),
        values=("uniform", "range", *ASSIGNOR_CLASSES),
    )
    group_consumer_migration_policy = key(
        "group.consumer.migration.policy",
        STRING,
        "Whether classic groups become consumer groups with their first member of that protocol"
        " (`upgrade`), and go back with the last (`downgrade`).",
        default="bidirectional",
        values=("disabled", "upgrade", "downgrade", "bidirectional"),
    )
    offset_metadata_max_bytes = key(
        "offset.metadata.max.bytes",
        INT,
        "The longest text that may be committed with an offset.",
        default=4096,
    )
    offsets_topic_num_partitions = key(
        "offsets.topic.num.partitions",
        INT,
        "Partitions of `__consumer_offsets`. Not to be changed once it exists.",
        default=50,
        at_least=1,
    )
    offsets_topic_replication_factor = key(
        "offsets.topic.replication.factor",
        SHORT,
        "Replicas of `__consumer_offsets`.",
        default=3,
        at_least=1,
    )
    offsets_topic_segment_bytes = key(
        "offsets.topic.segment.bytes",
        INT,
        "Segment size of `__consumer_offsets`; small, so that it is compacted and loaded fast.",
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
        "How much is read at once when committed offsets are loaded.",
        default=5242880,
        at_least=1,
    )
    offsets_retention_minutes = key(
        "offsets.retention.minutes",
        INT,
        "How long the offsets of a group without members are kept.",
        default=10080,
        at_least=1,
    )
    offsets_retention_check_interval_ms = key(
        "offsets.retention.check.interval.ms",
        LONG,
        "How often offsets are looked over to be forgotten.",
        default=600000,
        at_least=1,
    )
    offsets_commit_timeout_ms = key(
        "offsets.commit.timeout.ms",
        INT,
        "How long a commit waits for the replicas.",
        default=5000,
        at_least=1,
    )
    transaction_max_timeout_ms = key(
        "transaction.max.timeout.ms",
        INT,
        "The longest timeout a transactional producer may ask for.",
        default=900000,
        at_least=1,
    )
    transactional_id_expiration_ms = key(
        "transactional.id.expiration.ms",
        INT,
        "How long a transactional id that is not used is remembered.",
        default=604800000,
        at_least=1,
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms = key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        "How often transactions that took too long are aborted.",
        default=10000,
        at_least=1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        "How often transactional ids are looked over to be forgotten.",
        default=3600000,
        at_least=1,
    )
    transaction_state_log_num_partitions = key(
        "transaction.state.log.num.partitions",
        INT,
        "Partitions of `__transaction_state`. Not to be changed once it exists.",
        default=50,
        at_least=1,
    )
    transaction_state_log_replication_factor = key(
        "transaction.state.log.replication.factor",
        SHORT,
        "Replicas of `__transaction_state`.",
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
        "How much is read at once when transaction states are loaded.",
        default=5242880,
        at_least=1,
    )
