"""Today's clients against one broker: codecs, headers, keys, nulls, sizes, timestamps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from tests.compat.clients import CLIENTS, CODECS, Sent
from tests.servers import BrokerProcess

by_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
NewTopic = Callable[..., str]

SHAPES = [
    Sent(None, b"plain"),
    Sent(b"key", b"value"),
    Sent(b"tombstone", None),
    Sent(None, b""),
    Sent(b"", b"empty key"),
    Sent(b"k", b"one header", (("name", b"value"),)),
    Sent(b"k", b"headers", (("a", b"1"), ("a", b"2"), ("empty", b""))),
    Sent(b"k", b"null header", (("null", None),)),
    Sent(bytes(range(256)), bytes(range(255, -1, -1))),
    Sent("schlüssel".encode(), "значение".encode(), (("kopf-ü", "値".encode()),)),
    Sent(b"1970", b"early", timestamp=1),
    Sent(b"later", b"later", timestamp=1_900_000_000_123),
]


def shapes_for(writer) -> list[Sent]:
    return [
        shape
        for shape in SHAPES
        if writer.writes_null_headers or all(value is not None for _, value in shape.headers)
    ]


@by_client
@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_shape_come_back_as_sent(
    client, codec: str, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    topic = new_topic(message_timestamp_after_max_ms=2**63 - 1)
    sent = shapes_for(client) * 3
    offsets = client.produce(broker.bootstrap, topic, sent, codec=codec)
    assert offsets == list(range(len(sent)))
    assert client.consume(broker.bootstrap, topic, len(sent)) == sent


@by_client
@pytest.mark.parametrize("size", [1, 1_000, 100_000, 1_000_000, 10_000_000])
def test_sizes_from_a_byte_to_ten_megabytes_come_back(
    client, size: int, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    topic = new_topic()
    noise = random.Random(size).randbytes(size)
    sent = [Sent(b"before", b"x"), Sent(b"big", noise), Sent(b"after", b"y")]
    client.produce(broker.bootstrap, topic, sent)
    assert client.consume(broker.bootstrap, topic, 3) == sent


@by_client
@pytest.mark.parametrize(("acks", "idempotent"), [("all", True), ("all", False), ("1", False)])
def test_acknowledged_records_keep_their_order(
    client, acks: str, idempotent: bool, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    topic = new_topic()
    sent = [Sent(None, b"%d" % n) for n in range(2_000)]
    offsets = client.produce(broker.bootstrap, topic, sent, acks=acks, idempotent=idempotent)
    assert sorted(offsets) == list(range(2_000))
    assert client.consume(broker.bootstrap, topic, 2_000) == sent


@by_client
def test_consuming_from_an_offset_inside_a_batch_starts_there(
    client, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    topic = new_topic()
    sent = [Sent(None, b"%d" % n) for n in range(100)]
    client.produce(broker.bootstrap, topic, sent, codec="lz4")
    assert client.consume(broker.bootstrap, topic, 43, offset=57) == sent[57:]


@pytest.mark.parametrize(
    ("writer", "reader"),
    list(itertools.permutations(CLIENTS, 2)),
    ids=lambda client: client.name,
)
def test_what_one_client_writes_another_reads(
    writer, reader, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    topic = new_topic(message_timestamp_after_max_ms=2**63 - 1)
    sent = shapes_for(writer)
    for codec in CODECS:
        writer.produce(broker.bootstrap, topic, sent, codec=codec)
    assert reader.consume(broker.bootstrap, topic, len(sent) * 5) == sent * 5


@by_client
def test_log_append_time_replaces_the_client_timestamp(
    client, broker: BrokerProcess, new_topic: NewTopic
) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    client.produce(broker.bootstrap, topic, [Sent(None, b"x", timestamp=1)], codec="gzip")
    (found,) = client.consume(broker.bootstrap, topic, 1)
    assert found.timestamp > 1_700_000_000_000
