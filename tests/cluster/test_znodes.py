# ruff: noqa: E501 - the texts are kept whole
"""The texts of Kafka's nodes, byte for byte, and what readers do with older or broken ones."""

from __future__ import annotations

import uuid

import pytest

from plog.cluster import znodes
from plog.cluster.znodes import (
    BrokerNode,
    ConfigEntity,
    ControllerNode,
    Endpoint,
    MalformedNode,
    PartitionStateNode,
    ProducerIdBlock,
    TopicNode,
)
from plog.types import TopicPartition

TOPIC_ID = uuid.UUID("f3d6a1c8-7e2b-4c59-9a10-2b3c4d5e6f70")
TOPIC_ID_TEXT = "89ahyH4rTFmaECs8TV5vcA"

TEXTS = [
    (ControllerNode(0, 1700000000000).encode(), '{"version":2,"brokerid":0,"timestamp":"1700000000000","kraftControllerEpoch":-1}'),
    (znodes.encode_controller_epoch(1), "1"),
    (znodes.encode_cluster_id("abcdefghijklmnopqrstuv"), '{"version":"1","id":"abcdefghijklmnopqrstuv"}'),
    (
        BrokerNode((Endpoint("PLAINTEXT", "h", 9092),), 1700000000000, "r1", features={"transaction.version": (0, 2)}).encode(),
        '{"version":5,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1700000000000","endpoints":["PLAINTEXT://h:9092"],"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"rack":"r1","features":{"transaction.version":{"min_version":0,"max_version":2}}}',
    ),
    (
        BrokerNode((Endpoint("IN", "::1", 9093, "SSL"),), 1).encode(),
        '{"version":5,"host":null,"port":-1,"jmx_port":-1,"timestamp":"1","endpoints":["IN://[::1]:9093"],"listener_security_protocol_map":{"IN":"SSL"},"features":{}}',
    ),
    (
        TopicNode(TOPIC_ID, {1: (2, 1), 0: (1, 2)}).encode(),
        '{"version":3,"topic_id":"%s","partitions":{"0":[1,2],"1":[2,1]},"adding_replicas":{},"removing_replicas":{}}'.replace("%s", TOPIC_ID_TEXT),
    ),
    (PartitionStateNode(1, 0, 0, (0, 1)).encode(), '{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0,1]}'),
    (
        PartitionStateNode(1, 0, 0, (0,), 1).encode(),
        '{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0],"leader_recovery_state":1}',
    ),
    (znodes.encode_config({"retention.ms": "1000"}), '{"version":1,"config":{"retention.ms":"1000"}}'),
    (znodes.encode_config_change(ConfigEntity.topic("foo")), '{"version":2,"entity_path":"topics/foo"}'),
    (znodes.encode_config_change(ConfigEntity.broker(None)), '{"version":2,"entity_path":"brokers/<default>"}'),
    (znodes.encode_partitions([TopicPartition("t", 0)]), '{"version":1,"partitions":[{"topic":"t","partition":0}]}'),
    (
        znodes.encode_reassignment({TopicPartition("t", 0): (1, 2)}),
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}',
    ),
    (znodes.encode_log_dir_event(0), '{"version":1,"broker":0,"event":1}'),
    (ProducerIdBlock(0, 0, 999).encode(), '{"version":1,"broker":0,"block_start":"0","block_end":"999"}'),
]  # fmt: skip


@pytest.mark.parametrize(("encoded", "text"), TEXTS)
def test_encoded_node_is_kafkas_text(encoded: bytes, text: str) -> None:
    assert encoded == text.encode()


ROUND_TRIPS = [
    (ControllerNode(3, 5), ControllerNode.decode),
    (BrokerNode((Endpoint("A", "::1", 1, "SSL"), Endpoint("B", "h", 2)), 7, "ré"), BrokerNode.decode),
    (TopicNode(TOPIC_ID, {0: (1,)}, {0: (2,)}, {0: (1,)}), TopicNode.decode),
    (TopicNode(None, {0: (1,)}), TopicNode.decode),
    (PartitionStateNode(4, -1, 9, (), 1), PartitionStateNode.decode),
    (ProducerIdBlock(2, 1000, 1999), ProducerIdBlock.decode),
]  # fmt: skip


@pytest.mark.parametrize(("node", "decode"), ROUND_TRIPS, ids=lambda value: type(value).__name__)
def test_decoded_node_is_what_was_encoded(node, decode) -> None:
    assert decode(node.encode()) == node


OLDER = [
    (ControllerNode.decode, b'{"version":1,"brokerid":4,"timestamp":"9"}', ControllerNode(4, 9)),
    (ControllerNode.decode, b'{"brokerid":4}', ControllerNode(4, -1)),
    (TopicNode.decode, b'{"version":1,"partitions":{"0":[1,2]}}', TopicNode(None, {0: (1, 2)})),
    (
        BrokerNode.decode,
        b'{"jmx_port":9,"timestamp":"3","host":"h","version":1,"port":1}',
        BrokerNode((Endpoint("PLAINTEXT", "h", 1),), 3, None, 9),
    ),
    (
        BrokerNode.decode,
        b'{"version":2,"host":"h","port":1,"jmx_port":-1,"timestamp":"3","endpoints":["SSL://h:2"]}',
        BrokerNode((Endpoint("SSL", "h", 2, "SSL"),), 3),
    ),
    (
        znodes.decode_config_change,
        b'{"version":1,"entity_type":"topics","entity_name":"foo"}',
        ConfigEntity.topic("foo"),
    ),
    (znodes.decode_config, b"", {}),
]


