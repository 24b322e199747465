"""The broker's keys about logs: where they are, when they roll, flush and go, what they accept.

Most are also the default of a topic's key; `topic_keys` says which.
"""

from __future__ import annotations

import sys

from plog.settings.keys import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    ConfigType,
    Kind,
    Settings,
    Update,
    key,
)

NO_DOWN_CONVERSION = "plog does not support old message formats yet"

DIRECTORIES = Kind(ConfigType.STRING, LIST.parse, LIST.format)
"""A list, which Kafka calls a string."""


class LogKeys(Settings):
    """Logs and their topics."""

    log_dirs = key(
        "log.dirs",
        DIRECTORIES,
        "Log directories, separated by commas, preferably one per disk. A new "
        "partition goes to the directory with the fewest partitions. Defaults to "
        "`log.dir`.",
        default=("/var/lib/plog/data",),
    )
    log_dir = key("log.dir", STRING, "The log directory if `log.dirs` is not set.", default=None)
    num_recovery_threads_per_data_dir = key(
        "num.recovery.threads.per.data.dir",
        INT,
        "Number of logs per directory that a starting broker loads in parallel.",
        default=1,
        at_least=1,
    )
    num_partitions = key(
        "num.partitions",
        INT,
        "Number of partitions of a topic that is created without one.",
        default=1,
        at_least=1,
    )
    auto_create_topics_enable = key(
        "auto.create.topics.enable",
        BOOLEAN,
        "Create a topic when a client requests its metadata.",
        default=True,
    )
    delete_topic_enable = key(
        "delete.topic.enable", BOOLEAN, "Allow topics to be deleted.", default=True
    )
    message_max_bytes = key(
        "message.max.bytes",
        INT,
        "Maximum size of a record batch on the wire, compressed or not.",
        default=1048588,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_segment_bytes = key(
        "log.segment.bytes",
        INT,
        "Maximum size of a segment file; the log rolls before it grows larger.",
        default=1073741824,
        at_least=14,
        update=Update.CLUSTER_WIDE,
    )
    log_roll_ms = key(
        "log.roll.ms",
        LONG,
        "Maximum age of a segment's first record; then the log rolls, so that "
        "retention and compaction can process the segment. Defaults to "
        "`log.roll.hours`.",
        at_least=1,
        update=Update.CLUSTER_WIDE,
    )
    log_roll_hours = key("log.roll.hours", INT, "`log.roll.ms` in hours.", default=168, at_least=1)
    log_roll_jitter_ms = key(
        "log.roll.jitter.ms",
        LONG,
        "Maximum random time by which segments roll earlier, so that they do not "
        "all roll at once. Defaults to `log.roll.jitter.hours`.",
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_roll_jitter_hours = key(
        "log.roll.jitter.hours", INT, "`log.roll.jitter.ms` in hours.", default=0, at_least=0
    )
    log_index_size_max_bytes = key(
        "log.index.size.max.bytes",
        INT,
        "Maximum size of a segment's index. When the index is full, the log rolls.",
        default=10485760,
        at_least=4,
        update=Update.CLUSTER_WIDE,
    )
    log_index_interval_bytes = key(
        "log.index.interval.bytes",
        INT,
        "Bytes of records between index entries. A smaller interval makes lookups "
        "read less and indexes larger.",
        default=4096,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_retention_bytes = key(
        "log.retention.bytes",
        LONG,
        "Maximum size of a partition; the oldest segments are deleted beyond it. -1"
        " means no limit.",
        default=-1,
        update=Update.CLUSTER_WIDE,
    )
    log_retention_ms = key(
        "log.retention.ms",
        LONG,
        "Segments are deleted when their newest record is older than this. -1 keeps"
        " them forever. Defaults to `log.retention.minutes`, then "
        "`log.retention.hours`.",
        at_least=1,
        besides=(-1,),
        update=Update.CLUSTER_WIDE,
    )
    log_retention_minutes = key(
        "log.retention.minutes",
        INT,
        "`log.retention.ms` in minutes. Defaults to `log.retention.hours`.",
        at_least=1,
        besides=(-1,),
    )
    log_retention_hours = key(
        "log.retention.hours",
        INT,
        "`log.retention.ms` in hours.",
        default=168,
        at_least=1,
        besides=(-1,),
    )
    log_retention_check_interval_ms = key(
        "log.retention.check.interval.ms",
        LONG,
        "How often segments are checked for deletion.",
        default=300000,
        at_least=1,
    )
    log_initial_task_delay_ms = key(
        "log.initial.task.delay.ms",
        LONG,
        "Delay after a start before segments are first checked for deletion.",
        default=30000,
        at_least=0,
    )
    log_cleanup_policy = key(
        "log.cleanup.policy",
        LIST,
        "Treatment of old segments: `delete` by age and size, `compact` to the "
        "newest record of each key, or both. With `compact`, records without a key "
        "are refused.",
        default=("delete",),
        values=("compact", "delete"),
        update=Update.CLUSTER_WIDE,
    )
    log_segment_delete_delay_ms = key(
        "log.segment.delete.delay.ms",
        LONG,
        "How long the renamed files of a deleted segment stay before they are removed.",
        default=60000,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_preallocate = key(
        "log.preallocate",
        BOOLEAN,
        "Allocate the full size of a new segment in advance.",
        default=False,
        update=Update.CLUSTER_WIDE,
        no_effect="segments grow as they are written",
    )
    flush_before_ack = key(
        "flush.before.ack",
        BOOLEAN,
        "plog's own. Write records to disk (fdatasync) before acks=all is "
        "acknowledged. With `false`, as in Kafka, records are only in the page "
        "cache of every in-sync replica; a power cut of all replicas loses records "
        "that the kernel has not written.",
        default=True,
        update=Update.CLUSTER_WIDE,
    )
    log_flush_interval_messages = key(
        "log.flush.interval.messages",
        LONG,
        "Flush a partition to disk after this many records, whether or not a producer waits.",
        default=LONG_MAX,
        at_least=1,
        update=Update.CLUSTER_WIDE,
    )
    log_flush_interval_ms = key(
        "log.flush.interval.ms",
        LONG,
        "Flush a partition to disk when its oldest unflushed record reaches this "
        "age. Defaults to `log.flush.scheduler.interval.ms`.",
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_flush_scheduler_interval_ms = key(
        "log.flush.scheduler.interval.ms",
        LONG,
        "How often partitions are checked for a due flush.",
        default=LONG_MAX,
        at_least=1,
    )
    log_flush_offset_checkpoint_interval_ms = key(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        "How often recovery points are written. Up to its recovery point a log is "
        "known to be on disk.",
        default=60000,
        at_least=0,
    )
    log_flush_start_offset_checkpoint_interval_ms = key(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        "How often the log start offsets are written.",
        default=60000,
        at_least=0,
    )
    log_message_timestamp_type = key(
        "log.message.timestamp.type",
        STRING,
        "Timestamp of records: the producer's (`CreateTime`) or the broker's (`LogAppendTime`).",
        default="CreateTime",
        values=("CreateTime", "LogAppendTime"),
        update=Update.CLUSTER_WIDE,
    )
    log_message_timestamp_before_max_ms = key(
        "log.message.timestamp.before.max.ms",
        LONG,
        "Maximum age of a record's timestamp (KIP-937); older records are refused. "
        "Applies to CreateTime.",
        default=LONG_MAX,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_message_timestamp_after_max_ms = key(
        "log.message.timestamp.after.max.ms",
        LONG,
        "Maximum time of a record's timestamp in the future (KIP-937); later "
        "records are refused. Applies to CreateTime.",
        default=LONG_MAX,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_message_timestamp_difference_max_ms = key(
        "log.message.timestamp.difference.max.ms",
        LONG,
        "Older name for the before and after limits. It applies to each of them that is not set.",
        default=LONG_MAX,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_message_downconversion_enable = key(
        "log.message.downconversion.enable",
        BOOLEAN,
        "Convert records for consumers of old message formats.",
        default=True,
        update=Update.CLUSTER_WIDE,
        no_effect=NO_DOWN_CONVERSION,
    )
    log_message_format_version = key(
        "log.message.format.version",
        STRING,
        "Message format in which Kafka before 3.0 stored records.",
        default="3.0-IV1",
        no_effect="records are stored as batches of format 2, as in Kafka since 3.0",
    )
    compression_type = key(
        "compression.type",
        STRING,
        "Codec of stored records: as the producer compressed them (`producer`), or "
        "recompressed by the broker with the named codec.",
        default="producer",
        values=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        update=Update.CLUSTER_WIDE,
    )
    compression_gzip_level = key(
        "compression.gzip.level",
        INT,
        "Compression level for `compression.type=gzip`; -1 is zlib's default.",
        default=-1,
        at_least=1,
        at_most=9,
        besides=(-1,),
        update=Update.CLUSTER_WIDE,
    )
    compression_lz4_level = key(
        "compression.lz4.level",
        INT,
        "Compression level for `compression.type=lz4`.",
        default=9,
        at_least=1,
        at_most=17,
        update=Update.CLUSTER_WIDE,
    )
    compression_zstd_level = key(
        "compression.zstd.level",
        INT,
        "Compression level for `compression.type=zstd`.",
        default=3,
        at_least=-131072,
        at_most=22,
        update=Update.CLUSTER_WIDE,
    )
    log_scrub_bytes_per_second = key(
        "log.scrub.bytes.per.second",
        LONG,
        "plog's own. Rate at which the scrub reads cold segments again to find "
        "damage; 0 turns it off.",
        default=1048576,
        at_least=0,
    )
    log_dir_reserve_bytes = key(
        "log.dir.reserve.bytes",
        LONG,
        "plog's own. Free space that records leave on the disk of each log "
        "directory, at most a tenth of the disk, so that retention and checkpoints "
        "can always write. Below it producers get the retriable error "
        "`KAFKA_STORAGE_ERROR`.",
        default=67108864,
        at_least=0,
    )
    producer_id_expiration_ms = key(
        "producer.id.expiration.ms",
        INT,
        "How long a partition remembers an idle idempotent producer.",
        default=86400000,
        at_least=1,
    )
    producer_id_expiration_check_interval_ms = key(
        "producer.id.expiration.check.interval.ms",
        INT,
        "How often idle producers are removed.",
        default=600000,
        at_least=1,
    )
    log_cleaner_enable = key(
        "log.cleaner.enable",
        BOOLEAN,
        "Compact logs.",
        default=True,
    )
    log_cleaner_threads = key(
        "log.cleaner.threads",
        INT,
        "Threads that compact logs. 0 turns compaction off, and can be set only in the file. "
        "At run time the value may at most double or halve.",
        default=1,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_io_max_bytes_per_second = key(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        "Maximum rate at which compaction reads and writes.",
        default=sys.float_info.max,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_dedupe_buffer_size = key(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        "Memory for the keys of all cleaner threads.",
        default=134217728,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_load_factor = key(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        "Maximum load factor of the key memory.",
        default=0.9,
        at_least=0.01,
        at_most=0.99,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_backoff_ms = key(
        "log.cleaner.backoff.ms",
        LONG,
        "How long a cleaner thread sleeps when no log needs compaction.",
        default=15000,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_min_cleanable_ratio = key(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE,
        "Minimum share of a log that must be dirty before it is compacted.",
        default=0.5,
        at_least=0,
        at_most=1,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_delete_retention_ms = key(
        "log.cleaner.delete.retention.ms",
        LONG,
        "How long compaction keeps tombstones, so that consumers see them.",
        default=86400000,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_min_compaction_lag_ms = key(
        "log.cleaner.min.compaction.lag.ms",
        LONG,
        "Records younger than this are not compacted.",
        default=0,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_max_compaction_lag_ms = key(
        "log.cleaner.max.compaction.lag.ms",
        LONG,
        "Maximum age of a record before its log is compacted, regardless of the dirty share.",
        default=LONG_MAX,
        at_least=1,
        update=Update.CLUSTER_WIDE,
    )
