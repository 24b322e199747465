"""The names of Kafka's scripts, and the module of each."""

from __future__ import annotations

SCRIPTS = {
    "kafka-topics": "topics",
    "kafka-console-producer": "console_producer",
    "kafka-console-consumer": "console_consumer",
    "kafka-configs": "configs",
    "kafka-consumer-groups": "consumer_groups",
    "kafka-get-offsets": "get_offsets",
    "kafka-delete-records": "delete_records",
    "kafka-log-dirs": "log_dirs",
    "kafka-transactions": "transactions",
    "kafka-features": "features",
    "kafka-cluster": "cluster",
    "kafka-dump-log": "dump_log",
    "kafka-producer-perf-test": "producer_perf",
    "kafka-consumer-perf-test": "consumer_perf",
}
