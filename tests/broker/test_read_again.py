"""A broker that has a new session reads what may have changed while it had none."""

from __future__ import annotations

from pathlib import Path

import pytest

from plog import broker as broker_module
from plog.cluster import config_changes
from plog.cluster.features import GROUP_VERSION, TRANSACTION_VERSION
from plog.cluster.store import SessionEvent
from plog.cluster.znodes import FEATURES, ConfigEntity, FeaturesNode, encode_config
from plog.wiring.parts import Parts, make_parts
from tests.handlers.running import Running
from tests.handlers.wire import create_topic
from tests.waiting import until


def test_changes_that_were_missed_are_in_force_in_the_new_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Parts] = []

    def making(*given: object, **named: object) -> Parts:
        made.append(make_parts(*given, **named))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(broker_module, "make_parts", making)
    monkeypatch.setattr(config_changes, "NOTICE_EXPIRY_MS", -2)  # all notices are gone
    running = Running(tmp_path)
    try:
        create_topic(running.wire, "t")
        member, services = made[0].member, made[0].services
        features, settings, store = services.features, services.settings, services.topics._store
        features._watch.cancel()  # it missed the change, too
        member._on_session(SessionEvent.LOST)
        store.set(ConfigEntity.topic("t").path, encode_config({"retention.ms": "4711"}))
        store.set(FEATURES, FeaturesNode({TRANSACTION_VERSION: 1, GROUP_VERSION: 1}).encode())
        member.note_connected()
        until(lambda: settings.topic("t").retention_ms == 4711, "settings are read")
        until(lambda: features.finalized.levels[TRANSACTION_VERSION] == 1, "features are read")
    finally:
        running.stop()
