"""What values a topic's keys take, beside Kafka 3.9: at their bounds, beyond, of other types."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat.against_kafka.ask import SET, TOPIC, alter, describe
from tests.compat.against_kafka.pair import Case, Step

INT_MIN, INT_MAX, LONG_MIN, LONG_MAX = -(2**31), 2**31 - 1, -(2**63), 2**63 - 1
INT = ["x", "", " 7 ", "+7", "1.5", "0x10", "1_000", INT_MIN - 1, INT_MAX + 1, INT_MAX]
LONG = ["x", "", "1.5", LONG_MIN - 1, LONG_MAX + 1, LONG_MAX]
BOOLEAN = ["true", "false", "TRUE", "False", " true ", "yes", "1", ""]
REPLICAS = [
    "*",
    "0:0",
    "0:0,1:0",
    "",
    "none",
    "0",
    "0:0,",
    "a:b",
    "0:0,*",
    "0:0,0:0",
    "-1:0",
    " 0:0 , 1:0 ",
]
DURATION = [*LONG, -2, -1, 0, 1]

VALUES: dict[str, list[object]] = {
    "cleanup.policy": [
        "delete", "compact", "delete,compact", "compact,delete", "delete,delete", "", "shrink",
        "Delete", "delete,", " delete , compact ", ",",
    ],
    "compression.type": [
        "uncompressed", "none", "gzip", "snappy", "lz4", "zstd", "producer", "GZIP", "", " lz4 ",
    ],
    "compression.gzip.level": ["x", -2, -1, 0, 1, 9, 10],
    "compression.lz4.level": ["x", -1, 0, 1, 17, 18],
    "compression.zstd.level": ["x", -131073, -131072, 0, 22, 23],
    "delete.retention.ms": DURATION,
    "file.delete.delay.ms": DURATION,
    "flush.messages": DURATION,
    "flush.ms": DURATION,
    "index.interval.bytes": [*INT, -1, 0],
    "max.compaction.lag.ms": DURATION,
    "max.message.bytes": [*INT, -1, 0],
    "message.downconversion.enable": BOOLEAN,
    "message.format.version": ["3.0-IV1", "2.8", "0.10.0", "0.8.2", "3.9"],
    "message.timestamp.type": ["CreateTime", "LogAppendTime", "createtime", "NoTimestampType", ""],
    "message.timestamp.before.max.ms": DURATION,
    "message.timestamp.after.max.ms": DURATION,
    "message.timestamp.difference.max.ms": DURATION,
    "min.cleanable.dirty.ratio": [
        "x", "", -0.1, 0, 0.5, 1, 1.1, "1e-3", "Infinity", "inf", "1_0",
    ],
    "min.compaction.lag.ms": DURATION,
    "min.insync.replicas": [*INT, -1, 0, 1, 2],
    "preallocate": BOOLEAN,
    "retention.bytes": DURATION,
    "retention.ms": DURATION,
    "segment.bytes": [*INT, 0, 13, 14],
    "segment.index.bytes": [*INT, -1, 0, 3, 4],
    "segment.jitter.ms": DURATION,
    "segment.ms": DURATION,
    "unclean.leader.election.enable": BOOLEAN,
    "leader.replication.throttled.replicas": REPLICAS,
    "follower.replication.throttled.replicas": REPLICAS,
    "remote.storage.enable": BOOLEAN,
    "remote.log.copy.disable": BOOLEAN,
    "remote.log.delete.on.disable": BOOLEAN,
    "local.retention.bytes": [*DURATION, -3],
    "local.retention.ms": [*DURATION, -3],
}  # fmt: skip
ALONE: dict[str, list[str]] = {
    "min.cleanable.dirty.ratio": ["NaN", "0.5f", "0x1p-1"],
    "message.format.version": ["9.9", "x", ""],
}
"""Of which the two may think differently: each has a case of its own."""
PAIRS = {
    "lags-the-wrong-way-round": {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
    "lags-alike": {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"},
    "local-retention-above-retention": {"local.retention.ms": "10", "retention.ms": "5"},
    "local-bytes-above-bytes": {"local.retention.bytes": "10", "retention.bytes": "5"},
    "jitter-above-segment-ms": {"segment.jitter.ms": "10", "segment.ms": "5"},
    "message-above-segment": {"max.message.bytes": "5000", "segment.bytes": "100"},
    "difference-beside-before": {
        "message.timestamp.difference.max.ms": "10", "message.timestamp.before.max.ms": "5",
    },
    "remote-and-compacted": {"remote.storage.enable": "true", "cleanup.policy": "compact"},
}  # fmt: skip


def set_and_shown(**values: str) -> Case:
    """Return a case that sets values and looks at them."""
    changes = [(key, SET, value) for key, value in values.items()]
    shown = Step(describe((TOPIC, "t"), keys=[*values]), 4, settles=True)
    return Case([Step(alter((TOPIC, "t", changes)), 1), shown])


def each_value(key: str, values: list[object]) -> Case:
    """Return a case that sets one value after another and looks at each."""
    return Case([step for value in values for step in set_and_shown(**{key: str(value)}).steps])


SINGLE = {
    f"value '{value}' of {key}": set_and_shown(**{key: value})
    for key, values in ALONE.items()
    for value in values
}
SEVERAL = {f"values of {key}": each_value(key, values) for key, values in VALUES.items()}
TOGETHER = {f"values together: {name}": set_and_shown(**values) for name, values in PAIRS.items()}
CASES = SINGLE | SEVERAL | TOGETHER


@pytest.mark.parametrize("name", CASES)
def test_values_are_taken_as_kafka_takes_them(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])
