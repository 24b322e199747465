"""`plog produce`: separators, tombstones, headers, JSON, and what a bad line leaves behind."""

from __future__ import annotations

import json
import re

import pytest

from plog.client.partitioner import partition_for_key
from tests.servers import BrokerProcess

from .conftest import Run


def consumed(call: Run, topic: str) -> list[tuple]:
    """Return key, value and headers of each record, as JSON has them."""
    lines = call("consume", topic, "--exit-at-end", "--json").stdout.splitlines()
    return [tuple(json.loads(line)[name] for name in ("key", "value", "headers")) for line in lines]


def test_columns_of_consume_are_read_back(call, topic):
    lines = b"a=1,b=\\N\tk\t\\N\n\t\\N\tv\xff\n\t\t\n"
    columns = ["--key-separator", r"\t", "--header-separator", r"\t", "--null", r"\N"]
    call("produce", topic, *columns, "--partition", 0, "--header", "x=y", stdin=lines)
    assert consumed(call, topic) == [
        ("k", None, [["a", "1"], ["b", None], ["x", "y"]]),
        (None, {"base64": "dv8="}, [["x", "y"]]),
        ("", "", [["x", "y"]]),
    ]
    printed = call("consume", topic, "--headers", "--keys", "--null", r"\N", "--exit-at-end").stdout
    assert printed == b"a=1,b=\\N,x=y\tk\t\\N\nx=y\t\\N\tv\xff\nx=y\t\t\n"


@pytest.mark.parametrize(
    ("arguments", "lines", "fault", "written"),
    [
        (["--key-separator", ":"], b"a:1\nb:2\nc\nd:4\n",
            "line 3: no key separator ':' in 'c' (wrote 2 records before it)", 2),
        (["--key-separator", ":"], b"a", "line 1: no key separator ':' in 'a' (wrote nothing)", 0),
        (["--header-separator", "|"], b"|a\nb\n",
            "line 2: no header separator '|' in 'b' (wrote 1 record before it)", 1),
        (["--input", "json"], b'{"value": "a"}\n\n{"value": 1}\n',
            'line 3: value is not text, null or {"base64": "..."} (wrote 1 record before it)', 1),
        (["--input", "json"], b'{"value": "a", "partition": 1}\n{"value": "a", "partition": 2}\n',
            "line 2: partition 2, but topic '{topic}' has 2 partitions: add partitions, or use"
            " --repartition (wrote 1 record before it)", 1),
    ],
)  # fmt: skip
def test_bad_line_ends_the_command_behind_the_lines_before(
    call, topic, arguments, lines, fault, written
):
    done = call("produce", topic, *arguments, stdin=lines, status=1)
    assert done.stderr.decode() == f"plog: {fault.replace('{topic}', topic)}\n"
    assert len(consumed(call, topic)) == written
    done = call("produce", topic, *arguments, "--json", stdin=lines, status=1)
    assert json.loads(done.stderr)["message"] == fault.replace("{topic}", topic)


def test_bad_line_of_a_file_is_named_with_the_file(call, topic, tmp_path):
    source = tmp_path / "users.tsv"
    source.write_bytes(b"no separator\n")
    done = call("produce", topic, source, "--key-separator", ":", status=1)
    place = f"plog: line 1 of {source}: no key separator"
    assert done.stderr.decode().startswith(place)


def test_line_without_a_key_is_written_if_allowed(call, topic):
    separators = ["--key-separator", ":", "--missing-key", "null"]
    call("produce", topic, *separators, "--partition", 0, stdin=b"k:v\nv\n")
    assert consumed(call, topic) == [("k", "v", []), (None, "v", [])]


@pytest.mark.parametrize(
    ("extra", "partitions"),
    [([], [1, 0]), (["--partition", 0], [0, 0]), (["--repartition"], [1, 1])],
)
def test_partitions_of_json_are_kept_unless_others_are_chosen(call, topic, extra, partitions):
    key = next(key for key in "abcdefgh" if partition_for_key(key.encode(), 2) == 1)
    lines = [{"key": key, "value": value, "partition": n} for value, n in (("a", 1), ("b", 0))]
    done = call(
        "produce", topic, "--input", "json", "--json", *extra,
        stdin="\n".join(map(json.dumps, lines)).encode(),
    )  # fmt: skip
    assert json.loads(done.stdout) == {"topic": topic, "records": 2}
    printed = call("consume", topic, "--exit-at-end", "--json").stdout.splitlines()
    found = {one["value"]: one["partition"] for one in map(json.loads, printed)}
    assert [found["a"], found["b"]] == partitions


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--input", "json", "--key-separator", ":"], "--input json conflicts with separators"),
        (["--input", "json", "--null", ""], "--input json conflicts with separators"),
        (["--input", "xml"], "'xml' is not one of"),
        (["--repartition"], "--repartition requires --input json"),
        (["--missing-key", "null"], "--missing-key requires --key-separator"),
        (["--header-separator", ""], "the separator is empty"),
        (["--key-separator", r"\q"], r"unknown escape \q: use"),
        (["--header", "\udcff=1"], "is not UTF-8"),
    ],
)
def test_wrong_use_is_found_before_a_broker_is_asked(call, arguments, fault):
    done = call("produce", "t", "-b", "127.0.0.1:1", *arguments, stdin=b"x\n", status=2)
    assert fault in done.stderr.decode()


