"""One measurement of bin/bench: a server, its topic, one load, and the figures of both.

Owns what comes before the load (the batch, old segments, what there is to fetch), the
load's limits, and what the figures mean. Who is measured when is bench.py's.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bench_kafka
from bench_kafka import Kafka, Kind
from bench_rows import CONTESTANTS, KB, LOG_BATCH_BYTES, Row, rows
from bench_servers import CLoop, Counted, Server

from plog.errors import PlogError
from plog.ops import load
from plog.ops.load import Batch, Figures

MOST_MB = 2_000
"""What one measurement may write: more would be paced by the disk's writing back."""
LONGEST_S = 600.0
"""Of a load by records."""
OTHER_REQUESTS = "other API or version"
"""Those that make the topic, say; the load's own are the others."""
NEW_PRODUCERS = "unusual append"


def batch_of(where: Path, row: Row) -> Batch:
    """Return the row's batch; made once, so that every contestant gets the same bytes."""
    path = where / f"batch-{row.batch_bytes}-{row.codec}-{row.value_bytes}"
    known = path.with_suffix(".json")
    if known.exists():
        size_bytes, records = json.loads(known.read_text())
        return Batch(path, size_bytes, records)
    made = load.make_batch(path, row.batch_bytes, codec=row.codec, value_bytes=row.value_bytes)
    known.write_text(json.dumps([made.size_bytes, made.records]))
    return made


