"""Commands accept several names. The exceptions are listed here with their reasons."""

from __future__ import annotations

import json

import click
import pytest

from plog.cli import plog
from plog.client.producer import Producer
from tests.cli.test_unreachable import leaves

ONE_NAME = {
    "produce": "its lines go to one topic",
    "consume": "its options select partitions and offsets of one topic",
    "host-metrics": "one topic has the metrics of all hosts",
    "perf produce": "it measures one topic",
    "perf consume": "it measures one topic",
    "topics add-partitions": "COUNT belongs to one topic",
    "topics delete-records": "PARTITION and OFFSET belong to one topic",
    "groups reset": "the plan of a reset is shown for one group",
    "groups delete-offsets": "the offsets that are deleted belong to one group",
    "configs set": "KEY=VALUE follows the name",
    "configs reset": "keys follow the name",
    "transactions abort": "PARTITION belongs to one topic",
    "features set": "LEVEL belongs to one feature",
}


def takes_one_name(command: click.Command) -> bool:
    """Return whether an argument is a name: free text, and neither a path nor a choice."""
    return any(
        isinstance(argument, click.Argument)
        and argument.nargs == 1
        and isinstance(argument.type, type(click.STRING))
        for argument in command.params
    )


def test_commands_accept_several_names_except_these():
    single = {path for path, command in leaves(plog) if takes_one_name(command)}
    assert single <= ONE_NAME.keys()


def test_configs_of_several_resources_are_described(call, topic):
    other = f"{topic}-other"
    call("topics", "create", other, "--config", "retention.ms=6000")
    call("configs", "set", "topic", topic, "retention.ms=5000")
    done = call("configs", "describe", "topic", topic, "nosuch", other, "--json", status=1)
    rows = [(row["name"], row["key"], row["value"]) for row in json.loads(done.stdout)]
    assert rows == [(topic, "retention.ms", "5000"), (other, "retention.ms", "6000")]
    assert "nosuch" in json.loads(error_of(done))["message"]
    (row,) = json.loads(call("configs", "describe", "topic", topic, "--json").stdout)
    assert "name" not in row


def test_several_transactional_ids_are_described(call, broker):
    for name in ("first", "second"):
        with Producer(broker.bootstrap, transactional_id=name) as producer:
            producer.init_transactions()
    done = call("transactions", "describe", "first", "nosuch", "second", "--json", status=1)
    found = json.loads(done.stdout)
    assert [one["transactional_id"] for one in found] == ["first", "second"]
    assert "'nosuch'" in json.loads(error_of(done))["message"]
    single = json.loads(call("transactions", "describe", "second", "--json").stdout)
    assert single == found[1]
    text = call("transactions", "describe", "first", "second").stdout.decode()
    assert text.count("It has no open transaction.") == 2


def test_producers_of_several_topics_are_listed(call, broker, topic):
    other = f"{topic}-other"
    call("topics", "create", other, "--partitions", 1)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"v", partition=1)
        producer.send(other, b"v", partition=0)
    done = call("transactions", "producers", topic, "nosuch", f"{other}:0", "--json", status=1)
    rows = [(row["topic"], row["partition"]) for row in json.loads(done.stdout)]
    assert rows == [(topic, 1), (other, 0)]
    assert "'nosuch' does not exist" in json.loads(error_of(done))["message"]


def error_of(done) -> str:
    (line,) = done.stderr.decode().splitlines()
    return line


@pytest.mark.parametrize(
    "command",
    [
        "topics describe",
        "topics offsets",
        "topics delete --yes",
        "configs describe topic",
        "groups describe",
        "transactions describe",
        "transactions producers",
    ],
)
def test_json_of_missing_names_has_one_rule(call, command):
    """One name gives only the error; several give the list of those that exist."""
    one = call(*command.split(), "nosuch", "--json", status=1)
    assert (one.stdout, len(one.stderr.splitlines())) == (b"", 1)
    two = call(*command.split(), "nosuch", "neither", "--json", status=1)
    assert json.loads(two.stdout) == []
    assert b"neither" in two.stderr
