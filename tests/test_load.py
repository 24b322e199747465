"""The load generator loads what it says: its counts are held against the log that it leaves.

How fast anything is, is not judged here.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from plog._native import batch
from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.errors import RequestTimedOut
from plog.protocol import codec, framing
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from plog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from plog.types import TopicPartition
from tests.servers import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "asv_bench"))

import bench_kafka
import bench_load
import bench_rounds
import bench_rows
import bench_servers
from bench_report import BEGIN, END, Cell, beside_kafka, misses
from rich.console import Console

from plog.ops import load

ROOT = Path(__file__).resolve().parent.parent
PARTITIONS = 6


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as running:
        yield running


def make_topic(broker: BrokerProcess, partitions: int = PARTITIONS) -> tuple[str, uuid.UUID]:
    name = f"load-{uuid.uuid4().hex[:8]}"
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(name, partitions=partitions)
        return name, admin.topic(name).topic_id


def read_values(broker: BrokerProcess, topic: str, partitions: int = PARTITIONS) -> list[bytes]:
    """Return every value of a topic, by a client; checks that offsets are contiguous."""
    assigned = [TopicPartition(topic, number) for number in range(partitions)]
    following = dict.fromkeys(assigned, 0)
    values = []
    with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        while following != ends:
            records = consumer.poll(5_000)
            assert records, f"nothing comes behind {following}"
            for record in records:
                partition = TopicPartition(record.topic, record.partition)
                assert record.offset == following[partition]
                following[partition] += 1
                values.append(record.value)
    return values


def count_on_disk(paths: Iterable[Path]) -> int:
    """Count the records in logs of one segment; every CRC is checked, and offsets contiguous."""
    records = 0
    for path in paths:
        offset = 0
        for header in batch.scan(path.read_bytes()):
            assert header.base_offset == offset
            offset = header.next_offset
            records += header.records_count
    return records


@pytest.mark.parametrize(
    ("size_bytes", "codec", "options"),
    [
        (16_384, "none", {"acks": -1, "idempotent": True, "connections": 3, "per_request": 6}),
        (16_384, "lz4", {"acks": -1, "idempotent": True, "connections": 2, "per_request": 2}),
        (0, "none", {"acks": -1, "idempotent": True, "connections": 4, "in_flight": 5}),
        (0, "none", {"acks": -1, "idempotent": True, "patient": True, "per_request": 2}),
        (0, "none", {"acks": 1, "connections": 4, "per_request": 3}),
        (0, "none", {"acks": 0, "connections": 2}),
        (0, "none", {"acks": -1, "rate": 2_000, "connections": 2}),
    ],
    ids=["idempotent", "lz4", "one record", "patient", "acks=1", "acks=0", "paced"],
)
def test_the_log_holds_what_was_counted(broker, tmp_path, size_bytes, codec, options):
    made = load.make_batch(tmp_path / "batch", size_bytes, codec=codec)
    topic, _ = make_topic(broker)
    requests = 60 if size_bytes else 600
    figures = load.run(
        "produce",
        port=broker.port,
        topic=topic,
        batch_file=made.path,
        partitions=PARTITIONS,
        requests=requests,
        **options,
    )
    total = figures["total"]
    batches = requests * options.get("per_request", 1)
    assert total["requests"] == requests
    assert total["records"] == batches * made.records
    assert total["bytes"] == batches * made.size_bytes
    values = read_values(broker, topic)
    assert len(values) == total["records"]
    assert len(set(values)) == made.records
    on_disk = count_on_disk(broker.log_dirs[0].glob(f"{topic}-*/*.log"))
    assert on_disk == total["records"]


def test_a_load_ends_in_time_and_leaves_nothing_uncounted(broker, tmp_path):
    made = load.make_batch(tmp_path / "batch", 0)
    topic, _ = make_topic(broker, 1)
    figures = load.run(
        "produce",
        port=broker.port,
        topic=topic,
        batch_file=made.path,
        acks=1,
        warmup=0.1,
        seconds=0.3,
        watch=broker.pid,
    )
    assert 0.3 <= figures["seconds"] < 1.0
    assert 0 < figures["requests"] < figures["total"]["requests"]
    on_disk = count_on_disk(broker.log_dirs[0].glob(f"{topic}-*/*.log"))
    assert on_disk == figures["total"]["records"]
    latency = figures["latency_us"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["p999"] <= latency["max"]
    assert figures["cpu_s"] > 0
    assert figures["server_cpu_s"] > 0


def test_a_pace_is_kept(broker, tmp_path):
    made = load.make_batch(tmp_path / "batch", 0)
    topic, _ = make_topic(broker, 1)
    figures = load.run(
        "produce", port=broker.port, topic=topic, batch_file=made.path, rate=500, seconds=1
    )
    assert 450 <= figures["total"]["requests"] <= 550


MOST_IN_FLIGHT = 1 << 16
"""What the generator has in flight on a connection whose pace is not kept."""


def answer_once_all_wait(listener: socket.socket, told: list[int]) -> None:
    """Answer Produces once so many wait as one connection may have, or nothing more comes."""
    connection, _ = listener.accept()
    partition = PartitionProduceResponse(index=0, error_code=0, base_offset=0)
    topic = TopicProduceResponse(name="some", partition_responses=[partition])
    body = codec.encode(ProduceResponse(responses=[topic]), 11)
    read, asked, answered = bytearray(), 0, 0
    connection.settimeout(10)
    with connection:
        while True:
            try:
                got = connection.recv(1 << 20)
            except TimeoutError:
                told.append(asked)
                connection.settimeout(None)
            else:
                if not got:
                    return
                read += got
            at = 0
            while len(read) - at >= 4 and len(read) - at >= (
                size := 4 + int.from_bytes(read[at : at + 4])
            ):
                at += size
                asked += 1
            del read[:at]
            if not told and asked >= MOST_IN_FLIGHT:
                told.append(asked)
            if told:
                heads = [framing.encode_response_header(0, 11, n) for n in range(answered, asked)]
                connection.sendall(
                    b"".join((len(head) + len(body)).to_bytes(4) + head + body for head in heads)
                )
                answered = asked


def test_a_pace_that_is_not_kept_waits_for_a_place(tmp_path):
    made = load.make_batch(tmp_path / "batch", 0)
    told: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer_once_all_wait, args=(listener, told))
        server.start()
        port = listener.getsockname()[1]
        figures = load.run(
            "produce", port=port, topic="some", batch_file=made.path, rate=1_000_000, seconds=3
        )
        server.join()
    assert told == [MOST_IN_FLIGHT]
    assert figures["total"]["requests"] >= MOST_IN_FLIGHT
    assert figures["latency_us"]["max"] > figures["latency_us"]["p50"] > 0


@pytest.mark.parametrize("sessions", [True, False], ids=["session", "no session"])
def test_records_are_followed_from_end_to_end(broker, tmp_path, sessions):
    made = load.make_batch(tmp_path / "batch", 0)
    topic, topic_id = make_topic(broker, 1)
    figures = load.run(
        "produce",
        port=broker.port,
        topic=topic,
        topic_id=topic_id,
        batch_file=made.path,
        end_to_end=True,
        rate=500,
        seconds=0.5,
        acks=1,
        in_flight=1,
        sessions=sessions,
    )
    assert figures["records"] > 200
    assert 0 < figures["latency_us"]["p50"] <= figures["latency_us"]["max"] < 5e6


@pytest.mark.parametrize(
    "options",
    [
        {"in_flight": 2},
        {"in_flight": 1, "sessions": True},
        {"in_flight": 1, "sessions": True, "per_request": 2, "connections": 2},
        {"in_flight": 1, "sessions": True, "per_request": PARTITIONS},
        {"in_flight": 1, "per_request": PARTITIONS, "partition_max_bytes": 1},
    ],
    ids=["no session", "session in turns", "two sessions", "session of all", "a batch each"],
)
def test_every_record_is_fetched_once(broker, tmp_path, options):
    made = load.make_batch(tmp_path / "batch", 16_384)
    topic, topic_id = make_topic(broker)
    common = {"port": broker.port, "topic": topic, "partitions": PARTITIONS}
    produced = load.run(
        "produce", batch_file=made.path, requests=50, per_request=PARTITIONS, **common
    )
    options = {"partition_max_bytes": 65_536, **options}
    fetched = load.run("fetch", topic_id=topic_id, once=True, check_crcs=True, **common, **options)
    assert fetched["total"]["records"] == produced["total"]["records"]
    assert fetched["total"]["bytes"] == produced["total"]["bytes"]


def test_a_fetch_begins_anew_at_the_end(broker, tmp_path):
    made = load.make_batch(tmp_path / "batch", 16_384)
    topic, topic_id = make_topic(broker, 1)
    common = {"port": broker.port, "topic": topic}
    load.run("produce", batch_file=made.path, requests=3, **common)
    fetched = load.run(
        "fetch", topic_id=topic_id, requests=40, in_flight=1, sessions=True, **common
    )
    assert fetched["total"] == {
        "requests": 40,
        "records": 40 * 3 * made.records,
        "bytes": 40 * 3 * made.size_bytes,
    }


def test_a_fetch_leaves_out_what_is_before_its_offset(broker, tmp_path):
    made = load.make_batch(tmp_path / "batch", 16_384)
    topic, topic_id = make_topic(broker)
    common = {"port": broker.port, "topic": topic, "partitions": PARTITIONS}
    load.run("produce", batch_file=made.path, requests=5, per_request=PARTITIONS, **common)
    common |= {"topic_id": topic_id, "in_flight": 1, "per_request": PARTITIONS}
    common |= {"from_offset": 2 * made.records}
    once = load.run("fetch", once=True, **common)
    assert once["total"]["records"] == 3 * PARTITIONS * made.records
    anew = load.run("fetch", requests=4, **common)
    assert anew["total"]["records"] == 4 * once["total"]["records"]


def test_a_refusal_ends_the_load_and_names_the_error(broker, tmp_path):
    made = load.make_batch(tmp_path / "batch", 0)
    with pytest.raises(load.LoadError, match="answered with UNKNOWN_TOPIC_OR_PARTITION"):
        load.run("produce", port=broker.port, topic="missing", batch_file=made.path)


def test_a_patient_fetch_goes_on_where_the_log_starts(broker, tmp_path):
    made = load.make_batch(tmp_path / "batch", 16_384)
    topic, topic_id = make_topic(broker, 1)
    common = {"port": broker.port, "topic": topic}
    load.run("produce", batch_file=made.path, requests=10, **common)
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 7 * made.records})
    options = {"topic_id": topic_id, "once": True, **common}
    with pytest.raises(load.LoadError, match="answered with OFFSET_OUT_OF_RANGE"):
        load.run("fetch", **options)
    fetched = load.run("fetch", patient=True, **options)
    assert fetched["refused"] == 1
    assert fetched["total"]["records"] == 3 * made.records


@pytest.mark.parametrize("sessions", [True, False], ids=["session", "no session"])
def test_a_fetch_begins_where_each_log_starts(broker, tmp_path, sessions):
    """Also inside a batch, of which only the records that are left count."""
    made = load.make_batch(tmp_path / "batch", 16_384)
    topic, topic_id = make_topic(broker, 4)
    common = {"port": broker.port, "topic": topic, "partitions": 4}
    load.run("produce", batch_file=made.path, requests=5, per_request=4, **common)
    end = 5 * made.records
    starts = [0, 2 * made.records, 3 * made.records + 7, end]
    with Admin(broker.bootstrap) as admin:
        admin.delete_records(
            {TopicPartition(topic, number): start for number, start in enumerate(starts) if start}
        )
    options = {"topic_id": topic_id, "sessions": sessions, "in_flight": 1, "check_crcs": True}
    options["per_request"] = 4  # or each turn of the empty one waits for records
    once = load.run("fetch", from_start=True, once=True, **options, **common)
    assert once["total"]["records"] == sum(end - start for start in starts)
    assert once["refused"] == 0
    again = load.run("fetch", from_start=True, requests=10, **options, **common)
    assert again["total"]["records"] >= 2 * once["total"]["records"]


@pytest.mark.parametrize("from_start", [False, True])
def test_an_offset_inside_a_batch_is_refused_except_at_the_log_start(broker, tmp_path, from_start):
    made = load.make_batch(tmp_path / "batch", 16_384)
    topic, topic_id = make_topic(broker, 1)
    common = {"port": broker.port, "topic": topic, "topic_id": topic_id}
    load.run("produce", port=broker.port, topic=topic, batch_file=made.path, requests=3)
    with pytest.raises(load.LoadError, match=f"offset 0 came where {made.records - 1} was to be"):
        load.run("fetch", once=True, from_offset=made.records - 1, **common)
    if from_start:
        with Admin(broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(topic, 0): made.records - 1})
        fetched = load.run("fetch", once=True, from_start=True, **common)
        assert fetched["total"]["records"] == 2 * made.records + 1


def answer_starts(listener: socket.socket, broker: BrokerProcess, start: int) -> None:
    """Answer ListOffsets with a start that is no longer right; the broker answers the rest."""
    part = ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=start)
    topic = ListOffsetsTopicResponse(name="some", partitions=[part])
    body = framing.encode_response_header(ApiKey.LIST_OFFSETS, 7, 0)
    body += codec.encode(ListOffsetsResponse(topics=[topic]), 7)
    client, _ = listener.accept()
    with client, socket.create_connection(("127.0.0.1", broker.port)) as server:
        size = int.from_bytes(client.recv(4, socket.MSG_WAITALL))
        client.recv(size, socket.MSG_WAITALL)
        client.sendall(len(body).to_bytes(4) + body)
        to = {client: server, server: client}
        while True:
            for one in select.select(to, [], [])[0]:
                if not (data := one.recv(1 << 20)):
                    return
                to[one].sendall(data)


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_only_a_start_that_retention_overtakes_moves(broker, tmp_path, is_overtaken):
    made = load.make_batch(tmp_path / "batch", 16_384)
    topic, topic_id = make_topic(broker, 1)
    load.run("produce", port=broker.port, topic=topic, batch_file=made.path, requests=5)
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 3 * made.records})
    start = 0 if is_overtaken else 5 * made.records + 1
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer_starts, args=(listener, broker, start))
        server.start()
        options = {"topic": topic, "topic_id": topic_id, "from_start": True, "once": True}
        options["port"] = listener.getsockname()[1]
        if is_overtaken:
            assert load.run("fetch", **options)["total"]["records"] == 2 * made.records
        else:
            with pytest.raises(load.LoadError, match="answered with OFFSET_OUT_OF_RANGE"):
                load.run("fetch", **options)
        server.join()


# --- the servers to compare with ------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True], ids=["page cache", "synced"])
def test_the_sink_writes_what_it_acknowledges(tmp_path, sync):
    made = load.make_batch(tmp_path / "batch", 16_384)
    with bench_load.CServer(
        "serve-sink", partitions=PARTITIONS, directory=tmp_path, sync=sync
    ) as sink:
        figures = load.run(
            "produce",
            port=sink.port,
            partitions=PARTITIONS,
            batch_file=made.path,
            requests=40,
            per_request=3,
            connections=2,
            idempotent=True,
        )
    records = count_on_disk(tmp_path.glob("*.log"))
    assert records == figures["total"]["records"] == 120 * made.records


def test_the_sink_overwrites_pages_that_it_has(tmp_path):
    made = load.make_batch(tmp_path / "batch", 16_384)
    with bench_load.CServer("serve-sink", directory=tmp_path, file_bytes=1 << 20) as sink:
        load.run("produce", port=sink.port, batch_file=made.path, requests=200)
    assert (tmp_path / "0.log").stat().st_size == 1 << 20


@pytest.mark.parametrize(("damage", "error_code"), [(0, 0), (1, 2)], ids=["whole", "damaged"])
def test_the_sink_looks_at_crcs_and_answers_as_brokers_do(tmp_path, damage, error_code):
    made = load.make_batch(tmp_path / "batch", 0)
    records = bytearray(made.path.read_bytes())
    records[-1] ^= damage
    sent = PartitionProduceData(index=2, records=bytes(records))
    request = ProduceRequest(
        acks=1,
        timeout_ms=1_000,
        topic_data=[TopicProduceData(name="some", partition_data=[sent])],
    )
    header = framing.encode_request_header(0, 11, 7, "test")
    frame = header + codec.encode(request, 11)
    with (
        bench_load.CServer("serve-sink", directory=tmp_path, partitions=3) as sink,
        socket.create_connection(("127.0.0.1", sink.port), 10) as client,
    ):
        client.sendall(len(frame).to_bytes(4) + frame)
        answer = client.recv(int.from_bytes(client.recv(4, socket.MSG_WAITALL)), socket.MSG_WAITALL)
    correlation_id, at = framing.decode_response_header(0, 11, answer)
    response, end = codec.decode(ProduceResponse, 11, answer, at)
    assert (correlation_id, end) == (7, len(answer))
    (topic,) = response.responses
    (partition,) = topic.partition_responses
    assert (topic.name, partition.index, partition.error_code) == ("some", 2, error_code)
    assert (tmp_path / "2.log").stat().st_size == (0 if damage else len(records))


def test_a_damaged_batch_is_not_sent(tmp_path):
    made = load.make_batch(tmp_path / "batch", 16_384)
    whole = made.path.read_bytes()
    made.path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with (
        bench_load.CServer("serve-echo") as echo,
        pytest.raises(load.LoadError, match="does not hold one batch"),
    ):
        load.run("produce", port=echo.port, batch_file=made.path)


@pytest.mark.parametrize("sendfile", [True, False], ids=["sendfile", "pread"])
@pytest.mark.parametrize(
    "options",
    [{"in_flight": 2}, {"in_flight": 1, "sessions": True, "per_request": 2}],
    ids=["no session", "session"],
)
def test_the_source_answers_every_record_once(tmp_path, sendfile, options):
    made = load.make_batch(tmp_path / "batch", 16_384)
    topic_id = uuid.uuid4()
    with bench_load.CServer(
        "serve-source",
        partitions=PARTITIONS,
        directory=tmp_path,
        batch_file=made.path,
        file_bytes=20 * made.size_bytes,
        topic_id=topic_id,
        sendfile=sendfile,
    ) as source:
        fetched = load.run(
            "fetch",
            port=source.port,
            topic_id=topic_id,
            partitions=PARTITIONS,
            once=True,
            check_crcs=True,
            partition_max_bytes=100_000,
            **options,
        )
    assert fetched["total"]["records"] == 20 * PARTITIONS * made.records


def test_the_echo_answers_each_request(tmp_path):
    made = load.make_batch(tmp_path / "batch", 0)
    with bench_load.CServer("serve-echo") as echo:
        figures = load.run(
            "produce", port=echo.port, batch_file=made.path, requests=1_000, connections=4
        )
    assert figures["total"]["records"] == 1_000


# --- brokers with gigabytes of old segments -------------------------------------------------------


def test_a_broker_goes_on_behind_old_segments_that_take_no_disk(tmp_path):
    server = bench_servers.PlogWithOldLog(tmp_path, 5_000_000_000)
    try:
        topic = server.create_topic(2)
        segments = list(server.log_dir.glob(f"{topic.name}-*/*.log"))
        assert len(segments) == 2 * (3 + 1)
        assert sum(path.stat().st_size for path in segments) > 4_990_000_000
        assert sum(path.stat().st_blocks for path in server.log_dir.rglob("*")) * 512 < 3_000_000
        made = load.make_batch(tmp_path / "batch", 16_384)
        common = {"port": server.port, "topic": topic.name, "partitions": 2}
        produced = load.run("produce", batch_file=made.path, requests=20, **common)
        fetched = load.run(
            "fetch", topic_id=topic.id, from_offset=topic.first_offset, once=True, **common
        )
        assert fetched["total"]["records"] == produced["total"]["records"]
        with Admin(f"127.0.0.1:{server.port}") as admin:
            assert sum(one.size_bytes for one in admin.log_dirs([topic.name])) > 4_990_000_000
        server.stop()
    finally:
        server.kill()


# --- bin/bench ------------------------------------------------------------------------------------


def bench(*arguments: object, timeout_s: float = 120, status: int = 0) -> str:
    ended = subprocess.run(
        [sys.executable, ROOT / "asv_bench" / "bench.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "COLUMNS": "240"},
    )
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stderr if status else ended.stdout


def test_bench_says_how_it_is_called_how_long_it_takes_and_where_it_writes():
    said = " ".join(bench("--help").split())
    assert said.startswith("Usage: bin/bench [OPTIONS]")
    assert "between one and two hours" in said
    assert "$TMPDIR or /tmp" in said
    # The measurements alone, at three rounds of 3.5 s; then there is what starts the servers.
    turns = sum(len(row.against) for row in bench_rows.rows() if row.records is None)
    assert 2_400 < turns * 3 * 3.5 < 5_400


def test_bench_measures_every_contestant_in_every_round(tmp_path):
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.png"
    where = tmp_path / "disk"
    where.mkdir()
    chosen = ("--rows", "small/4c/6p/java", "--seconds", "0.2", "--rounds", "2")
    shown = bench(*chosen, "--directory", where, "--json", figures, "--plot", picture)
    found = json.loads(figures.read_text())
    assert found["seconds"] == 0.2
    cells = {cell["server"]: cell for cell in found["cells"]}
    assert set(cells) == {"plog", "plog, page cache", "C echo", "C, fdatasync"}
    for server, cell in cells.items():
        assert server in shown
        assert len(cell["rounds"]) == 2
        for one in cell["rounds"]:
            # A busy disk may keep all of a short round waiting.
            assert one["records"] == one["requests"] >= (server not in ("plog", "C, fdatasync"))
            assert one["server_cpu_s"] > 0
            assert (one["by_python"] is not None) == server.startswith("plog")
    for server in ("plog", "plog, page cache"):
        # Four producers meet six partitions: that is Python's, and all of it.
        assert cells[server]["rounds"][0]["by_python"]["unusual append"] == 24
        assert cells[server]["rounds"][0]["fast_share"] == 1
    assert picture.stat().st_size > 0
    assert not list(where.iterdir()), "directories are left behind"

    page = tmp_path / "page.md"
    page.write_text(f"above\n\n{BEGIN}\nold\n{END}\n\nbelow\n")
    for _ in range(2):
        assert bench("--figures", figures, "--docs", page) == ""
        text = page.read_text()
        assert text.startswith(f"above\n\n{BEGIN}\n")
        assert text.endswith(f"{END}\n\nbelow\n")
        assert "old" not in text
        lines = text.splitlines()
        for server, cell in cells.items():
            # The first: there is another for what misses its goal.
            line = next(one for one in lines if one.startswith(f"| small/4c/6p/java | {server} |"))
            rates = sorted(one["requests_per_s"] for one in cell["rounds"])
            assert f" ({rates[0]:,.0f} to {rates[1]:,.0f}) |" in line
    assert page.with_suffix(".png").stat().st_size > 0


def test_bench_runs_rows_by_records(tmp_path):
    figures = tmp_path / "figures.json"
    named = ("--rows", "linkedin-50M/*-1", "--records", "300000")
    shown = bench(*named, "--rounds", "1", "--directory", tmp_path, "--json", figures)
    for cell in json.loads(figures.read_text())["cells"]:
        (one,) = cell["rounds"]
        # A few requests are in flight when the last producer has enough.
        assert 300_000 <= one["records"] == one["total"]["records"] < 310_000
        assert f"{cell['row']}, {cell['server']}: {one['records']:,} records in " in shown


class KafkaThatEnds:
    """Stands for a broker that serves so many measurements, and is no more then."""

    log = Path(os.devnull)

    def __init__(self, serves: int) -> None:
        self.serves = serves
        self.is_running = True

    def stop(self) -> None:
        pass

    def kill(self) -> None:
        self.is_running = False


@pytest.mark.parametrize("refused", [False, True])
def test_finished_measurement_survives_a_topic_that_kafka_does_not_delete(
    tmp_path, monkeypatch, capsys, refused
):
    """Kafka 4.1 answers the deletion when the controller has committed it: files go later."""

    class DeletingAdmin:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> DeletingAdmin:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def delete_topic(self, name: str) -> None:
            if refused:
                raise RequestTimedOut(f"{name}: no answer in time")

    kafka = object.__new__(bench_kafka.Kafka)
    vars(kafka).update(pid=os.getpid(), port=1, topic_name="bench1", _log_dir=tmp_path)
    monkeypatch.setattr(bench_kafka.Kafka, "is_running", True)
    monkeypatch.setattr(bench_kafka, "Admin", DeletingAdmin)
    monkeypatch.setattr(bench_kafka, "DELETION_TIMEOUT_MS", 200)
    (tmp_path / "bench1-0.4711-delete").mkdir()
    assert kafka.delete_topic().most_rss_mb > 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "bench: the files of bench1 are not deleted yet"
    assert len(lines) == 1 + refused


def test_a_kafka_has_its_turn_behind_the_others_in_rounds_of_its_own(tmp_path, monkeypatch):
    kinds = [bench_kafka.KINDS["3.9"], bench_kafka.KINDS["4.1-1g"]]
    rows = [row.with_others(kind.name for kind in kinds) for row in bench_rows.rows()[:2]]
    cells = [Cell(row, name, []) for row in rows for name in ["plog", *(k.name for k in kinds)]]
    order: list[str] = []

    def measured(where, row, contestant, *_):
        name = contestant if isinstance(contestant, str) else "Kafka"
        order.append(name)
        if len(order) == 2:
            raise load.LoadError("it broke")
        if isinstance(contestant, KafkaThatEnds):
            contestant.serves -= 1
            contestant.is_running = contestant.serves > 0
        return {}

    def started(where, directory, kind):
        order.append(kind.name)
        return KafkaThatEnds(serves=2 if kind is kinds[0] else 1)

    monkeypatch.setattr(bench_rounds, "measure", measured)
    monkeypatch.setattr(bench_rounds, "measure_kafka", measured)
    monkeypatch.setattr(bench_rounds, "start_kafka", started)
    silent = Console(quiet=True)
    turns = bench_rounds.Rounds(
        tmp_path, cells, seconds=1, warmup_s=1, progress=silent, on_figures=lambda: None
    )
    turns.run(2, kinds, 1)
    kafkas = ["Kafka 3.9", "Kafka", "Kafka", "Kafka 4.1, 1 GB", "Kafka"]
    assert order == ["plog", "plog", *kafkas, "plog", "plog"]
    assert [len(cell.rounds) for cell in cells] == [2, 1, 1, 1, 1, 0]
    broken, ended = turns.failures
    assert broken == f"{rows[1].name}, plog: it broke"
    assert ended.startswith("Kafka 4.1, 1 GB: it ended by itself")
    assert not list(tmp_path.iterdir())


@pytest.mark.long  # a JVM takes minutes to warm up
def test_bench_measures_kafka(tmp_path):
    figures = tmp_path / "figures.json"
    named = ("--rows", "latency/acks1", "--rows", "linkedin/both-at-once", "--servers", "Kafka*")
    bench("--kafka", "4.1-1g", *named, "--rounds", "1", "--json", figures, timeout_s=900)
    for cell in json.loads(figures.read_text())["cells"]:
        (one,) = cell["rounds"]
        assert cell["server"] == "Kafka 4.1, 1 GB"
        assert one["requests"] > 0


def test_bench_names_its_rows():
    names = [line.partition(":")[0] for line in bench("--list").splitlines()]
    assert len(names) == len(set(names)) > 60
    assert "fetch/1M/4c/6p/session" in names


def test_plog_is_held_against_the_best_of_the_kafkas():
    row = next(row for row in bench_rows.rows() if row.name == "produce/64K/4c/6p/java")

    def cell(name, rates, costs):
        rounds = [
            {"MB/s": rate, "cpu_s_per_gb": cost} for rate, cost in zip(rates, costs, strict=True)
        ]
        return (row.name, name), Cell(row, name, rounds)

    by_place = dict([
        cell("plog, page cache", [800, 900, 1000], [0.5, 0.6, 0.7]),
        cell("C, fresh pages", [1000], [0.5]),
        cell("Kafka 3.9", [200, 300], [6.0, 6.0]),
        cell("Kafka 4.1, 1 GB", [300], [4.0]),
    ])  # fmt: skip
    found = {name: beside_kafka(cell, by_place) for (_, name), cell in by_place.items()}
    assert [one.measured for one in found["plog, page cache"]] == ["3.00 x", "CPU 0.15 x"]
    assert [name for name, judged in found.items() if judged] == ["plog, page cache"]
    assert not [line for line in misses(list(by_place.values())) if "Kafka" in line]


def test_what_misses_its_goal_is_listed():
    row = next(row for row in bench_rows.rows() if row.name == "produce/64K/4c/6p/java")
    cells = [
        Cell(row, name, [{"MB/s": rate, "cpu_s_per_gb": cost}])
        for name, rate, cost in (
            ("plog, page cache", 550, 0.7),
            ("C, fresh pages", 1000, 0.5),
            ("Kafka 3.9", 300, 2.0),
        )
    ]
    assert [line.split(" | ")[2:] for line in misses(cells)[4:]] == [
        ["55.0% of C, fresh pages", ">= 60% |"],
        ["+0.20 s/GB", "+0.15 s/GB |"],
        ["1.83 x the best Kafka", ">= 2 x |"],
        ["CPU 0.35 x the best Kafka", "<= 0.25 x |"],
    ]


def test_latencies_beside_a_busy_thread_are_to_stay_and_most_requests_to_be_fast():
    row = next(row for row in bench_rows.rows() if row.name == "linkedin/end-to-end")

    def cell(name, **figures):
        return Cell(row, name, [{"p50_us": 10, "p99_us": 20, "p999_us": 30, **figures}])

    cells = [cell("plog", fast_share=0.98), cell("plog, busy thread", p99_us=25, fast_share=0.99)]
    assert [line.split(" | ")[1:] for line in misses(cells)[4:]] == [
        ["plog", "98.00% fast", ">= 99% |"],
        ["plog, busy thread", "1.0 / 1.2 / 1.0 x plog", "<= 1.2 x |"],
    ]


def test_servers_that_no_row_has_are_refused():
    refused = bench("--rows", "small/*", "--servers", "nope*", status=1)
    assert "no server is called 'nope*'" in refused
    assert "'plog, page cache'" in refused
