"""A topic is backed up and restored in one pipe: `consume --json | produce --input json`."""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.producer import Producer
from plog.types import TopicPartition

PARTITIONS = 3
SETTINGS = {
    "max.message.bytes": "4000000",
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
SURROGATE = b"\xed\xa0\x80"
"""A lone surrogate as UTF-8 would have it, which is not UTF-8."""
NASTY = [
    *(b"", b"null", b"\0", b"\r\n", b"\n\n", b"\xff", SURROGATE),
    b'{"base64": "AA=="}',
    "\u2028\x85".encode(),
]
NOW = 1_372_939_200_123

data = st.none() | st.sampled_from(NASTY) | st.binary() | st.text().map(str.encode)
headers = st.lists(st.tuples(st.sampled_from(["a", "a", "", "ü", "\u2028"]) | st.text(), data))
record = st.tuples(
    st.integers(0, PARTITIONS - 1),
    st.integers(0, NOW) | st.just(2**63 - 1),
    data,
    data,
    headers.map(tuple),
)
numbers = itertools.count()


def contents(bootstrap: str, topic: str) -> dict[int, list[tuple]]:
    """Return everything but the offsets of each partition's records, in their order."""
    found: dict[int, list[tuple]] = {index: [] for index in range(PARTITIONS)}
    with Consumer(bootstrap) as consumer:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(at) < ends[at] for at in partitions):
            for one in consumer.poll():
                found[one.partition].append((one.timestamp, one.key, one.value, one.headers))
    return found


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@example(records=[(0, NOW, None, None, (("a", None), ("a", b""), ("a", b"\xff"), ("a", None)))])
@example(records=[(2, n, key, value, ()) for n, key in enumerate(NASTY) for value in NASTY])
@example(records=[(1, NOW - n, b"k", bytes([n]) * 1_500_000, ()) for n in (254, 1)])
@given(records=st.lists(record, max_size=30))
def test_restored_topic_is_equal(call, broker, records):
    source, copy = (f"restored{next(numbers)}" for _ in range(2))
    with Admin(broker.bootstrap) as admin:
        for name in (source, copy):
            admin.create_topic(name, partitions=PARTITIONS, configs=SETTINGS)
    expected: dict[int, list[tuple]] = {index: [] for index in range(PARTITIONS)}
    with Producer(broker.bootstrap, max_request_size=4 << 20) as producer:
        for partition, timestamp, key, value, pairs in records:
            expected[partition].append((timestamp, key, value, pairs))
            producer.send(
                source,
                value,
                key=key,
                headers=pairs,
                partition=partition,
                timestamp_ms=timestamp,
            )
    backup = call("consume", source, "--exit-at-end", "--json").stdout
    assert backup.count(b"\n") == len(records)
    call("produce", copy, "--input", "json", stdin=backup)
    assert contents(broker.bootstrap, copy) == expected
    assert contents(broker.bootstrap, source) == expected
