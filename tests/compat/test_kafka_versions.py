"""The lists of Kafka's APIs that the tests hold plog to are those of Kafka's own releases."""

from __future__ import annotations

from tests.compat.programs import JAVA, Java, run_program
from tests.kafka_versions import KAFKA_3_9, KAFKA_4_4, Api


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
