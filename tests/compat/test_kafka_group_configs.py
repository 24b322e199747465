"""`kafka-configs` of Kafka 4, where groups have settings of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from tests.compat.kafka_tools import TOOLS
from tests.coordinator.conftest import await_coordinator
from tests.coordinator.members import Consumer
from tests.handlers.wire import create_topic, speak
from tests.servers import BrokerProcess

KAFKA_4_1 = TOOLS[1]
SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
GROUP = ("--entity-type", "groups", "--entity-name", "g")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("groups")) as running:
        yield running


def test_settings_of_a_group_are_described_altered_listed_and_obeyed(broker: BrokerProcess) -> None:
    configs = partial(KAFKA_4_1.run, "ConfigCommand", "--bootstrap-server", broker.bootstrap)
    with closing(speak(broker.port)) as wire, closing(Consumer(broker.port, "g", ("t",))) as member:
        await_coordinator(wire, "g")
        create_topic(wire, "t")
        assert member.join().heartbeat_interval_ms == 5_000

        everything = configs(*GROUP, "--describe", "--all")
        assert f"{SESSION}=45000 sensitive=false" in everything
        refused = (*GROUP, "--alter", "--add-config", f"{SESSION}=60001")
        assert configs(*refused, status=1) == ""
        added = f"{SESSION}=50000,{INTERVAL}=6000"
        told = configs("--group", "g", "--alter", "--add-config", added)
        assert "Completed updating config for group g." in told
        assert member.beat().heartbeat_interval_ms == 6_000

        described = configs("--entity-type", "groups", "--describe")
        assert "Dynamic configs for group g are:" in described
        for line in (f"{SESSION}=50000", f"{INTERVAL}=6000"):
            assert f"{line} sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:{line}, " in described
        configs(*GROUP, "--alter", "--delete-config", f"{SESSION},{INTERVAL}")
        assert SESSION not in configs("--entity-type", "groups", "--describe")
        assert member.beat().heartbeat_interval_ms == 5_000
        member.leave()
