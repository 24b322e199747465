"""The tests' lists of Kafka's APIs, and plog's messages, are those of Kafka's own releases."""

from __future__ import annotations

from plog.handlers.registry import load
from plog.protocol import framing
from plog.protocol.api_keys import ApiKey
from plog.protocol.schema import Field, Struct
from tests.compat.programs import JAVA, Java, run_program
from tests.kafka_versions import KAFKA_3_9, KAFKA_4_4, Api

RENAMED = "generation_id:", "generation_id_or_member_epoch:"
"""A field of TxnOffsetCommit: before Kafka 4.4, and since."""


def printed(client: Java, listener: str) -> dict[int, Api]:
    """Return the APIs of a release that brokers with this kind of listener support, by key."""
    found = {}
    for line in run_program(client.apis_command()).splitlines():
        key, name, lowest, stable, highest, listeners = line.split("\t")
        if listener in listeners.split(","):
            unstable = None if highest == stable else int(highest)
            found[int(key)] = Api(name, int(lowest), int(stable), unstable)
    return found


def test_list_of_3_9_is_that_of_the_release() -> None:
    found = printed(JAVA[0], "ZK_BROKER")
    assert {key: (api.lowest, api.highest) for key, api in found.items()} == KAFKA_3_9


def test_list_of_4_4_is_that_of_the_release() -> None:
    assert printed(JAVA[1], "BROKER") == KAFKA_4_4


def text(cls: type[Struct], version: int) -> str:
    """Return the fields of a message as Apis.java prints them."""
    fields, tagged = [], {}
    for field in cls.fields:
        if version not in field.versions:
            continue
        if field.tag is not None and version in field.tagged:
            tagged[field.tag] = f"{field.name}#{field.tag}:{kind(field, version)}"
        else:
            fields.append(f"{field.name}:{kind(field, version)}")
    return f"{{{','.join([*fields, *(tagged[tag] for tag in sorted(tagged))])}}}"


def kind(field: Field, version: int) -> str:
    """Return the type of a field as Apis.java prints it."""
    found = field.element or field.kind
    if field.struct is not None:
        found = text(field.struct, version)
    if field.kind == "array":
        found = f"[{found}]"
    mark = "?" if version in field.nullable else ""
    return mark + {"bool": "boolean"}.get(found, found)


def test_messages_are_those_of_the_newest_release() -> None:
    handlers, compared, wrong = load(), 0, {}
    for line in run_program([*JAVA[1].apis_command(), "messages"]).splitlines():
        key, version, side, theirs = line.split("\t")
        handler = handlers.get(int(key))
        if handler is None or int(version) > handler.max_version:
            continue
        response = framing.response_class(int(key))
        assert response is not None
        ours = text(handler.request if side == "request" else response, int(version))
        if int(key) == ApiKey.TXN_OFFSET_COMMIT:
            ours = ours.replace(*RENAMED)
        compared += 1
        if ours != theirs:
            wrong[key, version, side] = (ours, theirs)
    assert compared > 350
    assert not wrong