@pytest.mark.parametrize(("decode", "data", "node"), OLDER)
def test_older_text_is_read(decode, data: bytes, node: object) -> None:
    assert decode(data) == node


DECODERS = [
    ControllerNode.decode,
    BrokerNode.decode,
    TopicNode.decode,
    PartitionStateNode.decode,
    ProducerIdBlock.decode,
    znodes.decode_cluster_id,
    znodes.decode_controller_epoch,
    znodes.decode_config,
    znodes.decode_config_change,
    znodes.decode_partitions,
    znodes.decode_reassignment,
    znodes.decode_log_dir_event,
]
BROKEN = [
    b"{", b"\xff", b"[]", b"1x", b"null", b"{}", b'{"version":1}', b'{"version":"x","brokerid":"x"}',
    b'{"version":3,"partitions":{"x":1},"topic_id":"x"}', b'{"version":1,"config":[]}',
    b'{"version":2,"entity_path":"topics"}', b'{"version":5,"endpoints":["x"],"timestamp":"1"}',
    b'{"version":1,"partitions":[1]}', b"\xc2\xb2",
    b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__qualname__)
@pytest.mark.parametrize("data", BROKEN, ids=lambda data: data[:20])
def test_broken_text_is_malformed_node(decode, data: bytes) -> None:
    with pytest.raises(MalformedNode):
        decode(data)


STATE_TEXT = '{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}'
BROKER_TEXT = '{"version":5,"endpoints":["PLAINTEXT://h:1"],"jmx_port":-1,"timestamp":"1"}'
WRONG_VALUES = [
    *((PartitionStateNode.decode, STATE_TEXT, '"leader_epoch":0', f'"leader_epoch":{value}')
      for value in ("-1", "1e999", "2147483648", "1.5", "true", "null", "NaN")),
    *((PartitionStateNode.decode, STATE_TEXT, "[0]", value) for value in ('"0"', "[1e999]", "{}", "[4294967296]")),
    *((TopicNode.decode, '{"version":1,"partitions":{"0":[0]}}', '{"0":[0]}', value)
      for value in ("{}", '{"0":[]}', '{"-1":[0]}', '{"0":"0"}', '{"0":[-1]}', '{"2147483648":[0]}', '{"0":[1e999]}')),
    *((BrokerNode.decode, BROKER_TEXT, "PLAINTEXT://h:1", value)
      for value in ("X://h:1", "PLAINTEXT://h:65536", "PLAINTEXT://:1", "PLAINTEXT://h:\u00b2")),
    (BrokerNode.decode, BROKER_TEXT, '"jmx_port"', '"rack":7,"jmx_port"'),
    *((BrokerNode.decode, '{"version":1,"host":"h","port":1,"jmx_port":-1,"timestamp":"1"}', '"h","port":1', value)
      for value in ('null,"port":1', '"h","port":null', '"h","port":"1x"')),
    (ControllerNode.decode, '{"brokerid":1}', "1", "1e999"),
]  # fmt: skip


@pytest.mark.parametrize(("decode", "text", "before", "after"), WRONG_VALUES)
def test_value_that_kafka_would_not_write_is_malformed_node(decode, text, before, after) -> None:
    decode(text.encode())
    with pytest.raises(MalformedNode):
        decode(text.replace(before, after).encode())


def test_error_quotes_the_beginning_of_a_long_text_only() -> None:
    text = b'{"brokerid":"%s"}' % (b"x" * 100_000)
    with pytest.raises(MalformedNode) as caught:
        ControllerNode.decode(text)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("text", [t for _, t in TEXTS if t.startswith("{")])
def test_every_prefix_of_a_text_is_refused(text: str) -> None:
    decode = {
        "brokerid": ControllerNode.decode, "endpoints": BrokerNode.decode, "isr": PartitionStateNode.decode,
        "adding_replicas": TopicNode.decode,
    }  # fmt: skip
    chosen = next((d for key, d in decode.items() if f'"{key}"' in text), znodes.decode_cluster_id)
    for cut in range(len(text)):
        with pytest.raises(MalformedNode):
            chosen(text[:cut].encode())


PATHS = [
    (ConfigEntity.topic("a.b_c-1"), "topics/a.b_c-1"),
    (ConfigEntity.broker(1), "brokers/1"),
    (ConfigEntity.broker(None), "brokers/<default>"),
    (ConfigEntity((("users", "a b*c~/d"),)), "users/a%20b%2Ac%7E%2Fd"),
    (ConfigEntity.group("."), "groups/%2E"),
    (ConfigEntity.group(".."), "groups/%2E%2E"),
    (ConfigEntity.group("a.b/c"), "groups/a.b%2Fc"),
    (ConfigEntity((("users", "ü"), ("clients", "<default>"))), "users/%C3%BC/clients/<default>"),
]


@pytest.mark.parametrize(("entity", "path"), PATHS)
def test_config_entity_path_is_kafkas(entity: ConfigEntity, path: str) -> None:
    assert entity.entity_path == path
    assert entity.path == f"/config/{path}"
    assert ConfigEntity.from_entity_path(path) == entity


def test_paths_of_a_partition() -> None:
    partition = TopicPartition("t", 3)
    assert znodes.partition_state_path(partition) == "/brokers/topics/t/partitions/3/state"
    assert znodes.partition_path(partition) == "/brokers/topics/t/partitions/3"
    assert znodes.partitions_path("t") == "/brokers/topics/t/partitions"
    assert znodes.topic_path("t") == "/brokers/topics/t"
    assert znodes.delete_topic_path("t") == "/admin/delete_topics/t"
    assert znodes.broker_path(7) == "/brokers/ids/7"
