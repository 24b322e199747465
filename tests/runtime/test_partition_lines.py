"""Events of many partitions: one line per topic, single partitions at DEBUG."""

from __future__ import annotations

import logging

import pytest

from plog.runtime.partition_lines import log_partitions
from plog.types import TopicPartition

PARTITIONS = [TopicPartition("b", 0), *(TopicPartition("a", n) for n in range(3))]


@pytest.mark.parametrize(
    ("level", "lines"),
    [
        (logging.ERROR, []),
        (logging.INFO, ["created b-0 in /d", "created 3 partitions of a in /d"]),
        (
            logging.DEBUG,
            [
                "created b-0 in /d",
                "created 3 partitions of a in /d",
                *(f"created a-{n} in /d" for n in range(3)),
            ],
        ),
    ],
)
def test_topic_has_one_line_and_debug_has_all(
    caplog: pytest.LogCaptureFixture, level: int, lines: list[str]
) -> None:
    log = logging.getLogger("plog.x")
    with caplog.at_level(level, log.name):
        log_partitions(log, logging.INFO, "created %s in %s", PARTITIONS, "/d")
    assert [one.getMessage() for one in caplog.records] == lines
