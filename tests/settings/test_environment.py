"""Variables become settings: plog's and Kafka's names, and those of an existing container."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from plog.errors import ConfigError
from plog.settings import load
from plog.settings.definitions import BrokerSettings
from plog.settings.environment import DEVELOPMENT, TOOLS, key_of, read_environment
from plog.settings.kafka_only import KAFKA_ONLY
from plog.settings.server_properties import ignored_variables, read
from tests.conftest import ROOT
from tests.test_source import IN_BIN

SINGLE_NODE = {
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_LISTENERS": "CONTROLLER://:29093,PLAINTEXT_HOST://:9092,PLAINTEXT://:19092",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT_HOST://localhost:9092,PLAINTEXT://broker:19092",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": (
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT"
    ),
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@broker:29093",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
    "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_LOG_DIRS": "/tmp/kraft-combined-logs",
    "KAFKA_HEAP_OPTS": "-Xmx1g",
    "KAFKA_LOG4J_ROOT_LOGLEVEL": "WARN",
}
"""As in the compose files of people who use Kafka's image, combined mode."""


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("LOG_DIRS", "log.dirs"),
        ("ABC__DEF", "abc_def"),
        ("ABC___DEF", "abc-def"),
        ("A_B__C___D", "a.b_c-d"),
        ("ZOOKEEPER_CLIENTCNXNSOCKET", "zookeeper.clientCnxnSocket"),
    ],
)
def test_underscores_stand_for_the_signs_of_a_key(name: str, key: str) -> None:
    assert key_of(name, KAFKA_ONLY) == key


def test_every_key_can_be_set_by_a_variable() -> None:
    for key in (*BrokerSettings.KEYS, *KAFKA_ONLY):
        name = key.replace("_", "__").replace("-", "___").replace(".", "_").upper()
        found = read_environment({f"PLOG_{name}": "x"}, BrokerSettings.KEYS | KAFKA_ONLY)
        assert [one.key for one in found.variables] == [key]


def test_override_beats_plogs_name_which_beats_kafkas_which_beats_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=1\nbroker.id=1\nlog.retention.hours=1\nlog.dirs=/of/the/file\n")
    variables = {
        "KAFKA_NUM_PARTITIONS": "2",
        "KAFKA_BROKER_ID": "2",
        "KAFKA_LOG_RETENTION_HOURS": "2",
        "PLOG_NUM_PARTITIONS": "3",
        "PLOG_BROKER_ID": "3",
        "PATH": "/bin",
    }
    settings = load(path, ["num.partitions=4"], variables)
    assert settings.num_partitions == 4
    assert settings.broker_id == 3
    assert settings.log_retention_hours == 2
    assert settings.log_dirs == ("/of/the/file",)
    assert load(path, ["num.partitions=4"]).broker_id == 1  # variables count only if asked for


def test_start_logs_names_of_variables_and_no_value(caplog: pytest.LogCaptureFixture) -> None:
    variables = {"PLOG_BROKER_RACK": "sesame", "KAFKA_NUM_PARTITIONS": "2"}
    with caplog.at_level(logging.INFO, logger="plog.settings"):
        load(environment={**variables, "KAFKA_BROKER_RACK": "hidden by plog's name"})
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "settings from the environment: broker.rack (PLOG_BROKER_RACK),"
        " num.partitions (KAFKA_NUM_PARTITIONS)"
    )


def test_faults_name_their_variable() -> None:
    variables = {
        "PLOG_LOG_RETNTION_HOURS": "5",
        "PLOG_NUM_PARTITIONS": "few",
        "KAFKA_MESSAGE_MAX_BYTES": "-1",
        "KAFKA_AUTHORIZER_CLASS_NAME": "x",
    }
    with pytest.raises(ConfigError) as caught:
        load(None, ["num.io.threads=x"], variables)
    starts = [line.partition(": ")[0] for line in str(caught.value).splitlines()]
    assert starts == [
        "KAFKA_AUTHORIZER_CLASS_NAME",
        "KAFKA_MESSAGE_MAX_BYTES",
        "PLOG_LOG_RETNTION_HOURS",
        "PLOG_NUM_PARTITIONS",
        "--override",
    ]
    assert "did you mean `log.retention.hours`?" in str(caught.value)


