"""The source inside Spark: found by name, typed as it should be, in SQL and by spark-submit."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import Row

from plog.client.admin import Admin
from plog.client.producer import Producer
from plog.spark import source
from plog.spark.session import register
from plog.spark.session_settings import SETTINGS
from plog.spark.source import PlogDataSource
from plog.types import TopicPartition
from tests.compat.clients import Confluent, Sent
from tests.conftest import ROOT
from tests.servers import BrokerProcess
from tests.spark.jvm import QUICK_JVM
from tests.spark.marks import DEAR_PLANES
from tests.spark.plain_job import UNSET
from tests.spark.submitted import JOBS
from tests.spark.test_sink import read
from tests.spark.test_source import RECORDS, T0_MS, at, fill

pytestmark = pytest.mark.spark


def load(spark, broker: BrokerProcess, schema: str | None = None, **options):
    reader = spark.read.format("plog").option("kafka.bootstrap.servers", broker.bootstrap)
    for key, value in options.items():
        reader = reader.option(key.replace("__", "."), value)
    return (reader if schema is None else reader.schema(schema)).load()


def test_schema_is_that_of_sparks_kafka_source(spark, broker, new_topic):
    topic = new_topic()
    base = (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int"
    )
    assert load(spark, broker, subscribe=topic).schema.simpleString() == f"{base}>"
    with_headers = load(spark, broker, subscribe=topic, includeHeaders=True)
    headers = ",headers:array<struct<key:string,value:binary>>>"
    assert with_headers.schema.simpleString() == base + headers


def test_rows_arrive_in_spark_as_they_were_produced(spark, broker, new_topic):
    topic = new_topic()
    Confluent().produce(broker.bootstrap, topic, RECORDS, codec="lz4")
    rows = load(spark, broker, subscribe=topic, includeHeaders=True).orderBy("offset").collect()
    assert rows == [
        Row(
            key=None if sent.key is None else bytearray(sent.key),
            value=None if sent.value is None else bytearray(sent.value),
            topic=topic,
            partition=0,
            offset=offset,
            timestamp=at(sent.timestamp).astimezone().replace(tzinfo=None),
            timestampType=0,
            headers=[
                Row(key=key, value=None if value is None else bytearray(value))
                for key, value in sent.headers
            ]
            or None,
        )
        for offset, sent in enumerate(RECORDS)
    ]


@pytest.mark.parametrize(
    ("schema", "total"),
    [
        ("value binary", "sum(length(value))"),
        ("offset bigint, partition int", "sum(offset * 1000 + partition)"),
        ("timestamp timestamp not null", "count(timestamp)"),
        ("topic string", "count(topic)"),
    ],
)
def test_narrow_schema_gives_the_same_columns(spark, broker, new_topic, schema, total):
    topic = new_topic(partitions=3)
    fill(broker, topic, {0: 400, 1: 6000, 2: 3}, size=10)
    wide = load(spark, broker, subscribe=topic).selectExpr(total).first()[0]
    assert load(spark, broker, schema, subscribe=topic).selectExpr(total).first()[0] == wide


def test_sql_view_reads_a_topic(spark, broker, new_topic):
    topic = new_topic(partitions=2)
    fill(broker, topic, {0: 5, 1: 7})
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW events USING plog OPTIONS ("
        f"'kafka.bootstrap.servers' '{broker.bootstrap}', subscribe '{topic}')"
    )
    found = spark.sql("SELECT partition, count(*), max(offset) FROM events GROUP BY 1 ORDER BY 1")
    assert [tuple(row) for row in found.collect()] == [(0, 5, 4), (1, 7, 6)]


def test_table_of_the_catalog_is_told_to_be_a_view(spark, broker, new_topic):
    """Spark 4.3 keeps a table's options and hands a Python source none of them."""
    name = f"events_{new_topic()}"
    spark.sql(
        f"CREATE TABLE {name} USING plog OPTIONS ("
        f"'kafka.bootstrap.servers' '{broker.bootstrap}', subscribe 't')"
    )
    try:
        with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW"):
            spark.table(name).count()
    finally:
        spark.sql(f"DROP TABLE {name}")


