"""plog's commands show a cluster of Kafka's: its groups with their lag, brokers, offsets."""

from __future__ import annotations

import json
import time
from typing import Any

from click.testing import CliRunner

from plog.cli import plog
from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.client.producer import Producer
from plog.types import TopicPartition
from tests.compat.against_kafka.pair import Pair


def test_commands_show_kafkas_cluster(pair: Pair) -> None:
    kafka, _ = pair.sides
    bootstrap = f"127.0.0.1:{kafka.port}"

    def show(*arguments: str) -> Any:
        done = CliRunner().invoke(plog, [*arguments, "-b", bootstrap, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    try:
        written_ms = time.time_ns() // 1_000_000 - 3_600_000
        with Admin(bootstrap) as admin, Producer(bootstrap, enable_idempotence=False) as producer:
            admin.create_topic("shown", partitions=2, configs={"retention.ms": "-1"})
            for _ in range(3):
                producer.send("shown", b"v", partition=0, timestamp_ms=written_ms)
        with GroupAdmin(bootstrap) as groups:
            for name, offset in {"shown-slow": 1, "shown-done": 3}.items():
                groups.commit(name, {TopicPartition("shown", 0): offset})
        rows = {row["group"]: row for row in show("groups", "list")}
        assert [rows[name]["lag"] for name in ("shown-slow", "shown-done")] == [2, 0]
        assert 3_600_000 <= rows["shown-slow"]["behind_ms"] < 7_200_000
        described = {one["group"]: one for one in show("groups", "describe", "--all")}
        assert described["shown-slow"]["partitions"] == [
            {
                **show("groups", "describe", "shown-slow")["partitions"][0],
                "behind_ms": described["shown-slow"]["partitions"][0]["behind_ms"],
            }
        ]
        (row,) = show("topics", "offsets", "shown:0", "--at", str(written_ms))
        assert (row["earliest"], row["latest"], row["offset"]) == (0, 3, 0)
        assert row["timestamp"] == written_ms
        topic = show("topics", "describe", "shown")
        setting = {"key": "retention.ms", "value": "-1", "source": "topic"}
        assert setting in topic["settings"]
        cluster = show("cluster")
        assert (cluster["coordination"], cluster["offline"]) == ("KRaft", [])
        assert cluster["brokers"][0]["software"] == "Kafka"
        assert "metadata.version" in {one["feature"] for one in cluster["features"]}
    finally:  # the cases of other modules compare all groups and topics
        for words in (
            ["groups", "delete", "shown-slow", "shown-done"],
            ["topics", "delete", "shown"],
        ):
            CliRunner().invoke(plog, [*words, "-b", bootstrap, "--yes"])
