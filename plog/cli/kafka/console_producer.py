"""kafka-console-producer: write lines of stdin to a topic."""

from __future__ import annotations

import sys
from contextlib import suppress

from plog.cli.kafka.config import ClientProperties, pairs, read_file
from plog.cli.kafka.line_reader import Line, LineReader
from plog.cli.kafka.options import Given, Options, UsageFault
from plog.cli.kafka.texts import reason
from plog.client.producer import Producer
from plog.errors import InvalidConfig, KafkaError, PlogError

OPTIONS = Options(
    "Write lines of stdin to a topic.",
    """
    --bootstrap-server HOST:PORT    Address of a broker. Required.
    --broker-list HOST:PORT         The old name of --bootstrap-server.
    --topic TOPIC                   The topic. Required.
    --property NAME=VALUE           Property of the reader, such as parse.key=true. Repeatable.
    --reader-config FILE            Properties of the reader.
    --line-reader CLASS             Class of the reader.
    --producer-property NAME=VALUE  Property of the producer. Repeatable.
    --producer.config FILE          Properties of the producer.
    --sync                          Wait for each record before the next.
    --compression-codec [CODEC]     none, gzip, snappy, lz4 or zstd; gzip without a value.
    --request-required-acks ACKS    Acknowledgements: all, 1 or 0.
    --batch-size BYTES              Maximum bytes of a batch.
    --max-partition-memory-bytes BYTES  As --batch-size.
    --timeout MS                    Wait for more records before a batch is sent.
    --max-block-ms MS               Wait for memory or for the topic.
    --max-memory-bytes BYTES        Memory for records that wait.
    --request-timeout-ms MS         Wait for a response.
    --retry-backoff-ms MS           Wait before a retry.
    --metadata-expiry-ms MS         Age at which the topic is looked up again.
    --message-send-max-retries NUMBER  Accepted and ignored.
    --socket-buffer-size BYTES      Accepted and ignored.
    """,
    helps=False,
)
READER_CLASSES = ("kafka.tools.ConsoleProducer$LineMessageReader",)
NUMBERS = {
    # Option, property, its value by default, bits.
    "max-partition-memory-bytes": ("batch.size", "16384", 32),
    "batch-size": ("batch.size", "16384", 32),
    "timeout": ("linger.ms", "1000", 64),
    "max-block-ms": ("max.block.ms", "60000", 64),
    "max-memory-bytes": ("buffer.memory", "33554432", 64),
    "request-timeout-ms": ("request.timeout.ms", "1500", 32),
    "retry-backoff-ms": ("retry.backoff.ms", "100", 64),
    "metadata-expiry-ms": ("metadata.max.age.ms", "300000", 64),
}
IGNORED = {"message-send-max-retries": 32, "socket-buffer-size": 32}


def run(given: Given) -> int:
    """Run the script; return its exit status. A record that cannot be sent does not change it."""
    if not given.has("bootstrap-server") and not given.has("broker-list"):
        raise UsageFault("Missing required option(s) [bootstrap-server]")
    given.require("topic")
    properties = _producer_properties(given)
    reader = _reader(given)
    topic = given.text("topic")
    try:
        producer = Producer(properties.servers, **properties.producer_arguments())
    except InvalidConfig as fault:
        raise properties.fault(str(fault)) from fault
    with producer:
        _send(producer, topic, reader, waits=given.has("sync"))
    return 0


def _producer_properties(given: Given) -> ClientProperties:
    path = given.value("producer.config")
    properties = {} if path is None else read_file(path)
    properties.update(pairs(given.values("producer-property")))
    server = "bootstrap-server" if given.has("bootstrap-server") else "broker-list"
    properties["bootstrap.servers"] = given.text(server)
    if given.has("compression-codec"):
        properties["compression.type"] = given.value("compression-codec") or "gzip"
    _option_or_default(given, properties, "request-required-acks", "acks", "-1")
    for option, (key, default, bits) in NUMBERS.items():
        given.integer(option, bits=bits)
        _option_or_default(given, properties, option, key, default)
    for option, bits in IGNORED.items():
        given.integer(option, bits=bits)
    properties.setdefault("client.id", "console-producer")
    return ClientProperties(properties, "Failed to construct kafka producer")


def _option_or_default(
    given: Given, properties: dict[str, str], option: str, key: str, default: str
) -> None:
    if given.has(option):
        properties[key] = given.text(option)
    else:
        properties.setdefault(key, default)


def _reader(given: Given) -> LineReader:
    path = given.value("reader-config")
    properties = {} if path is None else read_file(path)
    properties.update(pairs(given.values("property")))
    name = given.text("line-reader", READER_CLASSES[0])
    if name not in READER_CLASSES:
        raise ValueError(name)
    return LineReader(sys.stdin.buffer, properties, is_prompting=_is_terminal())


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _send(producer: Producer, topic: str, reader: LineReader, *, waits: bool) -> None:
    """Send the records of a reader, also those before a line that it cannot read."""
    try:
        for record in reader:
            _send_one(producer, topic, record, waits=waits)
    finally:
        producer.flush()


def _send_one(producer: Producer, topic: str, record: Line, *, waits: bool) -> None:
    def report(_: object, fault: PlogError | None) -> None:
        if fault is not None:
            sys.stderr.write(
                f"ERROR Error when sending message to topic {topic}"
                f" with key: {_size(record.key)}, value: {_size(record.value)}"
                f" with error: {reason(fault)}\n"
            )

    try:
        delivery = producer.send(
            topic, record.value, key=record.key, headers=record.headers, on_delivery=report
        )
    except KafkaError as fault:
        report(None, fault)
        return
    if waits:
        with suppress(PlogError):  # `report` has written it
            delivery.result()


def _size(data: bytes | None) -> str:
    return "null" if data is None else f"{len(data)} bytes"
