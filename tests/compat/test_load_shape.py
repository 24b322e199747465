"""The benchmarks load brokers as clients of Java do by default: same versions, same fields."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path

from plog._native.batch import read_header
from plog.ops import load
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.fetch import FetchRequest
from plog.protocol.messages.produce import ProduceRequest
from tests.compat.programs import JAVA, Run
from tests.compat.recorder import Exchange, Recorder, body_of
from tests.compat.test_replay import SHAPE
from tests.handlers.wire import create_topic, speak
from tests.planes import Plane
from tests.servers import BrokerProcess

NEWEST_JAVA = JAVA[-1]


OF_ONE_FORM = {12: 11}
"""Versions of Produce: Java takes the newest, the generator one that Kafka 3.9 knows, too."""


def produce_shape(exchange: Exchange) -> dict[str, object]:
    request = body_of(exchange, ProduceRequest)
    parts = [part for topic in request.topic_data for part in topic.partition_data]
    batches = [read_header(part.records) for part in parts]
    return {
        "version": OF_ONE_FORM.get(exchange.header.api_version, exchange.header.api_version),
        "acks": request.acks,
        "transactional id": request.transactional_id,
        "timeout": request.timeout_ms,
        "each partition once": len({part.index for part in parts}) == len(parts),
        "one batch for each": all(
            batch.size_bytes == len(part.records)
            for batch, part in zip(batches, parts, strict=True)
        ),
        "magic": {batch.magic for batch in batches},
        "attributes": {batch.attributes for batch in batches},
        "idempotent": {batch.producer_id >= 0 for batch in batches},
        "first epoch": {batch.producer_epoch for batch in batches},
    }


def fetch_shape(exchange: Exchange) -> dict[str, object]:
    request = body_of(exchange, FetchRequest)
    return {
        # What v18 adds only followers send. Kafka 3.9, which the benchmarks measure too, lacks it.
        "version": min(exchange.header.api_version, 17),
        "wait": request.max_wait_ms,
        "least": request.min_bytes,
        "most": request.max_bytes,
        "isolation level": request.isolation_level,
        "rack": request.rack_id,
        "of a partition": {
            part.partition_max_bytes for topic in request.topics for part in topic.partitions
        },
        "in or for a session": request.session_epoch >= 0,
    }


def all_alike(shapes: Iterable[dict[str, object]]) -> dict[str, object]:
    first, *others = shapes
    assert all(other == first for other in others)
    return first


def spoken(recorder: Recorder, key: ApiKey) -> list[Exchange]:
    """Return the requests of a kind; of Fetch those that name partitions.

    How many there are depends on the moment: one that begins a session may have read it all.
    """
    found = [one for one in recorder.exchanges if one.header.api_key == key]
    return [one for one in found if key is not ApiKey.FETCH or body_of(one, FetchRequest).topics]


def generate(recorder: Recorder, topic: str, topic_id: uuid.UUID, batch: load.Batch) -> None:
    """Run the rows' "java" and "session" loads."""
    common: dict[str, object] = {
        "port": recorder.port,
        "topic": topic,
        "topic_id": topic_id,
        "partitions": SHAPE.partitions,
        "per_request": SHAPE.partitions,
        "seconds": 0.3,
    }
    idempotent = {"acks": -1, "idempotent": True, "in_flight": 5}
    load.run("produce", batch_file=batch.path, **idempotent, **common)
    load.run("fetch", sessions=True, in_flight=1, **common)


def test_generator_says_what_javas_clients_say(plane: Plane, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    java, ours = Recorder(broker.port), Recorder(broker.port)
    broker.overrides["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{java.port}"
    try:
        with broker:
            wire = speak(broker.port)
            create_topic(wire, "theirs", SHAPE.partitions)
            _, topic_id = create_topic(wire, "ours", SHAPE.partitions)
            NEWEST_JAVA.run(f"127.0.0.1:{java.port}", SHAPE, Run(["theirs"], {}))
            generate(ours, "ours", topic_id, load.make_batch(tmp_path / "batch", 16384))
            wire.close()
    finally:
        java.close()
        ours.close()
    for key, shape in ((ApiKey.PRODUCE, produce_shape), (ApiKey.FETCH, fetch_shape)):
        said = [all_alike(map(shape, spoken(recorder, key))) for recorder in (java, ours)]
        assert said[0] == said[1]
