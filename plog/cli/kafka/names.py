"""The names of Kafka's scripts, and the module of each."""

from __future__ import annotations

SCRIPTS = {
    "kafka-topics": "topics",
    "kafka-console-producer": "console_producer",
    "kafka-console-consumer": "console_consumer",
    "kafka-consumer-groups": "consumer_groups",
}
