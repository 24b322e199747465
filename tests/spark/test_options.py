"""Every option works or is refused by its name; without Spark and without a broker."""

from __future__ import annotations

import pickle
import re

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from plog import errors
from plog.errors import ConfigError, KafkaError
from plog.spark import batch_sink, decisions, offsets, open_transactions, sink_options, two_phases
from plog.spark.bounds import BOUNDS, EARLIEST, LATEST, Bound
from plog.spark.options import (
    BATCH_OPTIONS,
    OPTIONS,
    REFUSED,
    STREAM_OPTIONS,
    SourceOptions,
    parse,
    wants_headers,
)
from plog.spark.source import PlogDataSource
from plog.types import TopicPartition
from tests.servers import free_port
from tests.spark.conftest import ROOT

NEEDED = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def test_least_options_read_everything_there_is():
    assert parse(NEEDED) == SourceOptions(
        bootstrap_servers="h:1",
        topics=("t",),
        start=Bound(named=EARLIEST),
        end=Bound(named=LATEST),
        fail_on_data_loss=True,
        include_headers=False,
        read_committed=False,
    )


@pytest.mark.parametrize(
    ("option", "variable", "used"),
    [("h:1", "v:1", "h:1"), (None, "v:1,w:2", "v:1,w:2"), ("h:1", "", "h:1"), (None, " ", None)],
)
def test_option_goes_before_the_variable(monkeypatch, option, variable, used):
    monkeypatch.setenv("PLOG_BOOTSTRAP_SERVER", variable)
    given = {} if option is None else {"Kafka.Bootstrap.Servers": option}
    for parsed, more in ((parse, {"subscribe": "t"}), (sink_options.parse, {"topic": "t"})):
        if used is None:
            with pytest.raises(ConfigError, match="or export PLOG_BOOTSTRAP_SERVER before"):
                parsed({**given, **more})
        else:
            assert parsed({**given, **more}).bootstrap_servers == used


ACCEPTED = [
    ("subscribe", " t , u,,t ", "topics", ("t", "u")),
    ("startingOffsets", "earliest", "start", Bound(named=EARLIEST)),
    ("startingOffsets", "EARLIEST", "start", Bound(named=EARLIEST)),
    (
        "startingOffsets",
        '{"t": {"0": 23, "1": -2}, "u": {"0": 0}}',
        "start",
        Bound(offsets={T0: 23, T1: EARLIEST, U0: 0}),
    ),
    ("startingTimestamp", "1000", "start", Bound(timestamp=1000)),
    ("startingTimestamp", "0", "start", Bound(timestamp=0)),
    ("startingOffsetsByTimestamp", '{"t": {"0": 5}}', "start", Bound(timestamps={T0: 5})),
    ("endingOffsets", "latest", "end", Bound(named=LATEST)),
    ("endingOffsets", '{"t": {"0": 50, "1": -1}}', "end", Bound(offsets={T0: 50, T1: LATEST})),
    ("endingTimestamp", "1000", "end", Bound(timestamp=1000)),
    ("endingOffsetsByTimestamp", '{"t": {"1": 7}}', "end", Bound(timestamps={T1: 7})),
    ("startingOffsetsByTimestampStrategy", "latest", "latest_if_no_later_record", True),
    ("startingOffsetsByTimestampStrategy", "ERROR", "latest_if_no_later_record", False),
    ("failOnDataLoss", "false", "fail_on_data_loss", False),
    ("failOnDataLoss", "True", "fail_on_data_loss", True),
    ("includeHeaders", "true", "include_headers", True),
    ("minPartitions", "7", "min_partitions", 7),
    ("pushFilters", "true", "push_filters", True),
    ("maxRecordsPerPartition", "100", "max_records_per_partition", 100),
    ("fetchOffset.numRetries", "5", "plan_attempts", 5),
    ("fetchOffset.retryIntervalMs", "0", "plan_retry_interval_ms", 0),
    ("kafkaConsumer.pollTimeoutMs", "512", "poll_timeout_ms", 512),
    ("kafka.client.id", "me", "client_id", "me"),
    ("kafka.isolation.level", "read_committed", "read_committed", True),
    ("kafka.isolation.level", "read_uncommitted", "read_committed", False),
    ("kafka.fetch.max.bytes", "9", "fetch_max_bytes", 9),
    ("kafka.max.partition.fetch.bytes", "9", "partition_max_bytes", 9),
    ("kafka.fetch.max.wait.ms", "0", "fetch_max_wait_ms", 0),
    ("kafka.request.timeout.ms", "9", "request_timeout_ms", 9),
    ("kafka.retry.backoff.ms", "9", "retry_backoff_ms", 9),
]