def touch_pages(where: Path, size_bytes: int) -> None:
    """Write as much into a file as a measurement will, and delete it: its pages are used next.

    A virtual machine's host takes memory away that is free for long, and giving it back costs more
    than a write to it. Without this, whoever comes second finds the pages that the first has left.
    """
    block = bytes(64 * KB)
    with tempfile.TemporaryFile(dir=where, buffering=0) as file:
        for _ in range(size_bytes // len(block)):
            file.write(block)


def measure(where: Path, row: Row, contestant: str, seconds: float, warmup_s: float) -> Figures:
    """Run one load against one contestant; its directory is removed afterwards."""
    batch = batch_of(where, row)
    directory = Path(tempfile.mkdtemp(dir=where, prefix="server-"))
    server = CONTESTANTS[contestant](directory, row, batch)
    try:
        figures = run(where, server, row, batch, seconds, warmup_s)
        counted = server.stop()
    finally:
        server.kill()
        shutil.rmtree(directory)
    return completed(row, figures, counted)


def start_kafka(where: Path, directory: Path, kind: Kind) -> Kafka:
    """Start a Kafka that serves several measurements, and let it warm up."""
    kafka = Kafka(directory, kind)
    try:
        warm_up(where, kafka)
    except BaseException:
        kafka.kill()
        raise
    return kafka


def warm_up(where: Path, kafka: Kafka) -> None:
    """Repeat some loads until none of them finds its requests cheaper, by a tenth, than ever."""
    by_name = {row.name: row for row in rows()}
    least = dict.fromkeys(bench_kafka.WARM_UP_ROWS, math.inf)
    for _ in range(bench_kafka.WARM_UP_TURNS):
        before = dict(least)
        for name in least:
            row = by_name[name]
            figures = run(where, kafka, row, batch_of(where, row), bench_kafka.WARM_UP_STEP_S, 0.1)
            kafka.delete_topic()
            least[name] = min(least[name], figures["server_cpu_s"] / figures["requests"])
        if all(least[name] > 0.9 * before[name] for name in least):
            break


def measure_kafka(where: Path, row: Row, kafka: Kafka, seconds: float) -> Figures:
    """Run one load against a Kafka that goes on running; its topic is deleted afterwards."""
    try:
        figures = run(where, kafka, row, batch_of(where, row), seconds, bench_kafka.WARMUP_S)
    except PlogError:
        kafka.delete_topic()
        raise
    return completed(row, figures, kafka.delete_topic())


def run(
    where: Path, server: Server, row: Row, batch: Batch, seconds: float, warmup_s: float
) -> Figures:
    """Make a topic for the row's load, and run it."""
    topic = server.create_topic(row.partitions)
    common: dict[str, object] = {
        "port": server.port,
        "topic": topic.name,
        "topic_id": topic.id,
        "leader_epoch": topic.leader_epoch,
        "partitions": row.partitions,
    }
    if row.mode == "fetch" and not isinstance(server, CLoop):
        at_once = min(row.partitions, 64)
        rounds = row.bytes_to_fetch(batch) // (at_once * batch.size_bytes)
        put(batch, at_once, max(rounds, 1), common)
    elif isinstance(server, Kafka) and not row.load.get("end_to_end"):
        # The first entries of a partition's indexes are written where their files have holes: 5 ms
        # of CPU time, and a wait for the file system, which no steady load meets.
        small = row._replace(batch_bytes=LOG_BATCH_BYTES, codec="none", value_bytes=100)
        put(batch_of(where, small), 1, 2 * row.partitions, common)
    common |= {"batch_file": batch.path, "from_offset": topic.first_offset}
    most_bytes: int | None = None
    if row.records is not None:
        most_bytes = row.bytes_to_fetch(batch)
        common |= {"seconds": LONGEST_S}
    else:
        if row.mode == "produce" and not row.beside:
            most_bytes = MOST_MB * 1_000_000
        common |= {"seconds": seconds, "warmup": warmup_s}
    if row.mode == "produce" and row.batch_bytes > 0:
        touch_pages(where, most_bytes or MOST_MB * 1_000_000)
    with ThreadPoolExecutor(1) as beside:
        meanwhile = row.beside and beside.submit(load.run, row.beside[0], **common, **row.beside[1])
        figures = load.run(row.mode, bytes=most_bytes, watch=server.pid, **common, **row.load)
        figures["beside"] = meanwhile and meanwhile.result()
    if row.records is not None and figures["records"] < row.records:
        raise load.LoadError(f"{figures['records']:,} records in {figures['seconds']:.0f} s")
    return {**figures, "start_s": server.start_s}


def put(batch: Batch, per_request: int, requests: int, common: dict[str, object]) -> None:
    """Put records into a topic's partitions, before its load begins."""
    load.run(
        "produce",
        batch_file=batch.path,
        acks=1,
        per_request=per_request,
        requests=requests,
        seconds=LONGEST_S,
        **common,
    )


def completed(row: Row, figures: Figures, counted: Counted) -> Figures:
    """Return a load's figures with what the server has counted, and with what follows from both."""
    figures = {**figures, "rss_mb": counted.most_rss_mb, "by_python": counted.by_python}
    if counted.by_python is not None:
        figures["fast_share"] = fast_share(row, figures, counted.by_python)
    return with_costs(figures)


def fast_share(row: Row, figures: Figures, by_python: dict[str, int]) -> float:
    """Return the share of the load's requests that were answered without Python.

    Left out are the first requests of each producer, up to its first batch for every partition:
    Python makes it known to the partition, however long the load then is.
    """
    both = [figures, figures["beside"]] if figures["beside"] else [figures]
    requests = sum(one["total"]["requests"] for one in both)
    slow = sum(count for reason, count in by_python.items() if reason != OTHER_REQUESTS)
    if row.load.get("idempotent"):
        producers = int(str(row.load["connections"]))
        first = producers * math.ceil(row.partitions / int(str(row.load.get("per_request", 1))))
        first = min(first, by_python.get(NEW_PRODUCERS, 0), requests - 1)
        slow, requests = slow - first, requests - first
    return 1 - slow / requests


def with_costs(figures: Figures) -> Figures:
    seconds, requests, volume = (figures[key] for key in ("seconds", "requests", "bytes"))
    latency = figures["latency_us"]
    return {
        **figures,
        "MB/s": figures["mb_per_s"],
        "req/s": figures["requests_per_s"],
        "us": latency["p99"],
        **{f"{name}_us": latency[name] for name in ("p50", "p99", "p999")},
        "cpu_s_per_gb": 1e9 * figures["server_cpu_s"] / volume if volume else None,
        "cpu_us_per_request": 1e6 * figures["server_cpu_s"] / requests if requests else None,
        "client_cores": figures["cpu_s"] / seconds,
    }
