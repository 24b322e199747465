"""The measurements of coordinators run, each in its short form, and give their figures.

What the figures are is not judged here.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from plog._native import batch, index, records
from plog.client.group_admin import GroupAdmin
from plog.coordinator import group_log
from plog.coordinator.group_hash import partition_of
from plog.ops.load import LoadError
from plog.storage.segment_files import LOG, OFFSET_INDEX, TIME_INDEX
from tests.compat.kafka_tools import Tools
from tests.compat.live_kafka import archive_of
from tests.compat.programs import JAVA, QUIET, SHORT_RUN

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "asv_bench"))

import bench_answered
import bench_offsets
from bench_clients import Client
from bench_coordinator_report import (
    BEGIN,
    END,
    Cell,
    cells_of,
    compare,
    judged,
    page,
    tables,
    write_page,
)
from bench_coordinator_rows import (
    ACKS_ALL,
    COMPARISONS,
    COPYING,
    COSTS,
    FAST,
    GROUPS,
    IDEMPOTENT,
    IN_ORDER,
    JAVA_CLIENTS,
    KAFKA,
    LOAD,
    REBALANCE,
    ROWS,
    SHORT,
    START,
    TRANSACTIONS,
    Comparison,
)
from bench_coordinators import in_turns
from bench_costs import KAFKA_KIND
from bench_groups import ClassicGroup, ConsumerGroup, interval_settings
from bench_machine import cpu_s_of
from bench_members import Beats, ClassicMember, ConsumerMember
from bench_servers import running
from bench_spread import NORMAL_95, T_95, Interval, interval, ratio_interval
from bench_wire import Wire, find_coordinator

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "asv_bench" / "bench_coordinators.py"
PAGE = ROOT / "docs" / "BENCHMARKS.md"


def run(*arguments: object, flags: Sequence[str] = SHORT_RUN, **environment: str) -> str:
    """Run the measurements, and Java's programs with these flags: figures mean nothing here."""
    ended = subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "240",
            "JAVA_TOOL_OPTIONS": " ".join(flags),
            **environment,
        },
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def is_java(name: str) -> bool:
    return name.split("/")[1:2] == ["java"]


# What each kind of row must have measured, as more than nothing.
FIGURES = {
    COSTS: ("records", "records_per_s", "mb_per_s", "cpu_s_per_gb", "fast_produce"),
    FAST: ("records", "records_read", "fast_produce", "fast_fetch", "transactions"),
    COPYING: ("records", "records_read", "fast_fetch", "transactions", "produces", "cpu_ms"),
    GROUPS: ("before_pss_mb", "after_rss_mb", "heartbeats", "cpu_us_per_heartbeat", "p99_us"),
    REBALANCE: ("join_whole_s", "join_after_heard_s", "leave_whole_s", "leave_cpu_s"),
    START: ("before_coordinator_s", "kept_records", "size_after_bytes", "after_coordinator_s"),
    LOAD: ("commits", "kept", "size_bytes", "coordinator_s", "cpu_s", "rss_mb"),
}


