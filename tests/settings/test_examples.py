"""The example files in config/ are right, and say what the defaults are."""

from __future__ import annotations

from pathlib import Path

import pytest

from plog.settings import BrokerSettings
from plog.settings.properties import load_properties
from plog.settings.server_properties import read

CONFIG = Path(__file__).parents[2] / "config"
SERVERS = sorted(CONFIG.glob("server*.properties"))


@pytest.mark.parametrize("path", SERVERS, ids=lambda path: path.name)
def test_server_example_is_accepted_without_a_warning(path):
    settings, warnings = read(path)
    assert warnings == []
    assert settings.broker_id >= 0


def test_server_example_states_defaults_except_the_brokers_number_and_pages():
    settings, _ = read(CONFIG / "server.properties")
    plain = BrokerSettings()
    differing = {name for name in settings.given if settings.value(name) != plain.value(name)}
    assert differing == {"broker.id", "metrics.listener"}


def test_client_example_is_properties():
    keys = {entry.key for entry in load_properties(CONFIG / "client.properties")}
    assert {"bootstrap.servers", "acks", "auto.offset.reset"} <= keys