def test_unknown_key_of_kafka_is_a_warning() -> None:
    settings, warnings = read(environment={"KAFKA_CFG_NUM_PARTITIONS": "3"})
    assert settings.num_partitions == 1
    assert warnings == [
        "KAFKA_CFG_NUM_PARTITIONS: ignored, `cfg.num.partitions`: unknown key;"
        " did you mean `num.partitions`?"
    ]


def test_variables_of_a_single_kraft_broker_make_a_broker() -> None:
    settings, warnings = read(environment=SINGLE_NODE)
    assert settings.broker_id == 1
    assert settings.log_dirs == ("/tmp/kraft-combined-logs",)
    found = [(one.name, one.port, one.advertised_host) for one in settings.parsed_listeners()]
    assert found == [("PLAINTEXT_HOST", 9092, "localhost"), ("PLAINTEXT", 19092, "broker")]
    assert ignored_variables(SINGLE_NODE) == [
        "KAFKA_HEAP_OPTS, KAFKA_LOG4J_ROOT_LOGLEVEL (plog has no JVM)",
        "CLUSTER_ID (plog generates the id of its cluster)",
        "KAFKA_PROCESS_ROLES (a plog broker coordinates itself)",
        "KAFKA_CONTROLLER_QUORUM_VOTERS (a plog broker coordinates itself)",
    ]
    assert warnings == [
        "KAFKA_LISTENERS: ignored CONTROLLER://:29093: plog has no KRaft controller",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP: ignored CONTROLLER:PLAINTEXT:"
        " plog has no KRaft controller",
    ]