@pytest.mark.parametrize("strict", ["true", "false"])
def test_records_that_are_gone_are_an_error_or_left_out(spark, broker, new_topic, strict):
    topic = new_topic(partitions=2)
    fill(broker, topic, {0: 10, 1: 3})
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 6})
    asked = json.dumps({topic: {"0": 2, "1": 0}})
    frame = load(spark, broker, subscribe=topic, startingOffsets=asked, failOnDataLoss=strict)
    if strict == "true":
        with pytest.raises(AnalysisException, match=f"{topic}-0, which has offsets 6 to 10"):
            frame.count()
    else:
        found = frame.selectExpr("partition", "offset").collect()
        expected = [(0, offset) for offset in range(6, 10)] + [(1, offset) for offset in range(3)]
        assert sorted(map(tuple, found)) == expected


def test_empty_topic_is_an_empty_frame(spark, broker, new_topic):
    topic = new_topic(partitions=3)
    assert load(spark, broker, subscribe=topic).collect() == []
    assert load(spark, broker, subscribePattern="no-such-topic").count() == 0


def test_large_records_reach_spark(spark, broker, new_topic):
    topic = new_topic()
    sent = [Sent(b"k", bytes([n]) * (10 << 20)) for n in range(3)]
    Confluent().produce(broker.bootstrap, topic, sent)
    digests = load(spark, broker, subscribe=topic).selectExpr(
        "offset", "md5(value)", "length(value)"
    )
    expected = spark.createDataFrame([(n,) for n in range(3)], "n int").selectExpr(
        "n", f"md5(cast(repeat(char(n), {10 << 20}) as binary))", f"{10 << 20}"
    )
    assert sorted(map(tuple, digests.collect())) == sorted(map(tuple, expected.collect()))


def test_large_rows_reach_python_in_batches_of_bounded_size(spark):
    """As rows for the sink do; one of 2 GiB is more than Arrow holds."""
    rows = spark.range(0, 200, 1, 1).selectExpr("repeat('x', 1000000) AS value")

    def sizes(batches):
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"size": [batch.nbytes]})

    found = [row.size for row in rows.mapInArrow(sizes, "size long").collect()]
    assert sum(found) > 200_000_000
    assert max(found) < (64 << 20) + 2_000_000


def test_actions_of_a_frame_see_the_same_records(spark, broker, new_topic):
    topic = new_topic()
    fill(broker, topic, {0: 10})
    frame = load(spark, broker, subscribe=topic)
    assert frame.count() == 10
    fill(broker, topic, {0: 5})
    assert frame.count() == 10
    assert load(spark, broker, subscribe=topic).count() == 15


def test_tasks_are_as_many_as_asked_for(spark, broker, new_topic):
    topic = new_topic(partitions=4)
    fill(broker, topic, dict.fromkeys(range(4), 100))
    for options, tasks in [({"minPartitions": 100}, 100), ({"maxRecordsPerPartition": 10}, 40)]:
        frame = load(spark, broker, subscribe=topic, **options)
        assert frame.rdd.getNumPartitions() == tasks
    assert frame.selectExpr("count(distinct partition, offset)").first()[0] == 400
    by_time = load(
        spark,
        broker,
        subscribe=topic,
        startingTimestamp=T0_MS + 10,
        endingTimestamp=T0_MS + 30,
    )
    assert by_time.count() == 80


