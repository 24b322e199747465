"""Has real clients do all that they can, and keeps their requests: `tests.compat.requests`.

    python -m tests.compat.record_requests [client ...]

writes the files of these clients, or of all, anew.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from plog._native.batch import read_header
from plog.protocol.api_keys import ApiKey
from plog.protocol.schema import Struct
from tests.compat import traffic
from tests.compat.clients import CODECS
from tests.compat.group_traffic import ADMINISTRATORS, consume_and_copy
from tests.compat.programs import FRANZ_GO, JAVA, Administrator, Java, Run
from tests.compat.recorder import Recorder
from tests.compat.requests import DIRECTORY, PARTITIONS, TOPIC, TOPIC_ID, Request
from tests.handlers.wire import create_topic, make_batch, produce, speak
from tests.servers import BrokerProcess

LARGEST = 4096
"""Larger frames would make of a flood one of bytes, and are nothing but longer."""

SHAPE = traffic.Shape(partitions=PARTITIONS, rounds=8, records_per_round=2)
SETTINGS: list[dict[str, object]] = [
    *({"compression_type": codec} for codec in CODECS),
    {"enable_idempotence": "false", "acks": "1"},
]
# As long as TOPIC: then names can be replaced in frames.
TOPICS = [f"{TOPIC[:-1]}{number}" for number in range(len(SETTINGS))]
MEMBER_ID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
STANDS_FOR_ID = str(TOPIC_ID).encode()
"""How the ids end that members of groups are told, and what stays of them."""
COPIED, COPIED_RECORDS = f"{TOPIC[:-1]}{len(SETTINGS)}", 15
"""A topic for groups, with so many records in each partition; none is null."""
ASKS_OF_GROUPS = "plog-admin"
"""The client id of whoever looks at a group here until it is stable: not the client's own."""
Client = Callable[[str], None]
"""Does all that it can, given the bootstrap address."""


def _program(built: Administrator) -> Client:
    def run(bootstrap: str) -> None:
        runs = [Run([topic], given) for topic, given in zip(TOPICS, SETTINGS, strict=True)]
        built.run(bootstrap, SHAPE, *runs)
        if isinstance(built, Java):
            consume_and_copy(built, bootstrap, COPIED, PARTITIONS)
        built.administer(bootstrap, TOPICS[0])

    return run


def _python(name: str, make: Callable[..., Any], settings_of: Callable[..., Any]) -> Client:
    def run(bootstrap: str) -> None:
        for topic, given in zip(TOPICS, SETTINGS, strict=True):
            traffic.run(make(**settings_of(given)), bootstrap, [topic], SHAPE)
        consume_and_copy(name, bootstrap, COPIED, PARTITIONS)
        ADMINISTRATORS[name](bootstrap, TOPICS[0])

    return run


def _dotted(given: dict[str, object]) -> dict[str, object]:
    return {key.replace("_", "."): value for key, value in given.items()}


def _typed(given: dict[str, object]) -> dict[str, object]:
    """Return settings as Python's own clients want them: none is a text but the codec."""
    values = {"false": False, "1": 1, "none": None}
    return {"enable_idempotence": True} | {
        key: values.get(str(value), value) for key, value in given.items()
    }


CLIENTS: dict[str, Client] = {
    **{one.name: _program(one) for one in (*JAVA, FRANZ_GO)},
    "librdkafka": _python("confluent-kafka", traffic.Confluent, _dotted),
    "kafka-python": _python("kafka-python", traffic.KafkaPython, _typed),
    "aiokafka": _python("aiokafka", traffic.AioKafka, _typed),
}


def record(client: str, directory: Path) -> list[Request]:
    """Have a client talk to a broker of its own; return what is worth keeping of it."""
    broker = BrokerProcess(directory)
    proxy = Recorder(broker.port)
    broker.overrides["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{proxy.port}"
    try:
        with broker:
            with contextlib.closing(speak(broker.port)) as wire:
                ids = [create_topic(wire, topic, PARTITIONS)[1] for topic in (*TOPICS, COPIED)]
                for n in range(COPIED_RECORDS * PARTITIONS):
                    produce(wire, COPIED, make_batch([b"%d" % n]), partition=n % PARTITIONS)
            CLIENTS[client](f"127.0.0.1:{proxy.port}")
    finally:
        proxy.close()
    assert not proxy.failures, proxy.failures
    requests = [
        Request(one.connection, one.header, one.request)
        for one in sorted(proxy.exchanges, key=lambda one: one.sent)
        if one.header.client_id != ASKS_OF_GROUPS
    ]
    stays = {one.bytes: TOPIC_ID.bytes for one in ids}
    for path in map(bytes, broker.log_dirs):
        stays[path] = b"/log-dir".ljust(len(path), b"-")
    return list(_chosen(one._replace(frame=_without(one, stays)) for one in requests))


def _without(request: Request, stays: dict[bytes, bytes]) -> bytes:
    """Return a frame in which nothing is the broker's or its host's own."""
    frame = request.frame
    for told, kept in stays.items():
        frame = frame.replace(told, kept)
    # In a Produce the topic comes first; what else may look like one is under a checksum.
    is_produce = request.header.api_key == ApiKey.PRODUCE
    most = 1 if is_produce else 0
    if not is_produce:
        frame = MEMBER_ID.sub(STANDS_FOR_ID, frame)
    return re.sub(
        b"|".join(name.encode() for name in (*TOPICS, COPIED)), TOPIC.encode(), frame, count=most
    )


def _chosen(requests: Iterable[Request]) -> Iterator[Request]:
    seen = set()
    for one in requests:
        key = one.header.api_key, one.header.api_version, form(one.message)
        if len(one.frame) <= LARGEST and key not in seen:
            seen.add(key)
            yield one


def form(value: Any) -> Any:
    """Return what a message has in common with those that differ in numbers and names alone."""
    match value:
        case Struct():
            return tuple(form(getattr(value, field.name)) for field in value.fields)
        case list():
            return min(len(value), 2), frozenset(map(form, value))
        case int() | float():
            return (value > 0) - (value < 0)
        case str():
            return value != ""
        case memoryview():
            return _form_of_records(value)
        case bytes():
            return len(value) > 0
        case uuid.UUID():
            return value.int != 0
        case None:
            return None
    raise AssertionError(value)


def _form_of_records(records: memoryview) -> Any:
    one = read_header(records)
    numbers = one.producer_id, one.base_sequence
    return one.attributes, *map(form, numbers), min(one.records_count, 2)


def lines(client: str, requests: Sequence[Request]) -> str:
    """Return the text of a file."""
    told = [
        f"# Requests of {client}, as it sent them: connection, API, version, frame.",
        "# `python -m tests.compat.record_requests` writes this file anew.",
    ]
    for one in requests:
        name = ApiKey(one.header.api_key).name
        told.append(f"{one.connection} {name} {one.header.api_version} {one.frame.hex()}")
    return "\n".join(told) + "\n"


def main(clients: Sequence[str]) -> None:
    """Record these clients, or all, and write their files."""
    DIRECTORY.mkdir(exist_ok=True)
    for client in clients or CLIENTS:
        with tempfile.TemporaryDirectory() as directory:
            requests = record(client, Path(directory))
        text = lines(client, requests)
        (DIRECTORY / f"{client}.txt").write_text(text, "ascii")
        print(f"{client}: {len(requests)} requests, {len(text)} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