@pytest.mark.parametrize(("option", "text", "field", "value"), ACCEPTED)
@pytest.mark.parametrize("case", [str, str.lower, str.upper])
def test_option_in_any_case_sets_its_field(option, text, field, value, case):
    parsed = parse(
        {**NEEDED, case(option): text} if option != "subscribe" else NEEDED | {option: text}
    )
    assert getattr(parsed, field) == value


def test_plaintext_is_the_one_security_protocol():
    assert parse(NEEDED | {"kafka.security.protocol": "PLAINTEXT"}) == parse(NEEDED)


@pytest.mark.parametrize(
    ("option", "text", "field", "value"),
    [
        ("assign", '{"t": [1, 0, 1], "u": [0]}', "assigned", (T0, T1, U0)),
        ("subscribePattern", "t.*", "pattern", "t.*"),
    ],
)
def test_other_subscriptions(option, text, field, value):
    parsed = parse({"kafka.bootstrap.servers": "h:1", option: text})
    assert getattr(parsed, field) == value
    assert parsed.topics == ()


BAD = [
    (
        "startingOffsets",
        "latest",
        "startingOffsets: a batch query cannot start at the latest offset",
    ),
    (
        "startingOffsets",
        '{"t": {"0": -1}}',
        "a batch query cannot start at offset -1 of t-0",
    ),
    (
        "startingOffsets",
        '{"t": {"0": -3}}',
        "a batch query cannot start at offset -3 of t-0",
    ),
    ("endingOffsets", "earliest", "endingOffsets: a batch query cannot end at the earliest offset"),
    (
        "endingOffsets",
        '{"t": {"0": -2}}',
        "endingOffsets: a batch query cannot end at offset -2 of t-0",
    ),
    ("startingOffsets", "soon", "startingOffsets: invalid JSON"),
    ("startingOffsets", "[1]", "startingOffsets: expected e.g."),
    ("startingOffsets", '{"t": [1]}', "startingOffsets: expected e.g."),
    ("startingOffsets", '{"t": {"x": 1}}', "startingOffsets: invalid partition number x"),
    ("startingOffsets", '{"t": {"0": 1.5}}', "startingOffsets: 1.5 is not a whole number"),
    ("startingOffsets", '{"t": {"0": true}}', "startingOffsets: true is not a whole number"),
    ("startingOffsets", '{"t": {"0": "7"}}', 'startingOffsets: "7" is not a whole number'),
    ("startingOffsets", '{"t": {"0": 1}, "t": {"1": 1}}', "startingOffsets: duplicate key 't'"),
    ("startingOffsets", '{"t": {"0": 1, "0": 2}}', "startingOffsets: duplicate key '0'"),
    ("startingOffsets", '{"t": {"00": 1}}', "startingOffsets: invalid partition number 00"),
    ("startingOffsets", '{"t": {"\u0663": 1}}', "startingOffsets: invalid partition number \u0663"),
    (
        "startingOffsets",
        '{"t": {"2147483648": 1}}',
        "startingOffsets: invalid partition number 2147483648",
    ),
    (
        "startingOffsets",
        '{"t": {"0": 9223372036854775808}}',
        "startingOffsets: 9223372036854775808 is above 9223372036854775807",
    ),
    ("startingTimestamp", str(1 << 63), f"startingTimestamp: {1 << 63} is above {(1 << 63) - 1}"),
    (
        "kafka.fetch.max.bytes",
        "3000000000",
        "kafka.fetch.max.bytes: 3000000000 is above 2147483647",
    ),
    (
        "kafka.max.partition.fetch.bytes",
        str(1 << 31),
        "kafka.max.partition.fetch.bytes: 2147483648",
    ),
    ("kafka.fetch.max.wait.ms", str(1 << 31), "kafka.fetch.max.wait.ms: 2147483648 is above"),
    ("kafka.request.timeout.ms", str(1 << 31), "kafka.request.timeout.ms: 2147483648 is above"),
    ("minPartitions", str(1 << 31), "minPartitions: 2147483648 is above 2147483647"),
    ("startingTimestamp", "yesterday", "startingTimestamp: 'yesterday' is not a whole number"),
    ("startingTimestamp", "-1", "startingTimestamp: -1 is below 0"),
    (
        "endingOffsetsByTimestamp",
        '{"t": {"0": -1}}',
        "endingOffsetsByTimestamp: timestamp -1 for t-0 is below 0",
    ),
    (
        "startingOffsetsByTimestampStrategy",
        "first",
        "startingOffsetsByTimestampStrategy: invalid value 'first'",
    ),
    ("failOnDataLoss", "yes", "failOnDataLoss: invalid value 'yes': use true or false"),
    ("includeHeaders", "", "includeHeaders: invalid value '': use"),
    ("minPartitions", "0", "minPartitions: 0 is not above 0"),
    ("minPartitions", "x", "minPartitions: 'x' is not a whole number"),
    ("maxRecordsPerPartition", "-4", "maxRecordsPerPartition: -4"),
    ("kafkaConsumer.pollTimeoutMs", "soon", "kafkaConsumer.pollTimeoutMs: 'soon' is not a"),
    ("subscribe", " , ", "subscribe: no topic given"),
    (
        "kafka.isolation.level",
        "serializable",
        "kafka.isolation.level: invalid value 'serializable'",
    ),
    (
        "kafka.security.protocol",
        "SSL",
        "kafka.security.protocol: 'SSL' is not supported yet; only PLAINTEXT is",
    ),
    ("maxOffsetsPerTrigger", "5", "maxOffsetsPerTrigger applies to streaming queries only"),
    ("minOffsetsPerTrigger", "5", "minOffsetsPerTrigger applies to streaming queries only"),
    ("maxTriggerDelay", "5m", "maxTriggerDelay applies to streaming queries only"),
    ("commitOffsetsToGroup", "g", "commitOffsetsToGroup applies to streaming queries only"),
    (
        "groupIdPrefix",
        "g",
        "groupIdPrefix is not supported: this source reads without a consumer group. To see a "
        "stream's lag, set commitOffsetsToGroup",
    ),
    ("kafka.group.id", "g", "kafka.group.id is not supported: this source reads without"),
    ("kafka.auto.offset.reset", "latest", "kafka.auto.offset.reset is not supported: use"),
    ("kafka.ssl.keystore.location", "k", "kafka.ssl.keystore.location is not supported; remove it"),
    ("path", "t", "path is not supported: use .option"),
    ("topic", "t", "unknown option topic for the source"),
    (
        "startingOffset",
        "latest",
        "unknown option startingoffset for the source; did you mean startingOffsets?",
    ),
]