@pytest.mark.usefixtures("plane")
def test_broker_that_restarts_during_the_query_costs_nothing(spark, tmp_path):
    with BrokerProcess(tmp_path) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=3)
        fill(broker, "t", dict.fromkeys(range(3), 30_000), size=100)
        frame = load(
            spark,
            broker,
            subscribe="t",
            kafka__max__partition__fetch__bytes=20_000,
            kafka__fetch__max__bytes=20_000,
        ).selectExpr("count(*)", "count(distinct partition, offset)", "sum(offset)")
        frame.collect()  # plans once and for all
        done = threading.Event()
        restarts = 0

        def restart() -> None:
            nonlocal restarts
            while not done.is_set():
                broker.kill()
                broker.start()
                restarts += 1
                done.wait(0.3)

        restarting = threading.Thread(target=restart)
        restarting.start()
        try:
            rows = frame.collect()
        finally:
            done.set()
            restarting.join()
        assert restarts > 0
        assert [tuple(row) for row in rows] == [(90_000, 90_000, 3 * 29_999 * 15_000)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t", "colour": "red"}, "unknown option colour for the source"),
        ({"subscribe": "t", "kafka.group.id": "g"}, "kafka.group.id is not supported"),
        ({}, "set exactly one of subscribe, assign, subscribePattern"),
        ({"subscribe": "t", "startingOffsets": "latest"}, "startingOffsets: a batch query cannot"),
        (
            {"subscribe": "no-such", "fetchOffset.retryIntervalMs": "0"},
            "topic 'no-such' does not exist",
        ),
    ],
)
def test_wrong_options_are_an_analysis_error_that_names_them(spark, broker, options, message):
    with pytest.raises(AnalysisException, match=message):
        load(spark, broker, **options).count()


def test_deleted_records_end_the_query_with_their_reason(spark, broker, new_topic):
    topic = new_topic()
    fill(broker, topic, {0: 10})
    frame = load(spark, broker, subscribe=topic)
    assert frame.rdd.getNumPartitions() > 0  # planned
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 8})
    with pytest.raises(PythonException, match=f"{topic}-0 cannot be read: records below 8"):
        frame.count()


def test_session_is_set_up_as_the_page_says(spark):
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    page = (ROOT / "docs" / "SPARK.md").read_text().splitlines()
    assert {tuple(line.split()) for line in page} >= set(SETTINGS.items())
    assert {key: spark.conf.get(key) for key in SETTINGS} == SETTINGS
    assert spark.sparkContext.appName == "plog tests"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1"


REGISTERING = """
import sys
from py4j.protocol import Py4JJavaError
from plog.spark.session import register, session

spark = session("registering", spark_master="local[1]", spark_ui_enabled="false")
spark.sparkContext.setLogLevel("OFF")

def count():
    reader = spark.read.format("plog").option("kafka.bootstrap.servers", sys.argv[1])
    return reader.option("subscribe", sys.argv[2]).load().count()

try:
    count()
except Py4JJavaError as fault:
    print("DATA_SOURCE_NOT_FOUND" in str(fault))
register(spark)
print(count())
"""


def test_registered_format_is_found(spark, broker, new_topic, monkeypatch):
    class Registered(PlogDataSource):
        @classmethod
        def name(cls):
            return "plog_registered"

    topic = new_topic()
    fill(broker, topic, {0: 7})
    monkeypatch.setattr(source, "PlogDataSource", Registered)
    register(spark)
    reader = spark.read.format("plog_registered").option("subscribe", topic)
    assert reader.option("kafka.bootstrap.servers", broker.bootstrap).load().count() == 7