LIKE_OTHERS = {
    "costs/plog/disk": "costs/plog/page-cache",
    "costs/java/page-cache": "costs/java/disk",
    "copying/many-writes": "copying/small",
    "copying/aborts": "copying/small",
}
"""Rows that run with `--long` only: each differs from the row beside it in parameters alone."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(row.name, marks=[pytest.mark.long] if row.name in LIKE_OTHERS else [])
        for row in ROWS
    ],
)
def test_row_is_measured_in_its_short_form(name: str, tmp_path: Path) -> None:
    (row,) = (one for one in ROWS if one.name == name)
    if is_java(name):
        JAVA[-1].built()  # or it is said why not
    flags, environment = list(SHORT_RUN), {}
    if row.server == KAFKA:
        # Its own flags choose its collector. The other tests' jars have an archive, once one of
        # these has stopped their Kafka.
        tools = Tools(KAFKA_KIND.release)
        environment["PLOG_KAFKA_JARS"] = str(tools.jars)
        archive = f"-XX:SharedArchiveFile={archive_of(tools, 'Kafka')}"
        flags[1:] = *QUIET, archive, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    if name.startswith(COPYING):
        assert tuple(java.name for java in JAVA) == JAVA_CLIENTS
        for java in JAVA:
            java.built()
    figures = tmp_path / "figures.json"
    where = tmp_path / "where"
    where.mkdir()
    chosen = ("--rows", name, "--directory", where)
    shown = run("--short", *chosen, "--json", figures, flags=flags, **environment)
    assert not list(where.iterdir()), "the directories are left behind"
    found = json.loads(figures.read_text())
    assert {one["contestant"] for one in found["cells"]} == set(row.contestants)
    assert {one["row"] for one in found["cells"]} == {name}
    titles = [one.title for one in tables(cells_of([found]))]
    assert titles
    assert all(one in shown for one in titles)
    for one in found["cells"]:
        (measured,) = one["rounds"]
        for key in FIGURES[row.kind]:
            if row.server == KAFKA and key == "fast_produce":
                continue  # which has no such plane
            values = measured[key] if isinstance(measured[key], list) else [measured[key]]
            assert values, key
            assert all(value > 0 for value in values), (one["contestant"], key, values)
        if one["contestant"] == TRANSACTIONS:
            assert measured["transactions"] > 0
        if row.kind == START:
            assert measured["kept_records"] < measured["records"]
            assert measured["size_after_bytes"] < measured["size_bytes"]
        if row.kind == GROUPS:
            beats = SHORT.groups * SHORT.beating_s * SHORT.faster / row.interval_s
            assert measured["heartbeats"] == round(beats)


def test_figures_of_several_runs_become_a_page(tmp_path: Path) -> None:
    page_path = tmp_path / "page.md"
    shutil.copy(PAGE, page_path)
    paths = []
    for number, name in enumerate(("start", "costs/java/disk")):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(made_up(name)))
        paths += ["--figures", path]
    run(*paths, "--docs", page_path)
    text = page_path.read_text()
    before, _, rest = text.partition(BEGIN)
    section, _, after = rest.partition(END)
    was = PAGE.read_text()
    assert (before, after) == (was.partition(BEGIN)[0], was.partition(END)[2])
    assert "| after compaction | 0.500 |" in section
    assert "2026-11-23, commit abc: 3 rounds, producers for 5 s each, 2 processors." in section
    lines = [line for line in section.splitlines() if f"| {TRANSACTIONS} | {IN_ORDER} |" in line]
    assert lines == [
        f"| costs/java/disk | {TRANSACTIONS} | {IN_ORDER} | -1.0% (-1.0% to -1.0%) |"
        " +0.0% (+0.0% to +0.0%) | +0.0% (+0.0% to +0.0%) | -3%, from the page cache | yes |"
    ]


def made_up(name: str) -> dict[str, Any]:
    """Return a run of one row as --json writes it."""
    (row,) = (one for one in ROWS if one.name == name)
    figures: dict[str, Any] = {"foreign_cores": 0.1, "client_cores": 1.0}
    if row.kind == START:
        figures |= dict.fromkeys(("size_bytes", "size_after_bytes"), 500_000)
        figures |= dict.fromkeys(("commits", "records", "kept_records"), 7)
        figures |= dict.fromkeys(("compacting_s", "compacting_cpu_s"), 2.5)
        for when in ("before", "after"):
            for key in ("broker_s", "coordinator_s", "cpu_s", "rss_mb"):
                figures[f"{when}_{key}"] = 1.5
    else:
        figures |= {"mb_per_s": 100.0, "cpu_s_per_gb": 0.5, "fast_produce": 0.995}
        figures |= {"transactions_per_s": 9.5, "committing_ms": 2.5}
    cells = [
        {
            "row": name,
            "contestant": one,
            "rounds": [
                {**figures, "records_per_s": factor * (99 if one == TRANSACTIONS else 100)}
                for factor in (100, 1_000, 10_000)
            ],
        }
        for one in row.contestants
    ]
    return {
        "commit": "abc-dirty",
        "date": "2026-11-23T12:00:00+00:00",
        "processors": 2,
        "seconds": 5.0,
        "cells": cells,
    }


def test_page_without_marks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("nothing to be seen here\n")
    with pytest.raises(ValueError, match="lacks"):
        write_page(path, [made_up("start")])
    assert path.read_text() == "nothing to be seen here\n"


def test_later_run_replaces_an_earlier_one() -> None:
    first, second = made_up("start"), made_up("start")
    second["cells"][0]["rounds"] = second["cells"][0]["rounds"][:1]
    (cell,) = cells_of([first, second])
    assert len(cell.rounds) == 1
    assert page([first, second]).count("before compaction") == 1


def test_help_and_list_say_what_is_measured() -> None:
    said = " ".join(run("--help").split())
    assert "before and after compaction" in said
    listed = run("--list")
    assert all(f"{row.name}: " in listed for row in ROWS)


def test_many_groups_have_a_column_for_each_protocol() -> None:
    rows = [row for row in ROWS if row.kind == GROUPS]
    cells = [
        Cell(row, "plog", [{"groups": 50, "connections": 5, "p50_us": 10 + number}])
        for number, row in enumerate(rows)
    ]
    (shown,) = tables(cells)
    assert shown.head == ["Figure", "classic", "consumer"]
    assert ["Heartbeat p50, us", "10", "11"] in shown.lines
    assert [text.split(":")[0] for text in shown.below] == ["Classic", "Consumer"]


def test_contestants_begin_in_turns() -> None:
    row = ROWS[0]
    cells = [Cell(row, name, []) for name in row.contestants]
    count = len(cells)
    orders = [[cell.contestant for cell in in_turns(cells, n)] for n in range(count)]
    assert {order[0] for order in orders} == set(row.contestants)
    assert all(sorted(order) == sorted(row.contestants) for order in orders)


# -- how sure a figure is --------------------------------------------------------------------------


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 15, 30])
def test_quantiles_of_t_leave_a_fortieth_beyond_them(freedom: int) -> None:
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    steps, quantile = 2_000, T_95[freedom - 1]
    width = quantile / steps

    def density(t: float) -> float:
        return scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)

    inside = sum(density((n + 0.5) * width) for n in range(steps)) * width
    assert inside == pytest.approx(0.475, abs=1e-4)


def test_quantiles_of_t_fall_towards_the_normal_one() -> None:
    assert list(T_95) == sorted(T_95, reverse=True)
    assert T_95[-1] > NORMAL_95


def test_interval_is_wide_where_values_are_few() -> None:
    # Of 1, 2, 3: the mean's standard error is 1/sqrt(3).
    assert interval([1, 2, 3]) == pytest.approx((2, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert interval([5]) == Interval(5, None, None)


def test_ratio_and_its_inverse_say_the_same() -> None:
    ours, theirs = [90.0, 105.0, 99.0], [100.0, 100.0, 110.0]
    there, back = ratio_interval(ours, theirs), ratio_interval(theirs, ours)
    assert there.low is not None
    assert back.high is not None
    assert there.mean * back.mean == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)
    # What both share, such as a slow hour, is no difference.
    assert ratio_interval([99, 9.9], [100, 10]) == pytest.approx((0.99, 0.99, 0.99))


TRANSACTIONS_IN_ORDER, _, IDEMPOTENCE, BESIDE_IN_ORDER = COMPARISONS


@pytest.mark.parametrize(
    ("one", "rate", "met"),
    [
        (TRANSACTIONS_IN_ORDER, Interval(0.99, 0.98, 1.0), "yes"),
        (TRANSACTIONS_IN_ORDER, Interval(0.97, 0.96, 0.98), "not shown"),
        (TRANSACTIONS_IN_ORDER, Interval(0.9, 0.89, 0.91), "no"),
        (IDEMPOTENCE, Interval(0.99, 0.975, 1.01), "yes"),
        (IDEMPOTENCE, Interval(1.2, 1.1, 1.3), "yes"),
        # As many rounds would show a loss that can be measured as would show none.
        (IDEMPOTENCE, Interval(0.98, 0.8, 1.21), "not shown"),
        (IDEMPOTENCE, Interval(0.985, 0.98, 0.99), "no"),
        (IDEMPOTENCE, Interval(0.9, 0.89, 0.91), "no"),
        (IDEMPOTENCE, Interval(2.0, None, None), "not shown: one round"),
        (BESIDE_IN_ORDER, Interval(1.84, 1.57, 2.16), "not shown: one request in flight"),
    ],
)
def test_goal_is_met_only_where_the_rounds_can_tell(
    one: Comparison, rate: Interval, met: str
) -> None:
    assert judged(one, rate)[1] == met


def test_every_comparison_is_of_ways_that_some_row_has() -> None:
    pairs = {(one.ours, one.theirs) for one in COMPARISONS}
    for client in ("java", "plog"):
        ways = {way for row in ROWS if row.client == client for way in row.contestants}
        assert any(ours == IDEMPOTENT and theirs in ways for ours, theirs in pairs)


def test_idempotence_is_held_against_what_differs_by_nothing_else() -> None:
    for name, theirs in (("costs/java/disk", ACKS_ALL), ("costs/plog/disk", IN_ORDER)):
        cells = cells_of([made_up(name)])
        lines = [line for line in compare(cells[0].row, cells) if line[1] == IDEMPOTENT]
        assert [line[2] for line in lines] == [theirs]


# -- what the parts do -----------------------------------------------------------------------------


def test_cpu_time_is_that_of_ended_threads_too() -> None:
    def burn() -> None:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass

    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()
    before = time.process_time()
    assert before >= 0.05
    assert before <= cpu_s_of(os.getpid()) <= time.process_time()


METRICS = """# HELP plog_request_duration_seconds From when a request was read to its answer.
plog_request_duration_seconds_count{api="Produce",path="fast"} 99
plog_request_duration_seconds_count{api="Produce",path="python"} 1
plog_request_duration_seconds_count{api="Heartbeat",path="python"} 5
plog_callouts_total{reason="unusual append"} 7
"""


def test_shares_are_of_what_came_since() -> None:
    found = bench_answered.read_page(METRICS)
    assert bench_answered.shares(found) == {"fast_produce": 0.99, "fast_fetch": None}
    before = bench_answered.Answered(Counter({("Produce", "fast"): 98}), Counter())
    since = found.since(before)
    assert since.fast_share("Produce") == 0.5
    assert since.callouts == {"unusual append": 7}


def test_partition_is_written_as_the_broker_would(tmp_path: Path) -> None:
    groups = bench_offsets.groups_of(3, 5)
    assert {partition_of(one, bench_offsets.OFFSETS_PARTITIONS) for one in groups} == {3}
    written = bench_offsets.write_commits(tmp_path, groups, 200_000, 30_000)
    assert 190_000 < written.size_bytes <= 200_000
    logs = sorted(tmp_path.glob(f"*{LOG}"))
    assert len(logs) > 6
    assert logs[-1].stat().st_size == 0
    offset, commits, last = 0, 0, {}
    for path in logs:
        assert int(path.stem) == offset
        data = path.read_bytes()
        assert len(data) <= 30_000
        headers = batch.scan(data)
        starts = {header.position: header for header in headers}
        entries = path.with_suffix(OFFSET_INDEX).read_bytes()
        index.check_offset_index(entries, offset)
        index.check_time_index(path.with_suffix(TIME_INDEX).read_bytes(), offset)
        found = list(struct.iter_unpack(">ii", entries))
        assert len(found) >= len(data) // (2 * bench_offsets.INDEX_INTERVAL_BYTES)
        assert all(starts[at].last_offset == offset + relative for relative, at in found)
        for header in headers:
            assert header.base_offset == offset
            offset, commits = header.next_offset, commits + 1
            for record in records.walk(data, pos=header.position):
                assert record.key is not None
                assert record.value is not None
                last[record.key] = group_log.decode_offset(record.value).offset
    assert (offset, commits) == (written.records, written.commits)
    assert len(last) == len(groups) * bench_offsets.COMMITTED_PARTITIONS
    assert set(last.values()) == {bench_offsets.LAST}


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import sys; sys.exit('no such broker')", "no such broker"),
        ("print('never', flush=True); input()", "'never', not 'ready'"),
    ],
    ids=["ends", "says something else"],
)
def test_client_that_fails_says_why(program: str, told: str, tmp_path: Path) -> None:
    client = Client([sys.executable, "-c", program], tmp_path / "errors")
    try:
        with pytest.raises(LoadError, match=told):
            client.begin("produce", {"topic": "t"})
    finally:
        client.end()


def on_broker(tmp_path: Path, do: Callable[[int], Any], partitions: int = 0) -> None:
    """Do something asynchronous with a broker's port, once its groups have a coordinator.

    Args:
        partitions: of the topic that members of the consumer protocol want; 0 for no topic.
    """

    async def ready_and_do(port: int) -> None:
        wire = await Wire.open(port)
        await find_coordinator(wire, "any")
        wire.close()
        await do(port)

    settings = {"group_initial_rebalance_delay_ms": 100, **interval_settings(0.05)}
    with running(tmp_path, **settings) as server:
        if partitions:
            server.create_topic(partitions)
        asyncio.run(ready_and_do(server.port))


def test_heartbeat_that_is_refused_is_told(tmp_path: Path) -> None:
    async def beat(port: int) -> None:
        wire = await Wire.open(port)
        members = [ClassicMember(wire, f"group-{number}", 1) for number in range(3)]
        for member in members:
            await member.enter()
        beats = Beats(members, 0.01)
        await beats.go_on(0.05)
        assert beats.sent == beats.told[True] == len(beats.waits_s) == 15
        members[1].generation += 1
        members[1]._beat = None
        with pytest.raises(LoadError, match="1 of 18 heartbeats are refused"):
            await beats.go_on(0.01)
        wire.close()

    on_broker(tmp_path, beat)


def test_heartbeat_by_the_consumer_protocol_that_is_refused_is_told(tmp_path: Path) -> None:
    async def beat(port: int) -> None:
        wire = await Wire.open(port)
        members = [ConsumerMember(wire, f"group-{number}", 1) for number in range(3)]
        for member in members:
            await member.enter()
            assert member.owned == {0}
            assert member.interval_ms == 50
        beats = Beats(members, 0.01)
        await beats.go_on(0.05)
        assert beats.sent == beats.told[True] == len(beats.waits_s) == 15
        members[1].epoch += 1
        members[1]._beat = None
        with pytest.raises(LoadError, match="1 of 18 heartbeats are refused"):
            await beats.go_on(0.01)
        wire.close()

    on_broker(tmp_path, beat, partitions=1)


def test_group_is_done_when_everybody_has_an_assignment(tmp_path: Path) -> None:
    async def change(port: int) -> None:
        group = ClassicGroup(port, 0.05)
        await group.come(4)
        generation = max(group._by_generation)
        assert group._by_generation[generation] == 4
        await group.come(1)
        assert max(group._by_generation) > generation
        assert group._by_generation[max(group._by_generation)] == 5
        assert group.begun_at < group.heard_at < group.done_at
        await group.go()
        assert group._by_generation[max(group._by_generation)] == 4
        await group.end()

    on_broker(tmp_path, change)


def test_group_by_the_consumer_protocol_is_done_when_it_is_stable(tmp_path: Path) -> None:
    async def change(port: int) -> None:
        group = ConsumerGroup(port, 0.05, 5)
        changes: list[tuple[Callable[[], Awaitable[None]], list[int]]] = [
            (lambda: group.come(4), [1, 1, 1, 2]),
            (lambda: group.come(1), [1, 1, 1, 1, 1]),
            (group.go, [1, 1, 1, 2]),
        ]
        epoch = 0
        for begin, sizes in changes:
            await begin()
            assert await asyncio.to_thread(state_of, port, "bench") == "Stable"
            (newest,) = {member.epoch for member in group._lives}
            assert newest > epoch
            epoch = newest
            assert sorted(len(member.owned) for member in group._lives) == sizes
            assert group.begun_at < group.heard_at < group.done_at
        await group.end()

    on_broker(tmp_path, change, partitions=5)


def state_of(port: int, group_id: str) -> str:
    with GroupAdmin(f"127.0.0.1:{port}") as admin:
        return admin.describe(group_id).state


def test_member_that_is_refused_ends_the_measurement(tmp_path: Path) -> None:
    async def change(port: int) -> None:
        group = ClassicGroup(port, 0.05)
        await group.come(2)
        next(iter(group._lives)).generation += 7
        with pytest.raises(LoadError, match="a heartbeat is refused: ILLEGAL_GENERATION"):
            await group._until_assigned(lambda: None)
        await group.end()

    on_broker(tmp_path, change)


def test_member_by_the_consumer_protocol_that_is_refused_ends_the_measurement(
    tmp_path: Path,
) -> None:
    async def change(port: int) -> None:
        group = ConsumerGroup(port, 0.05, 2)
        await group.come(2)
        # A wrong epoch would not do: the answer to a heartbeat that is under way replaces it.
        wire = await Wire.open(port)
        twin = ConsumerMember(wire, "bench", 0)
        twin.member_id = next(iter(group._lives)).member_id
        await twin.leave()
        with pytest.raises(LoadError, match="Heartbeat is refused: UNKNOWN_MEMBER_ID"):
            await group._until_assigned(lambda: None)
        wire.close()
        await group.end()

    on_broker(tmp_path, change, partitions=2)
