"""The names of Kafka's scripts, and the module of each."""

from __future__ import annotations

SCRIPTS = {
    "kafka-topics": "topics",
}
