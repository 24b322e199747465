"""One rule for commands that destroy data: they ask, and without a yes they change nothing."""

from __future__ import annotations

import json
import re

import click
import pytest

from plog.cli import plog
from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.client.producer import Producer
from plog.types import TopicPartition
from tests.cli.test_unreachable import leaves

TOPIC, GROUP = "kept", "keeper"
AT = TopicPartition(TOPIC, 0)
DESTROYING: dict[str, tuple[list[object], str]] = {
    "topics delete": ([TOPIC, "other"], "Delete topics kept, other and all their records?"),
    "topics delete-records": ([TOPIC, 0, 2], "Delete the records below offset 2 of partition"),
    "groups delete": ([GROUP], "Delete group keeper and its committed offsets?"),
    "groups delete-offsets": (
        [GROUP, "--topic", TOPIC],
        "Delete 1 offset of group keeper in partition kept-0?",
    ),
    "groups reset": ([GROUP, "--all-topics", "--to-latest"], "Reset 1 offset of group keeper?"),
    "transactions abort": (
        [TOPIC, 0, "--producer-id", 1, "--producer-epoch", 0, "--coordinator-epoch", 0],
        "Abort the transaction of producer 1 in kept-0?",
    ),
    "features set": (
        ["transaction.version", 1, "--lower"],
        "Lower transaction.version to level 1 in the whole cluster?",
    ),
    "adopt": (
        ["PROPERTIES", "--zookeeper", "127.0.0.1:1", "--give-back"],
        "Overwrite the topics and configs in ZooKeeper 127.0.0.1:1",
    ),
}
"""The arguments of each command, and the question that it asks."""
ELSEWHERE = {
    "log-dirs": "tests/cli/test_log_dirs.py shows its question: it needs a lost directory",
    "move-store": "tests/cli/test_move_store.py: it needs a broker's own store",
    "kafka-scripts": "tests/cli/test_kafka_scripts.py: it asks before it replaces files",
}
SAFE = {
    "configs reset": "changes a setting; retention deletes the records that are too old",
}
"""Commands whose names sound as if they destroyed data, and the reason why they do not ask."""
SOUNDS = re.compile(r"delete|reset|abort|forget|purge|remove|truncate")


def asking() -> dict[str, click.Command]:
    """Return the commands that have --yes, by path."""
    return {
        path: command
        for path, command in leaves(plog)
        if any("--yes" in option.opts for option in command.params)
    }


@pytest.fixture(scope="module")
def kept(broker) -> None:
    """A topic with four records, and a group that has committed offset 3."""
    with Admin(broker.bootstrap) as admin, Producer(broker.bootstrap) as producer:
        for name in (TOPIC, "other"):
            admin.create_topic(name, partitions=1)
        for _ in range(4):
            producer.send(TOPIC, b"v", partition=0)
    with GroupAdmin(broker.bootstrap) as groups:
        groups.commit(GROUP, {AT: 3})


def state_of(broker) -> list[object]:
    """Return the data that the commands would destroy."""
    with Admin(broker.bootstrap) as admin, GroupAdmin(broker.bootstrap) as groups:
        topics = admin.topics().keys() & {TOPIC, "other"}
        return [topics, groups.bounds([AT]), groups.committed(GROUP), admin.features()]


def test_every_command_that_may_destroy_data_is_in_the_sweep():
    sounding = {path for path, _ in leaves(plog) if SOUNDS.search(path)}
    assert sounding - SAFE.keys() <= asking().keys()
    assert asking().keys() == DESTROYING.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("path", DESTROYING)
def test_nothing_is_destroyed_without_a_yes(
    call, broker, kept, tmp_path, monkeypatch, path: str
) -> None:
    arguments, question = DESTROYING[path]
    properties = tmp_path / "server.properties"
    properties.write_text(f"log.dirs={tmp_path}\nbroker.id=0\n")
    line = path.split() + [properties if word == "PROPERTIES" else word for word in arguments]
    monkeypatch.setattr("plog.ops.adoption.give_back", lambda *_: pytest.fail("it gives back"))
    before = state_of(broker)
    for answer in (b"", b"n\n", b"perhaps\n"):
        errors = call(*line, stdin=answer, status=1).stderr.decode()
        assert question in errors
        assert re.search(r"Not [a-z ]+\. Pass --yes to skip this question\.\n$", errors), errors
    errors = call(*line, "--json", status=1).stderr.decode()
    assert json.loads(errors.splitlines()[-1])["error"] == "Error"
    assert state_of(broker) == before


def test_long_list_in_a_question_is_cut(call):
    errors = call("topics", "delete", *range(12), status=1).stderr.decode()
    assert "Delete topics 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more" in errors