def test_listeners_follow_the_advertised_ones_as_in_kafkas_image() -> None:
    variables = {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker:9093"}
    (listener,) = read(environment=variables)[0].parsed_listeners()
    assert (listener.host, listener.port, listener.advertised_host) == ("0.0.0.0", 9093, "broker")


@pytest.mark.parametrize(
    ("more", "overrides"),
    [
        ({"PLOG_LISTENERS": "PLAINTEXT://127.0.0.1:9099"}, []),
        ({}, ["listeners=PLAINTEXT://127.0.0.1:9099"]),
        ({}, [" listeners = PLAINTEXT://127.0.0.1:9099"]),
        ({"KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:9099"}, []),
    ],
)
def test_remark_names_no_address_if_another_source_sets_the_listeners(
    more: dict[str, str], overrides: list[str]
) -> None:
    variables = {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker:9093", **more}
    settings, warnings = read(None, overrides, variables)
    (listener,) = settings.parsed_listeners()
    assert (listener.host, listener.port, listener.advertised_host) == ("127.0.0.1", 9099, "broker")
    assert warnings == []


def test_zookeeper_is_set_by_a_variable_as_by_the_file() -> None:
    settings, warnings = read(environment={"KAFKA_ZOOKEEPER_CONNECT": "zk1,zk2:2182/plog"})
    assert settings.zookeeper_connect == "zk1:2181,zk2:2182/plog"
    assert warnings == []
    with pytest.raises(ConfigError, match=r"^KAFKA_ZOOKEEPER_CONNECT: .* is empty; remove the key"):
        read(environment={"KAFKA_ZOOKEEPER_CONNECT": ""})


def test_node_id_beside_a_broker_id_is_named() -> None:
    variables = {"KAFKA_NODE_ID": "7", "KAFKA_BROKER_ID": "3"}
    settings, warnings = read(environment=variables)
    assert settings.broker_id == 3
    assert warnings == ["KAFKA_NODE_ID: ignored: KAFKA_BROKER_ID sets `broker.id`"]


@pytest.mark.parametrize(
    ("in_file", "host", "port"),
    [
        ("PLAINTEXT://0.0.0.0:9092", "0.0.0.0", 9093),
        ("PLAINTEXT://:9092", "0.0.0.0", 9093),
        ("PLAINTEXT://127.0.0.1:9092", "127.0.0.1", 9092),
    ],
)
def test_listener_of_one_address_in_the_file_stays(
    tmp_path: Path, in_file: str, host: str, port: int
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"listeners={in_file}\n")
    variables = {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker:9093"}
    (listener,) = read(path, environment=variables)[0].parsed_listeners()
    assert (listener.host, listener.port, listener.advertised_port) == (host, port, 9093)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            {"KAFKA_PROCESS_ROLES": "controller"},
            "KAFKA_PROCESS_ROLES: plog runs brokers only, which need no controller:"
            " 'controller' has no broker",
        ),
        (
            {"KAFKA_CONTROLLER_QUORUM_VOTERS": "1@a:9093,2@b:9093,3@c:9093"},
            "KAFKA_CONTROLLER_QUORUM_VOTERS: names 3 controllers, but plog brokers are coordinated"
            " by ZooKeeper",
        ),
    ],
)
def test_larger_clusters_of_kraft_are_refused(more: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(environment=SINGLE_NODE | more)
    assert str(caught.value) == text


def test_kraft_in_a_file_stays_refused(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("process.roles=broker,controller\n")
    with pytest.raises(ConfigError, match="does not support KRaft"):
        read(path, environment={})


def test_variables_of_kubernetes_and_of_tools_are_no_settings() -> None:
    variables = {
        "PLOG_SERVICE_HOST": "10.0.0.1",
        "PLOG_SERVICE_PORT": "9092",
        "PLOG_SERVICE_PORT_KAFKA": "9092",
        "PLOG_PORT": "tcp://10.0.0.1:9092",
        "PLOG_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "PLOG_PORT_9092_TCP_ADDR": "10.0.0.1",
        "KAFKA_BROKER_SERVICE_HOST": "10.0.0.2",
        "PLOG_BOOTSTRAP_SERVER": "10.0.0.1:9092",
        "PLOG_METRICS": "127.0.0.1:9095",
    }
    settings, warnings = read(environment=variables)
    assert not settings.given
    assert not warnings
    ignored = ignored_variables(variables)
    assert len(ignored) == 2
    assert all(text.endswith(" (Kubernetes sets them for a service)") for text in ignored)


def test_start_logs_ignored_variables_in_one_line_of_info(
    caplog: pytest.LogCaptureFixture,
) -> None:
    variables = {
        "KAFKA_HEAP_OPTS": "-Xmx1g",
        "KAFKA_PROCESS_ROLES": "broker",
        "CLUSTER_ID": "x",
        "PLOG_PORT": "tcp://10.0.0.1:9092",
    }
    with caplog.at_level(logging.INFO, logger="plog.settings"):
        load(environment=variables)
    assert {record.levelname for record in caplog.records} == {"INFO"}
    (line,) = [text for text in caplog.messages if "ignored" in text]
    assert all(name in line for name in variables)


def test_ignored_files_of_tls_stay_a_warning() -> None:
    _, warnings = read(environment={"KAFKA_SSL_KEYSTORE_FILENAME": "x"})
    assert warnings == ["KAFKA_SSL_KEYSTORE_FILENAME: ignored: connections are not encrypted yet"]


def test_every_variable_in_the_source_is_known() -> None:
    """A new variable of a tool must not become an unknown key."""
    used = re.compile(r"""(?:environ\S*[\[(]\W*|envvar=\W|[$]\W?)(PLOG_[A-Z_]+)\b""")
    places = [*(ROOT / "plog").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), ROOT / "setup.py"]
    places += [path for path in IN_BIN if path.is_file()]
    names = {name for path in places for name in used.findall(path.read_text())}
    assert names >= TOOLS
    assert names - TOOLS - DEVELOPMENT == set()
