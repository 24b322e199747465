"""What a Kafka 4 may have in its server.properties."""

from __future__ import annotations

import re

from plog.settings.definitions import BrokerSettings
from plog.settings.kafka_only import KAFKA_ONLY, REFUSED
from tests.compat.live_kafka import KAFKA_4_1


def test_every_key_of_kafka_is_known() -> None:
    page = KAFKA_4_1.run("KafkaConfig")  # which writes that part of Kafka's documentation
    names = set(re.findall(r'<h4><a id="([^"]+)"', page))
    assert len(names) > 300
    assert names - BrokerSettings.KEYS.keys() <= KAFKA_ONLY.keys() | REFUSED.keys()
