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

NO_DOWN_CONVERSION = "old message formats are not served yet"

DIRECTORIES = Kind(ConfigType.STRING, LIST.parse, LIST.format)
"""A list, which Kafka calls a string."""


class LogKeys(Settings):
    """Logs and their topics."""

    log_dirs = key(
        "log.dirs",
        DIRECTORIES,
        "Directories of the logs, with commas between; best one to a disk. A new partition goes "
        "to the one that has the fewest. Unset, `log.dir`.",
        default=("/var/lib/plog/data",),
    )
    log_dir = key(
        "log.dir", STRING, "The log directory, where `log.dirs` is not set.", default=None
    )
    num_recovery_threads_per_data_dir = key(
        "num.recovery.threads.per.data.dir",
        INT,
        "How many logs of one directory are loaded at once when the broker starts.",
        default=1,
        at_least=1,
    )
    num_partitions = key(
        "num.partitions",
        INT,
        "Partitions of a topic that is created without saying how many.",
        default=1,
        at_least=1,
    )
    auto_create_topics_enable = key(
        "auto.create.topics.enable",
        BOOLEAN,
        "Whether a topic comes to be when a client asks for its metadata.",
        default=True,
    )
    delete_topic_enable = key(
        "delete.topic.enable", BOOLEAN, "Whether topics may be deleted.", default=True
    )
    message_max_bytes = key(
        "message.max.bytes",
        INT,
        "The largest record batch that is accepted, as it is on the wire, compressed or not.",
        default=1048588,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_segment_bytes = key(
        "log.segment.bytes",
        INT,
        "A segment file that would grow past this is closed and a new one begun.",
        default=1073741824,
        at_least=14,
        update=Update.CLUSTER_WIDE,
    )
    log_roll_ms = key(
        "log.roll.ms",
        LONG,
        "A segment whose first record is older than this is closed and a new one begun, so that "
        "retention and compaction come to it. Unset, `log.roll.hours`.",
        at_least=1,
        update=Update.CLUSTER_WIDE,
    )
    log_roll_hours = key("log.roll.hours", INT, "`log.roll.ms` in hours.", default=168, at_least=1)
    log_roll_jitter_ms = key(
        "log.roll.jitter.ms",
        LONG,
        "Segments roll by time up to this much earlier, each by its own draw, so that they do "
        "not roll all at once. Unset, `log.roll.jitter.hours`.",
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_roll_jitter_hours = key(
        "log.roll.jitter.hours", INT, "`log.roll.jitter.ms` in hours.", default=0, at_least=0
    )
    log_index_size_max_bytes = key(
        "log.index.size.max.bytes",
        INT,
        "The largest index of a segment; a segment whose index is full rolls.",
        default=10485760,
        at_least=4,
        update=Update.CLUSTER_WIDE,
    )
    log_index_interval_bytes = key(
        "log.index.interval.bytes",
        INT,
        "An index entry is written after so many bytes of records. Fewer find an offset by "
        "reading less, and make larger indexes.",
        default=4096,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_retention_bytes = key(
        "log.retention.bytes",
        LONG,
        "A partition that is larger loses its oldest segments; -1 keeps any size.",
        default=-1,
        update=Update.CLUSTER_WIDE,
    )
    log_retention_ms = key(
        "log.retention.ms",
        LONG,
        "Segments whose newest record is older than this are deleted; -1 keeps them for ever. "
        "Unset, `log.retention.minutes`, and then `log.retention.hours`.",
        at_least=1,
        besides=(-1,),
        update=Update.CLUSTER_WIDE,
    )
    log_retention_minutes = key(
        "log.retention.minutes",
        INT,
        "`log.retention.ms` in minutes. Unset, `log.retention.hours`.",
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
        "How often segments are looked over for deletion.",
        default=300000,
        at_least=1,
    )
    log_initial_task_delay_ms = key(
        "log.initial.task.delay.ms",
        LONG,
        "How long after a start segments are looked over for deletion first.",
        default=30000,
        at_least=0,
    )
    log_cleanup_policy = key(
        "log.cleanup.policy",
        LIST,
        "What becomes of old segments: `delete` by age and size, `compact` to the newest record "
        "of each key, or both. `compact` refuses records without a key.",
        default=("delete",),
        values=("compact", "delete"),
        update=Update.CLUSTER_WIDE,
    )
    log_segment_delete_delay_ms = key(
        "log.segment.delete.delay.ms",
        LONG,
        "How long the files of a deleted segment stay, renamed, before they go.",
        default=60000,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_preallocate = key(
        "log.preallocate",
        BOOLEAN,
        "Whether Kafka gives a new segment its whole size at once.",
        default=False,
        update=Update.CLUSTER_WIDE,
        no_effect="segments grow as they are written",
    )
    flush_before_ack = key(
        "flush.before.ack",
        BOOLEAN,
        "plog's own. Whether records are on disk (fdatasync) before a producer that asked for "
        "acks=all is answered. `false` is Kafka's way: they are in the page cache of every "
        "in-sync replica, and a power cut of all of them loses what the kernel had not written.",
        default=True,
        update=Update.CLUSTER_WIDE,
    )
    log_flush_interval_messages = key(
        "log.flush.interval.messages",
        LONG,
        "Flush a partition to disk after so many records, whoever waits for them or not.",
        default=LONG_MAX,
        at_least=1,
        update=Update.CLUSTER_WIDE,
    )
    log_flush_interval_ms = key(
        "log.flush.interval.ms",
        LONG,
        "Flush a partition to disk when its oldest unflushed record is so old. Unset, "
        "`log.flush.scheduler.interval.ms`.",
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_flush_scheduler_interval_ms = key(
        "log.flush.scheduler.interval.ms",
        LONG,
        "How often partitions are looked over for a flush that is due.",
        default=LONG_MAX,
        at_least=1,
    )
    log_flush_offset_checkpoint_interval_ms = key(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        "How often the recovery points, up to which logs are known to be on disk, are written.",
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
        "Whose clock records bear: the producer's (`CreateTime`) or the broker's "
        "(`LogAppendTime`).",
        default="CreateTime",
        values=("CreateTime", "LogAppendTime"),
        update=Update.CLUSTER_WIDE,
    )
    log_message_timestamp_before_max_ms = key(
        "log.message.timestamp.before.max.ms",
        LONG,
        "A record whose timestamp is further in the past is refused (KIP-937). For CreateTime.",
        default=LONG_MAX,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_message_timestamp_after_max_ms = key(
        "log.message.timestamp.after.max.ms",
        LONG,
        "A record whose timestamp is further in the future is refused (KIP-937). For CreateTime.",
        default=LONG_MAX,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_message_timestamp_difference_max_ms = key(
        "log.message.timestamp.difference.max.ms",
        LONG,
        "The older name of the two limits before; it counts for each of them that is not set.",
        default=LONG_MAX,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_message_downconversion_enable = key(
        "log.message.downconversion.enable",
        BOOLEAN,
        "Whether records are converted for consumers of old message formats.",
        default=True,
        update=Update.CLUSTER_WIDE,
        no_effect=NO_DOWN_CONVERSION,
    )
    log_message_format_version = key(
        "log.message.format.version",
        STRING,
        "The format Kafka before 3.0 stored records in.",
        default="3.0-IV1",
        no_effect="records are stored as batches of format 2, as in Kafka since 3.0",
    )
    compression_type = key(
        "compression.type",
        STRING,
        "How records are stored: as the producer compressed them (`producer`), or compressed "
        "anew with the codec named here, at the broker's cost.",
        default="producer",
        values=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        update=Update.CLUSTER_WIDE,
    )
    compression_gzip_level = key(
        "compression.gzip.level",
        INT,
        "The level when `compression.type` is `gzip`; -1 is zlib's default.",
        default=-1,
        at_least=1,
        at_most=9,
        besides=(-1,),
        update=Update.CLUSTER_WIDE,
    )
    compression_lz4_level = key(
        "compression.lz4.level",
        INT,
        "The level when `compression.type` is `lz4`.",
        default=9,
        at_least=1,
        at_most=17,
        update=Update.CLUSTER_WIDE,
    )
    compression_zstd_level = key(
        "compression.zstd.level",
        INT,
        "The level when `compression.type` is `zstd`.",
        default=3,
        at_least=-131072,
        at_most=22,
        update=Update.CLUSTER_WIDE,
    )
    log_scrub_bytes_per_second = key(
        "log.scrub.bytes.per.second",
        LONG,
        "plog's own. How fast segments that nobody reads are read again to find damage; 0 never "
        "does.",
        default=1048576,
        at_least=0,
    )
    log_dir_reserve_bytes = key(
        "log.dir.reserve.bytes",
        LONG,
        "plog's own. Space on the disk of each log directory, a tenth of it at most, that records "
        "leave free, so that what gives space back can always be written. Below it producers get "
        "`KAFKA_STORAGE_ERROR`, and try again.",
        default=67108864,
        at_least=0,
    )
    producer_id_expiration_ms = key(
        "producer.id.expiration.ms",
        INT,
        "How long a partition remembers an idempotent producer that sends nothing.",
        default=86400000,
        at_least=1,
    )
    producer_id_expiration_check_interval_ms = key(
        "producer.id.expiration.check.interval.ms",
        INT,
        "How often producers are looked over to be forgotten.",
        default=600000,
        at_least=1,
    )
    log_cleaner_enable = key(
        "log.cleaner.enable",
        BOOLEAN,
        "Whether logs are compacted.",
        default=True,
    )
    log_cleaner_threads = key(
        "log.cleaner.threads",
        INT,
        "Threads that compact logs.",
        default=1,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_io_max_bytes_per_second = key(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        "The most that compaction reads and writes.",
        default=sys.float_info.max,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_dedupe_buffer_size = key(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        "Memory for the keys of one compaction.",
        default=134217728,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_load_factor = key(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        "How full the memory for keys may become.",
        default=0.9,
        at_least=0.01,
        at_most=0.99,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_backoff_ms = key(
        "log.cleaner.backoff.ms",
        LONG,
        "How long compaction sleeps when there is nothing to compact.",
        default=15000,
        at_least=0,
        update=Update.CLUSTER_WIDE,
    )
    log_cleaner_min_cleanable_ratio = key(
        "log.cleaner.min.cleanable.ratio",
        DOUBLE,
        "A log is compacted when more than this share of it has not been.",
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
        "Records older than this are compacted whatever the ratio.",
        default=LONG_MAX,
        at_least=1,
        update=Update.CLUSTER_WIDE,
    )