KEYED = ["--key-separator", ":", "--missing-key", "null"]


@pytest.mark.parametrize(
    ("setting", "arguments", "lines", "fault"),
    [
        ("cleanup.policy=compact", KEYED, b"k:v\nk:v\nv\nk:v\n",
            "line 3{place}: produce to {topic}-0: a record of a compacted topic needs a key"
            " (its batch, lines 1-4, was not written; wrote nothing)"),
        ("cleanup.policy=compact", KEYED, b"v\n",
            "line 1{place}: produce to {topic}-0: a record of a compacted topic needs a key"
            " (wrote nothing)"),
        ("message.timestamp.after.max.ms=1000", ["--input", "json"],
            b'\n{"value": "a"}\n{"value": "b", "timestamp": 99999999999999}\n{"value": "c"}\n',
            "line 3{place}: produce to {topic}-0: timestamp 99999999999999 is not within "),
        ("max.message.bytes=200", [], b"a\nb\n" + b"x" * 500 + b"\n",
            "line 3{place}: produce to {topic}-0: batch of 570 bytes, max.message.bytes is 200"
            " (wrote 2 records)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("in_file", [True, False])
def test_line_that_the_broker_refuses_is_named(
    call, topic, tmp_path, setting, arguments, lines, fault, in_file
):
    topic += "-strict"
    call("topics", "create", topic, "--config", setting)
    source, stdin, place = "-", lines, ""
    if in_file:
        source, stdin, place = tmp_path / "records", b"", f" of {tmp_path / 'records'}"
        source.write_bytes(lines)
    linger = ["--linger-ms", 10_000]
    done = call("produce", topic, source, *arguments, *linger, stdin=stdin, status=1)
    (text,) = done.stderr.decode().splitlines()
    assert text.startswith("plog: " + fault.replace("{place}", place).replace("{topic}", topic))


def test_records_written_before_and_after_a_refusal_are_counted(call, topic):
    topic += "-compact"
    call("topics", "create", topic, "--partitions", 4, "--config", "cleanup.policy=compact")
    lines = [b"key%d\tvalue" % n for n in range(20_000)]
    lines[8_000] = b"NONE\tvalue"
    arguments = ["--key-separator", r"\t", "--null", "NONE"]
    done = call("produce", topic, *arguments, stdin=b"\n".join(lines) + b"\n", status=1)
    (wrote,) = re.findall(rb"wrote ([\d,]+) records\)", done.stderr)
    assert int(wrote.replace(b",", b"")) == len(consumed(call, topic))


def test_record_that_the_broker_finds_too_large_is_named(call, topic):
    value = b"x" * (2 << 20)
    done = call("produce", topic, "--partition", 0, stdin=b"small\n" + value + b"\n", status=1)
    (line,) = done.stderr.decode().splitlines()
    assert "too large" in line.lower() or "max.message.bytes" in line
    done = call("produce", topic, stdin=b"small\n" + b"x" * (40 << 20) + b"\n", status=1)
    assert done.stderr.startswith(b"plog: line 2: record of 419")
    assert done.stderr.endswith(b"(wrote 1 record before it)\n")


def test_topic_that_the_broker_creates_is_named(call, tmp_path):
    with BrokerProcess(tmp_path, overrides={"num.partitions": 2}) as creating:
        where = ["-b", creating.bootstrap]
        lines = b'{"value": "a", "partition": 1}\n' * 2
        done = call("produce", "typo", *where, "--input", "json", stdin=lines)
        assert done.stderr.decode() == "Created topic typo.\nWrote 2 records to typo.\n"
        assert call("produce", "typo", *where, stdin=b"a\n").stderr == b"Wrote 1 record to typo.\n"
        assert call("produce", "none", *where).stderr == b"Wrote 0 records to none.\n"
        done = call("produce", "a/b", *where, stdin=b"a\n", status=1)
        assert b"Created" not in done.stderr
