"""The keys of a topic, each with the broker keys it falls back on (Kafka's synonyms)."""

from __future__ import annotations

import re

from plog.settings.cluster_keys import ClusterKeys
from plog.settings.keys import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    STRING,
    ConfigType,
    Kind,
    Settings,
    Synonym,
    entity_key,
    own_topic_key,
)
from plog.settings.log_keys import LogKeys

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
NO_REMOTE_STORAGE = "plog has no remote storage"

_REPLICA = re.compile(r"(?:[0-9]+:[0-9]+)?")


def _replicas(text: str) -> tuple[str, ...]:
    replicas = LIST.parse(text)
    if replicas != ("*",) and not all(_REPLICA.fullmatch(replica) for replica in replicas):
        raise ValueError(f"{text!r} is neither * nor partition:broker with commas between")
    return replicas


def _local_only(text: str) -> bool:
    if BOOLEAN.parse(text):
        raise ValueError("plog keeps every segment in its log directories")
    return False


REPLICAS = Kind(ConfigType.LIST, _replicas, LIST.format)

LOCAL_ONLY = Kind(ConfigType.BOOLEAN, _local_only, BOOLEAN.format)


class TopicKeys(Settings):
    """Topics."""

    cleanup_policy = entity_key("cleanup.policy", LIST, LogKeys.log_cleanup_policy)
    compression_type = entity_key("compression.type", STRING, LogKeys.compression_type)
    compression_gzip_level = entity_key(
        "compression.gzip.level", INT, LogKeys.compression_gzip_level
    )
    compression_lz4_level = entity_key("compression.lz4.level", INT, LogKeys.compression_lz4_level)
    compression_zstd_level = entity_key(
        "compression.zstd.level", INT, LogKeys.compression_zstd_level
    )
    delete_retention_ms = entity_key(
        "delete.retention.ms", LONG, LogKeys.log_cleaner_delete_retention_ms
    )
    file_delete_delay_ms = entity_key(
        "file.delete.delay.ms", LONG, LogKeys.log_segment_delete_delay_ms
    )
    flush_before_ack = entity_key("flush.before.ack", BOOLEAN, LogKeys.flush_before_ack)
    flush_messages = entity_key("flush.messages", LONG, LogKeys.log_flush_interval_messages)
    flush_ms = entity_key(
        "flush.ms",
        LONG,
        LogKeys.log_flush_interval_ms,
        LogKeys.log_flush_scheduler_interval_ms,
        doc="Flush a partition to disk when its oldest unflushed record reaches this age.",
    )
    index_interval_bytes = entity_key("index.interval.bytes", INT, LogKeys.log_index_interval_bytes)
    max_compaction_lag_ms = entity_key(
        "max.compaction.lag.ms", LONG, LogKeys.log_cleaner_max_compaction_lag_ms
    )
    max_message_bytes = entity_key("max.message.bytes", INT, LogKeys.message_max_bytes)
    message_downconversion_enable = entity_key(
        "message.downconversion.enable", BOOLEAN, LogKeys.log_message_downconversion_enable
    )
    message_format_version = entity_key(
        "message.format.version", STRING, LogKeys.log_message_format_version
    )
    message_timestamp_type = entity_key(
        "message.timestamp.type", STRING, LogKeys.log_message_timestamp_type
    )
    message_timestamp_before_max_ms = entity_key(
        "message.timestamp.before.max.ms", LONG, LogKeys.log_message_timestamp_before_max_ms
    )
    message_timestamp_after_max_ms = entity_key(
        "message.timestamp.after.max.ms", LONG, LogKeys.log_message_timestamp_after_max_ms
    )
    message_timestamp_difference_max_ms = entity_key(
        "message.timestamp.difference.max.ms",
        LONG,
        LogKeys.log_message_timestamp_difference_max_ms,
    )
    min_cleanable_dirty_ratio = entity_key(
        "min.cleanable.dirty.ratio", DOUBLE, LogKeys.log_cleaner_min_cleanable_ratio
    )
    min_compaction_lag_ms = entity_key(
        "min.compaction.lag.ms", LONG, LogKeys.log_cleaner_min_compaction_lag_ms
    )
    min_insync_replicas = entity_key("min.insync.replicas", INT, ClusterKeys.min_insync_replicas)
    preallocate = entity_key("preallocate", BOOLEAN, LogKeys.log_preallocate)
    retention_bytes = entity_key("retention.bytes", LONG, LogKeys.log_retention_bytes)
    retention_ms = entity_key(
        "retention.ms",
        LONG,
        LogKeys.log_retention_ms,
        Synonym(LogKeys.log_retention_minutes, MINUTE_MS),
        Synonym(LogKeys.log_retention_hours, HOUR_MS),
        at_least=-1,
        doc="Segments are deleted when their newest record is older than this. -1 keeps"
        " them forever.",
    )
    segment_bytes = entity_key("segment.bytes", INT, LogKeys.log_segment_bytes)
    segment_index_bytes = entity_key("segment.index.bytes", INT, LogKeys.log_index_size_max_bytes)
    segment_jitter_ms = entity_key(
        "segment.jitter.ms",
        LONG,
        LogKeys.log_roll_jitter_ms,
        Synonym(LogKeys.log_roll_jitter_hours, HOUR_MS),
        doc="Maximum random time by which segments roll earlier, so that they do not "
        "all roll at once.",
    )
    segment_ms = entity_key(
        "segment.ms",
        LONG,
        LogKeys.log_roll_ms,
        Synonym(LogKeys.log_roll_hours, HOUR_MS),
        doc="Maximum age of a segment's first record; then the log rolls, so that "
        "retention and compaction can process the segment.",
    )
    unclean_leader_election_enable = entity_key(
        "unclean.leader.election.enable", BOOLEAN, ClusterKeys.unclean_leader_election_enable
    )
    leader_replication_throttled_replicas = own_topic_key(
        "leader.replication.throttled.replicas",
        REPLICAS,
        "Replicas whose leaders are throttled: partition:broker separated by commas, or *.",
        default=(),
        no_effect="replication is not throttled",
    )
    follower_replication_throttled_replicas = own_topic_key(
        "follower.replication.throttled.replicas",
        REPLICAS,
        "Replicas that are throttled as followers: partition:broker separated by commas, or *.",
        default=(),
        no_effect="replication is not throttled",
    )
    remote_storage_enable = own_topic_key(
        "remote.storage.enable",
        LOCAL_ONLY,
        "Copy segments to remote storage (KIP-405). plog has none.",
        default=False,
        no_effect=NO_REMOTE_STORAGE,
    )
    remote_log_copy_disable = own_topic_key(
        "remote.log.copy.disable",
        LOCAL_ONLY,
        "Stop copying new segments to remote storage.",
        default=False,
        no_effect=NO_REMOTE_STORAGE,
    )
    remote_log_delete_on_disable = own_topic_key(
        "remote.log.delete.on.disable",
        LOCAL_ONLY,
        "Delete a topic's remote segments when it leaves remote storage.",
        default=False,
        no_effect=NO_REMOTE_STORAGE,
    )
    local_retention_bytes = own_topic_key(
        "local.retention.bytes",
        LONG,
        "Local size limit for segments that are in remote storage; -2 uses `retention.bytes`.",
        default=-2,
        at_least=-2,
        no_effect=NO_REMOTE_STORAGE,
    )
    local_retention_ms = own_topic_key(
        "local.retention.ms",
        LONG,
        "Local retention for segments that are in remote storage; -2 uses `retention.ms`.",
        default=-2,
        at_least=-2,
        no_effect=NO_REMOTE_STORAGE,
    )
