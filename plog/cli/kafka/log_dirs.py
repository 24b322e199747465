"""kafka-log-dirs: print the log directories of brokers as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from typing import Any

from plog.cli.kafka.config import Clients
from plog.cli.kafka.options import Given, Options, java_integer, number_fault
from plog.cli.kafka.texts import java_text
from plog.client.connection import Connection
from plog.errors import ErrorCode, error_for
from plog.protocol.messages.cluster import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)

OPTIONS = Options(
    "Print the log directories of brokers, with the size of each partition, as JSON.",
    """
    --bootstrap-server HOST:PORT  Address of a broker. Required.
    --describe                    Describe the directories. Required.
    --broker-list IDS             Only these brokers, such as 0,1.
    --topic-list TOPICS           Only these topics, such as a,b.
    --command-config FILE         Properties of the client.
    """,
)


def run(given: Given) -> int:
    """Run the script; return its exit status."""
    given.require("bootstrap-server", "describe")
    topics = {topic for topic in given.text("topic-list").split(",") if topic}
    with Clients(given) as clients:
        known = [node.node_id for node in clients.admin.nodes()]
        wanted = _brokers(given.text("broker-list")) or known
        missing = [node_id for node_id in wanted if node_id not in known]
        if missing:
            sys.stderr.write(
                "ERROR: The given brokers do not exist from --broker-list:"
                f" {_listed(missing)}. Current existent brokers: {_listed(known)}\n"
            )
            return 1
        print("Querying brokers for log directories information")
        brokers = [
            {"broker": one, "logDirs": _log_dirs(clients.cluster.connection(one), topics)}
            for one in wanted
        ]
    print(f"Received log directory information from brokers {_listed(wanted)}")
    print(json.dumps({"brokers": brokers, "version": 1}, separators=(",", ":")))
    return 0


def _listed(ids: Collection[int]) -> str:
    return ",".join(map(str, sorted(ids)))


def _brokers(text: str) -> list[int]:
    found = []
    for word in filter(None, text.split(",")):
        number = java_integer(word)
        if number is None:
            number_fault(word)
        found.append(number)
    return list(dict.fromkeys(found))


def _log_dirs(connection: Connection, topics: Collection[str]) -> list[dict[str, Any]]:
    answer = connection.call(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    return [
        {
            "partitions": _partitions(result, topics),
            "error": _error(result.error_code),
            "logDir": result.log_dir,
        }
        for result in answer.results
    ]


def _error(code: int) -> str | None:
    return None if code == ErrorCode.NONE else java_text(error_for(code))


def _partitions(result: DescribeLogDirsResult, topics: Collection[str]) -> list[dict[str, Any]]:
    return [
        {
            "partition": f"{topic.name}-{one.partition_index}",
            "size": one.partition_size,
            "offsetLag": one.offset_lag,
            "isFuture": one.is_future_key,
        }
        for topic in result.topics
        if not topics or topic.name in topics
        for one in topic.partitions
    ]