@pytest.mark.parametrize(("option", "text", "message"), BAD)
def test_bad_option_is_refused_by_name(option, text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(NEEDED | {option: text})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t"}, "kafka.bootstrap.servers is required"),
        (
            {"kafka.bootstrap.servers": "h:1"},
            "set exactly one of subscribe, assign, subscribePattern (found none)",
        ),
        (NEEDED | {"subscribePattern": "t"}, "(found subscribe and subscribePattern)"),
        (
            {"kafka.bootstrap.servers": "h:1", "subscribePattern": "("},
            "invalid regular expression '(' (Python syntax)",
        ),
        ({"kafka.bootstrap.servers": "h:1", "assign": "{}"}, "assign: no partition given"),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"t": 0}'}, "assign: expected e.g."),
        (
            {"kafka.bootstrap.servers": "h:1", "assign": '{"t": [0], "t": [1]}'},
            "assign: duplicate key 't'",
        ),
        (
            {"kafka.bootstrap.servers": "h:1", "assign": '{"t": [-1]}'},
            "assign: invalid partition number -1",
        ),
        (
            NEEDED | {"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"0": 4}}'},
            "the starting offset 5 for t-0 is above the ending offset 4",
        ),
        (
            NEEDED
            | {
                "startingOffsetsByTimestamp": '{"t": {"0": 5}}',
                "endingOffsetsByTimestamp": '{"t": {"0": 4}}',
            },
            "the starting timestamp 5 for t-0 is above the ending timestamp 4",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(options)


def test_least_options_of_a_stream_begin_at_its_end():
    assert parse(NEEDED, streaming=True) == SourceOptions(
        bootstrap_servers="h:1",
        topics=("t",),
        start=Bound(named=LATEST),
        max_offsets_per_trigger=None,
        min_offsets_per_trigger=None,
        max_trigger_delay_ms=900_000,
        commit_group=None,
    )


@pytest.mark.parametrize(
    ("option", "text", "field", "value"),
    [
        *(case for case in ACCEPTED if not case[0].startswith(("ending", "push"))),
        ("startingOffsets", "latest", "start", Bound(named=LATEST)),
        (
            "startingOffsets",
            '{"t": {"0": -1, "1": -2}}',
            "start",
            Bound(offsets={T0: LATEST, T1: EARLIEST}),
        ),
        ("maxOffsetsPerTrigger", "700", "max_offsets_per_trigger", 700),
        ("minOffsetsPerTrigger", "7", "min_offsets_per_trigger", 7),
        ("maxTriggerDelay", "90s", "max_trigger_delay_ms", 90_000),
        ("maxTriggerDelay", " 2H ", "max_trigger_delay_ms", 7_200_000),
        ("maxTriggerDelay", "3min", "max_trigger_delay_ms", 180_000),
        ("maxTriggerDelay", "3m", "max_trigger_delay_ms", 180_000),
        ("maxTriggerDelay", "1d", "max_trigger_delay_ms", 86_400_000),
        ("maxTriggerDelay", "250", "max_trigger_delay_ms", 250),
        ("maxTriggerDelay", "250ms", "max_trigger_delay_ms", 250),
        ("maxTriggerDelay", "2500us", "max_trigger_delay_ms", 2),
        ("commitOffsetsToGroup", "lag", "commit_group", "lag"),
    ],
)
def test_option_of_a_stream_sets_its_field(option, text, field, value):
    parsed = parse(NEEDED | {option: text}, streaming=True)
    assert getattr(parsed, field) == value


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        *(
            case
            for case in BAD
            if not case[0].startswith("ending")
            and "streaming queries only" not in case[2]
            and "a batch query" not in case[2]
        ),
        (
            "startingOffsets",
            '{"t": {"0": -3}}',
            "startingOffsets: invalid offset -3 for t-0: use -2",
        ),
        ("endingOffsets", "latest", "endingOffsets applies to batch queries only"),
        ("endingTimestamp", "1", "endingTimestamp applies to batch queries only"),
        (
            "endingOffsetsByTimestamp",
            "{}",
            "endingOffsetsByTimestamp applies to batch queries",
        ),
        ("maxOffsetsPerTrigger", "0", "maxOffsetsPerTrigger: 0 is not above 0"),
        ("minOffsetsPerTrigger", "x", "minOffsetsPerTrigger: 'x' is not a whole number"),
        ("maxTriggerDelay", "soon", "maxTriggerDelay: invalid duration 'soon'"),
        ("maxTriggerDelay", "5 m", "maxTriggerDelay: invalid duration '5 m'"),
        ("maxTriggerDelay", "5w", "maxTriggerDelay: invalid duration '5w'"),
        ("commitOffsetsToGroup", " ", "commitOffsetsToGroup: is empty"),
    ],
)
def test_bad_option_of_a_stream_is_refused_by_name(option, text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(NEEDED | {option: text}, streaming=True)


def test_least_of_a_batch_is_not_above_the_most():
    limits = {"minOffsetsPerTrigger": "8", "maxOffsetsPerTrigger": "7"}
    with pytest.raises(ConfigError, match="minOffsetsPerTrigger=8 is above maxOffsetsPerTrigger=7"):
        parse(NEEDED | limits, streaming=True)


def test_headers_are_wanted_whatever_else_is_said():
    assert wants_headers({"INCLUDEHEADERS": "True", "maxOffsetsPerTrigger": "1"})
    assert not wants_headers({"subscribe": "t"})
    with pytest.raises(ConfigError, match="includeHeaders: invalid value 'yes': use true or false"):
        wants_headers({"includeHeaders": "yes"})


def test_all_faults_are_reported_at_once():
    with pytest.raises(ConfigError) as raised:
        parse({"subscribe": "t", "minPartitions": "0", "colour": "red"})
    assert all(word in str(raised.value) for word in ("bootstrap", "minPartitions", "colour"))


@pytest.mark.parametrize(("side", "field"), [("starting", "start"), ("ending", "end")])
def test_timestamp_goes_before_timestamps_and_they_before_offsets(side, field):
    offsets = {f"{side}Offsets": '{"t": {"0": 3}}'}
    timestamps = {f"{side}OffsetsByTimestamp": '{"t": {"0": 4}}'}
    timestamp = {f"{side}Timestamp": "5"}
    for options, bound in [
        (offsets, Bound(offsets={T0: 3})),
        (offsets | timestamps, Bound(timestamps={T0: 4})),
        (timestamp | offsets | timestamps, Bound(timestamp=5)),
        (timestamp | offsets, Bound(timestamp=5)),
        # What has no say is not looked at, as in Spark's Kafka source.
        (timestamp | {f"{side}Offsets": "nonsense"}, Bound(timestamp=5)),
    ]:
        assert getattr(parse(NEEDED | options), field) == bound


def test_parsed_options_travel_to_the_executors():
    parsed = parse(NEEDED | {"startingOffsets": '{"t": {"0": 3}}'})
    assert pickle.loads(pickle.dumps(parsed)) == parsed


def test_documentation_lists_every_option_of_the_sink():
    text = (ROOT / "docs" / "SPARK.md").read_text(encoding="utf-8")
    table = text[text.index("## Write") : text.index("### What exactly once means")]
    rows = re.findall(r"^\| (`[a-z].*?`) \|", table[table.index("| Option |") :], re.M)
    listed = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert sorted(listed) == sorted(sink_options.OPTIONS)


def test_documentation_lists_every_option():
    text = (ROOT / "docs" / "SPARK.md").read_text(encoding="utf-8")
    table = text[text.index("### Options of the source") : text.index("## Streams")]
    listed = re.findall(r"^\| `([\w.]+)` \|", table, re.M)
    supported = [*OPTIONS, *(option for options in BOUNDS.values() for option in options)]
    supported += [*STREAM_OPTIONS, *BATCH_OPTIONS]
    assert sorted(listed) == sorted(supported)
    for refused in {*REFUSED, *sink_options.REFUSED} - {"path"}:
        assert f"`{refused}`" in text


def test_errors_that_the_page_names_are_the_present_ones():
    """Each class in its table of errors exists, with the beginning of the message it shows."""
    page = (ROOT / "docs" / "SPARK.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+): ", page, re.MULTILINE)
    assert len(named) >= 6
    modules = [errors, two_phases, decisions, offsets, open_transactions, batch_sink]
    existing = {name for module in modules for name in vars(module)}
    assert set(named) <= existing


def test_batch_query_without_brokers_says_so_before_its_tasks_wait(caplog):
    options = {
        "kafka.bootstrap.servers": f"127.0.0.1:{free_port()}",
        "topic": "t",
        "kafka.request.timeout.ms": "1500",
    }
    schema = StructType([StructField("value", StringType())])
    with pytest.raises(KafkaError, match="cannot connect"):
        PlogDataSource(options).writer(schema, overwrite=False)
    assert caplog.text.count("waiting for brokers: cannot connect") == 1


@pytest.mark.parametrize(
    ("option", "argument", "value"),
    [
        ("kafka.buffer.memory", "buffer_memory", 1 << 32),
        ("kafka.max.block.ms", "max_block_ms", (1 << 31) - 1),
        ("kafka.metadata.max.age.ms", "metadata_max_age_ms", (1 << 31) - 1),
        ("kafka.linger.ms", "linger_ms", (1 << 31) - 1),
    ],
)
def test_what_has_64_bits_in_kafka_may_have_them(option, argument, value):
    asked = value if value == 1 << 32 else (1 << 63) - 1
    parsed = sink_options.parse({"kafka.bootstrap.servers": "h:1", option: str(asked)})
    assert parsed.producer[argument] == value