@pytest.mark.long
@DEAR_PLANES
def test_registered_format_needs_no_search(broker, new_topic, workers_find_plog, tmp_path):
    """Another module that fails to import ends Spark's search, and `register` does without one."""
    topic = new_topic()
    fill(broker, topic, {0: 7})
    (tmp_path / "pyspark_broken.py").write_text("raise ImportError('broken')")
    path = f"{tmp_path}{os.pathsep}{workers_find_plog['PYTHONPATH']}"
    said = subprocess.run(
        [sys.executable, "-c", REGISTERING, broker.bootstrap, topic],
        env={**workers_find_plog, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert said.stdout.split() == ["True", "7"], said.stderr


# -- the jobs


@pytest.fixture(scope="module")
def some_flights(broker: BrokerProcess):
    """The flights of a day and a half in a topic; returns its name and the rows."""
    sys.path.insert(0, str(JOBS))
    try:
        import flights_events
    finally:
        sys.path.remove(str(JOBS))
    import json

    flights = list(itertools.islice(flights_events.rows(), 1300))
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("some-flights", partitions=3, configs={"retention.ms": "-1"})
    with Producer(broker.bootstrap) as producer:
        for flight in flights:
            producer.send(
                "some-flights",
                json.dumps(flight).encode(),
                key=flight["carrier"].encode(),
                timestamp_ms=int(datetime.fromisoformat(flight["time_hour"]).timestamp() * 1000),
            )
    return flights


@DEAR_PLANES
def test_script_prints_the_report(broker, some_flights, run_script, tmp_path):
    until = datetime(2013, 1, 1, 15, tzinfo=UTC)
    job = run_script(
        "flights_report.py",
        *("--bootstrap-server", broker.bootstrap, "--topic", "some-flights"),
        *("--until", "2013-01-01T15:00", "--plot", str(tmp_path / "report.png")),
    )
    assert job.returncode == 0, job.stderr
    wanted = [f for f in some_flights if datetime.fromisoformat(f["time_hour"]) < until]
    assert 0 < len(wanted) < len(some_flights)
    counts = {c: sum(f["carrier"] == c for f in wanted) for c in {f["carrier"] for f in wanted}}
    told = {
        words[0]: int(words[1].replace(",", ""))
        for words in map(str.split, job.stdout.splitlines())
        if len(words) > 2 and words[0] in {*counts, "all"}
    }
    assert told == counts | {"all": len(wanted)}
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


@DEAR_PLANES
def test_plain_job_needs_the_properties_of_the_doctor_and_no_other(
    broker, new_topic, workers_find_plog, tmp_path
):
    """It has the broker of the variable. Settings that it unsets are warned of, once each."""
    topic, copy = new_topic(), new_topic()
    fill(broker, topic, {0: 7})
    environment = {
        **{key: value for key, value in workers_find_plog.items() if key != "PYSPARK_PYTHON"},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PLOG_BOOTSTRAP_SERVER": broker.bootstrap,
    }
    properties = tmp_path / "plog.conf"
    with properties.open("w") as out:
        asked = [sys.executable, "-m", "plog", "doctor", "--spark", "--conf"]
        subprocess.run(asked, env=environment, stdout=out, check=True, timeout=120)
    done = subprocess.run(
        [shutil.which("spark-submit", path=environment["PATH"]), "--properties-file", properties,
         *("--master", "local[2]", "--driver-java-options", QUICK_JVM),
         *("--conf", f"spark.local.dir={tmp_path}", "--conf", "spark.ui.enabled=false"),
         ROOT / "tests" / "spark" / "plain_job.py", topic, copy],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line.startswith(("3 ", "warned of"))]
    all_unset = f"warned of {' '.join(sorted(UNSET))}"
    assert printed == ["3 records", "warned of", *["3 records", all_unset] * 2]
    warnings = [line for line in done.stderr.splitlines() if line.startswith("plog: ")]
    assert sorted(line.split()[1] for line in warnings) == sorted(UNSET)
    assert all(f"spark-defaults.conf: {name} {SETTINGS[name]} (" in done.stderr for name in UNSET)
    assert len(read(broker, copy)) == 21


def test_interrupted_demo_leaves_no_process(tmp_path, workers_find_plog):
    demo = subprocess.Popen(
        [sys.executable, str(JOBS / "demo.py"), "--data", str(tmp_path)],
        env=workers_find_plog | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout is not None
    assert "Broker listening on" in demo.stdout.readline()
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode != 0
    assert "interrupted; the broker is stopped" in errors
    assert "Traceback" not in errors
    mine = str(tmp_path).encode()
    left = [
        pid for pid in filter(str.isdigit, os.listdir("/proc")) if mine in _command_line(int(pid))
    ]
    assert left == []


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""  # ended meanwhile
