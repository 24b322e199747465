# ruff: noqa: E501 - tables
"""Configs are checked, written with a notice, and heard by every broker."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from plog.cluster import config_changes
from plog.cluster.config_admin import ConfigAdmin
from plog.cluster.config_changes import NOTICE_EXPIRY_MS, ConfigChanges
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.store import DeleteOp, SetOp, Stat, Unreachable
from plog.cluster.topic_admin import NewTopic, TopicAdmin
from plog.cluster.znodes import CONFIG_CHANGES, ConfigEntity, ControllerNode, decode_config
from plog.errors import InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from plog.runtime.bounded_lines import AT_ONCE
from plog.runtime.clock import ManualClock
from plog.settings.alterations import Alteration, Operation
from plog.settings.definitions import BrokerSettings, TopicSettings
from plog.settings.dynamic import DynamicSettings
from tests.bounded import MANY, counted, stand_still, told
from tests.cluster.asked import calls_of
from tests.cluster.test_topic_admin import register
from tests.handlers.wire import eventually
from tests.waiting import until

PATIENCE_S = 60

SET, DELETE, APPEND, SUBTRACT = Operation
T = ConfigEntity.topic("t")
G = ConfigEntity.group("g")
SESSION = "consumer.session.timeout.ms"
ALL, OWN = ConfigEntity.broker(None), ConfigEntity.broker(0)


@pytest.fixture
def settings() -> DynamicSettings:
    return DynamicSettings(BrokerSettings({"broker.id": "0"}))


@pytest.fixture
def admin(embedded: EmbeddedStore, settings: DynamicSettings) -> ConfigAdmin:
    register(embedded, 0)
    TopicAdmin(embedded, settings).create(NewTopic("t", 1, 1, configs={"retention.ms": "9"}))
    return ConfigAdmin(embedded, settings, 0)


@pytest.fixture
def changes(embedded, settings, clock, admin) -> ConfigChanges:
    made = ConfigChanges(embedded, settings, broker_id=0, clock=clock)
    made.load()
    return made


def stored(store: EmbeddedStore, entity: ConfigEntity) -> dict[str, str]:
    return decode_config(store.get(entity.path)[0]) if store.exists(entity.path) else {}


ALTERED = [
    ([("segment.bytes", SET, "100")], {"retention.ms": "9", "segment.bytes": "100"}),
    ([("retention.ms", SET, "8")], {"retention.ms": "8"}),
    ([("retention.ms", DELETE, None)], {}),
    ([("segment.bytes", DELETE, None)], {"retention.ms": "9"}),
    # The default, delete, is what is appended to.
    ([("cleanup.policy", APPEND, "compact")], {"retention.ms": "9", "cleanup.policy": "delete,compact"}),
    ([("cleanup.policy", APPEND, "delete")], {"retention.ms": "9", "cleanup.policy": "delete"}),
    ([("cleanup.policy", SET, "compact, delete"), ("retention.ms", DELETE, None)], {"cleanup.policy": "compact, delete"}),
]  # fmt: skip


@pytest.mark.parametrize(("operations", "expected"), ALTERED)
def test_alterations_change_these_keys_and_leave_a_notice(
    admin, embedded, operations, expected
) -> None:
    alterations = [Alteration(*one) for one in operations]
    admin.alter(T, alterations, validate_only=True)
    assert embedded.children("/config/changes") == []
    assert stored(embedded, T) == {"retention.ms": "9"}
    admin.alter(T, alterations)
    assert stored(embedded, T) == expected
    if expected == {"retention.ms": "9"}:
        return
    (notice,) = embedded.children("/config/changes")
    assert notice == "config_change_0000000000"
    assert embedded.get(f"/config/changes/{notice}")[0] == b'{"version":2,"entity_path":"topics/t"}'


def test_what_is_so_already_is_not_written_again(admin, embedded, settings, caplog) -> None:
    """MirrorMaker sets what each topic has anew as long as it runs, every few seconds."""
    told: list[ConfigEntity] = []
    admin = ConfigAdmin(embedded, settings, 0, told.append)
    changes = [Alteration("retention.ms", SET, "8"), Alteration("segment.bytes", DELETE, None)]
    caplog.set_level(logging.INFO)
    admin.alter(T, changes)
    version = embedded.get(T.path)[1].version
    admin.alter(T, changes)
    admin.replace(T, {"retention.ms": "8"})
    assert embedded.get(T.path)[1].version == version
    assert len(embedded.children("/config/changes")) == 1
    assert [line.getMessage() for line in caplog.records] == ["configs of topics/t: retention.ms=8"]
    # It may be another broker's, of which this one has not heard.
    assert told == [T, T, T]


def test_subtracted_items_go_from_the_list(admin, embedded) -> None:
    admin.alter(T, [Alteration("cleanup.policy", SET, "compact,delete")])
    admin.alter(T, [Alteration("cleanup.policy", SUBTRACT, "delete")])
    assert stored(embedded, T)["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    ("entity", "apply"),
    [
        (T, lambda settings: settings.apply_topic("t", {"cleanup.policy": "compact"})),
        (OWN, lambda settings: settings.apply_broker({"log.cleanup.policy": "compact"})),
        (ALL, lambda settings: settings.apply_cluster_default({"log.cleanup.policy": "compact"})),
        (ALL, lambda settings: settings.apply_broker({"log.cleanup.policy": "compact"})),
    ],
    ids=["topic", "broker", "all brokers", "all brokers, this one differs"],
)
def test_list_that_is_not_set_begins_without_its_own_old_value(
    admin, embedded, settings, entity, apply
) -> None:
    apply(settings)  # this broker still obeys what the store does not have any more
    key = "cleanup.policy" if entity is T else "log.cleanup.policy"
    admin.alter(entity, [Alteration(key, APPEND, "delete")])
    assert stored(embedded, entity)[key] == "delete"


def test_list_that_is_not_set_begins_as_what_it_inherits(admin, embedded, settings) -> None:
    settings.apply_cluster_default({"log.cleanup.policy": "compact"})
    admin.alter(OWN, [Alteration("log.cleanup.policy", APPEND, "delete")])
    assert stored(embedded, OWN)["log.cleanup.policy"] == "compact,delete"
    settings.apply_broker({"log.cleanup.policy": "delete"})
    admin.alter(T, [Alteration("cleanup.policy", APPEND, "compact")])
    assert stored(embedded, T)["cleanup.policy"] == "delete,compact"


def test_replacement_keeps_nothing_else(admin, embedded) -> None:
    admin.replace(T, {"segment.bytes": "100"})
    assert stored(embedded, T) == {"segment.bytes": "100"}
    admin.replace(T, {})
    assert stored(embedded, T) == {}


@pytest.mark.parametrize("name", ["g", ".", "..", "a/b ü*", "<default>", "x" * 30_000])
def test_a_group_keeps_what_is_set_for_it_and_nothing_else(
    admin, changes, settings, embedded, clock, name
) -> None:
    entity = ConfigEntity.group(name)
    admin.alter(entity, [Alteration(SESSION, SET, "50000")])
    assert stored(embedded, entity) == {SESSION: "50000"}
    changes.process()
    assert settings.group(name).consumer_session_timeout_ms == 50_000
    again = DynamicSettings(BrokerSettings())
    ConfigChanges(embedded, again, broker_id=0, clock=clock).load()
    assert again.groups() == [name]
    assert again.group(name).consumer_session_timeout_ms == 50_000
    # A group has no node of its own that its end would take away.
    admin.replace(entity, {})
    assert embedded.children("/config/groups") == []
    changes.process()
    assert settings.groups() == []
    notices = embedded.children("/config/changes")
    admin.alter(entity, [Alteration(SESSION, DELETE, None)])
    assert embedded.children("/config/changes") == notices


REFUSED = [
    (T, [("no.such", SET, "1")], InvalidConfig),
    (T, [("retention.ms", SET, "soon")], InvalidConfig),
    (T, [("retention.ms", SET, None)], InvalidRequest),
    (T, [("retention.ms", 7, "1")], InvalidRequest),
    (T, [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], InvalidRequest),
    (T, [("segment.bytes", APPEND, "1")], InvalidConfig),
    (T, [("no.such", APPEND, "1")], InvalidConfig),
    (ConfigEntity.topic("nope"), [("retention.ms", SET, "1")], UnknownTopicOrPartition),
    (ConfigEntity.topic("a/b"), [("retention.ms", SET, "1")], UnknownTopicOrPartition),
    (ConfigEntity.broker(1), [("log.retention.ms", SET, "1")], InvalidRequest),
    (OWN, [("broker.id", SET, "4")], InvalidRequest),
    (ALL, [("broker.id", SET, "4")], InvalidRequest),
    (ALL, [("no.such", APPEND, "4")], InvalidConfig),
    (T, [("leader.replication.throttled.replicas", APPEND, "4")], InvalidConfig),
    (ConfigEntity((("users", "u"),)), [("x", SET, "1")], InvalidRequest),
    (G, [(SESSION, SET, "1")], InvalidConfig),
    (G, [("retention.ms", SET, "1")], InvalidConfig),
    (G, [(SESSION, APPEND, "50000")], InvalidConfig),
    (ConfigEntity.group(""), [(SESSION, SET, "50000")], InvalidRequest),
]  # fmt: skip


@pytest.mark.parametrize(("entity", "operations", "error"), REFUSED)
def test_refused_change_writes_nothing(admin, embedded, entity, operations, error) -> None:
    zxid = embedded._tree.zxid
    with pytest.raises(error):
        admin.alter(entity, [Alteration(*one) for one in operations])
    assert embedded._tree.zxid == zxid


@pytest.mark.parametrize("entity", [T, OWN, ALL])
def test_everything_that_is_wrong_is_named(admin, entity) -> None:
    prefix = "" if entity is T else "log."
    alterations = [
        Alteration(f"{prefix}cleanup.policy", APPEND, "nope"),
        Alteration(f"{prefix}retention.ms", SET, "soon"),
        Alteration(f"{prefix}segment.bytes", SUBTRACT, "1"),
        Alteration(f"{prefix}retention.bytes", SET, "many"),
    ]
    with pytest.raises(InvalidConfig) as refused:
        admin.alter(entity, alterations)
    assert sorted(part.partition(":")[0] for part in str(refused.value).split("; ")) == sorted(
        one.name for one in alterations
    )


def test_log_shows_no_value_that_may_be_a_secret(admin, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="plog.cluster.config_admin"):
        admin.alter(
            OWN, [Alteration("a.password", SET, "12"), Alteration("message.max.bytes", SET, "34")]
        )
        admin.alter(T, [Alteration("retention.ms", SET, "56")])
    assert "a.password=[hidden] message.max.bytes=34" in caplog.text
    assert "retention.ms=56" in caplog.text


def test_change_that_lost_a_race_is_made_on_what_is_there(
    admin, embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.create("/controller", ControllerNode(0, 1).encode())
    multi, raced = embedded.multi, []

    def race(ops):
        if not raced:
            raced.append(True)
            multi([SetOp(T.path, b'{"version":1,"config":{"segment.bytes":"77"}}')])
        return multi(ops)

    monkeypatch.setattr(embedded, "multi", race)
    admin.alter(T, [Alteration("retention.ms", SET, "5")])
    assert stored(embedded, T) == {"segment.bytes": "77", "retention.ms": "5"}


def test_notices_are_applied_in_order_once_and_removed_when_old(
    admin, embedded, settings, changes, clock: ManualClock
) -> None:
    assert settings.topic("t").retention_ms == 9
    heard: list[str] = []
    settings.on_topic_change(lambda name, made: heard.append(f"{name}={made.retention_ms}"))
    admin.alter(T, [Alteration("retention.ms", SET, "1")])
    admin.alter(ALL, [Alteration("log.retention.bytes", SET, "2")])
    admin.alter(OWN, [Alteration("log.retention.bytes", SET, "3")])
    changes.process()
    changes.process()
    assert heard == ["t=1"]
    assert settings.topic("t").retention_bytes == 3
    clock.advance(NOTICE_EXPIRY_MS + 1)
    admin.alter(OWN, [Alteration("log.retention.bytes", DELETE, None)])
    changes.process()
    assert settings.topic("t").retention_bytes == 2
    assert embedded.children("/config/changes") == ["config_change_0000000003"]


def test_of_many_notices_the_oldest_go(admin, embedded, settings, changes, monkeypatch) -> None:
    monkeypatch.setattr(config_changes, "MOST_NOTICES", 10)
    monkeypatch.setattr(config_changes, "LEFT_OF_MANY", 4)
    for number in range(10):
        admin.alter(T, [Alteration("retention.ms", SET, str(number))])
    changes.process()
    assert len(embedded.children(CONFIG_CHANGES)) == 10
    for number in range(10, 13):
        admin.alter(T, [Alteration("retention.ms", SET, str(number))])
        changes.process()
    assert embedded.children(CONFIG_CHANGES) == [
        f"config_change_{number:010d}" for number in (7, 8, 9, 10, 11, 12)
    ]
    assert settings.topic("t").retention_ms == 12


def test_oldest_of_many_go_one_by_one_where_another_removes_them(
    admin, embedded, changes, monkeypatch
) -> None:
    monkeypatch.setattr(config_changes, "MOST_NOTICES", 5)
    monkeypatch.setattr(config_changes, "LEFT_OF_MANY", 2)
    for number in range(7):
        admin.alter(T, [Alteration("retention.ms", SET, str(number))])
    children, multi = embedded.children, embedded.multi

    def race(path: str) -> list[str]:
        found = children(path)
        if path == CONFIG_CHANGES and len(found) == 7:
            multi([DeleteOp(f"{CONFIG_CHANGES}/{found[1]}")])
        return found

    monkeypatch.setattr(embedded, "children", race)
    changes.process()
    assert embedded.children(CONFIG_CHANGES) == [
        "config_change_0000000005",
        "config_change_0000000006",
    ]


def test_who_has_missed_notices_reads_all_configs(
    admin, embedded, settings, changes, clock, monkeypatch
) -> None:
    other = DynamicSettings(BrokerSettings({"broker.id": "1"}))
    late = ConfigChanges(embedded, other, broker_id=1, clock=clock)
    late.load()
    admin.alter(T, [Alteration("retention.ms", SET, "1")])
    late.process()
    monkeypatch.setattr(config_changes, "MOST_NOTICES", 3)
    monkeypatch.setattr(config_changes, "LEFT_OF_MANY", 2)
    admin.alter(T, [Alteration("retention.ms", SET, "2")])
    for number in range(5):
        admin.alter(ALL, [Alteration("log.retention.bytes", SET, str(number + 1))])
    changes.process()
    assert len(embedded.children(CONFIG_CHANGES)) == 2
    late.process()
    assert other.topic("t").retention_ms == 2
    assert other.topic("t").retention_bytes == 5


def test_lines_of_changed_configs_are_bounded_and_none_is_long(admin, caplog, monkeypatch) -> None:
    stand_still(monkeypatch)
    admin = ConfigAdmin(admin._store, admin._settings, 0)
    long = ",".join(f"{n}:{n}" for n in range(10_000))
    with caplog.at_level(logging.INFO):
        admin.alter(T, [Alteration("leader.replication.throttled.replicas", SET, long)])
        for number in range(MANY - 1):
            admin.alter(T, [Alteration("retention.ms", SET, str(number))])
        until(lambda: counted(caplog, r"(\d+) further config changes") == MANY - AT_ONCE)
    assert told(caplog, "configs of topics/t") == AT_ONCE
    assert max(len(one.getMessage()) for one in list(caplog.records)) < 1100


def test_notice_and_config_that_nobody_can_read_are_reported_and_passed_over(
    admin, embedded, settings, changes, caplog: pytest.LogCaptureFixture
) -> None:
    embedded.create("/config/changes/config_change_", b"junk", sequential=True)
    embedded.set(T.path, b"junk")
    embedded.create(
        "/config/changes/config_change_", b'{"version":2,"entity_path":"topics/t"}', sequential=True
    )
    admin.alter(ALL, [Alteration("log.retention.bytes", SET, "2")])
    changes.process()
    assert settings.topic("t").retention_bytes == 2
    assert "is ignored" in caplog.text
    assert "are ignored" in caplog.text


def test_topic_with_malformed_configs_keeps_those_in_force(
    admin, embedded, settings, changes, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller's thread reads them, and ended."""
    in_force = settings.topic("t")
    embedded.set(T.path, b"junk")
    assert changes.topic_settings(["t"]) == {"t": in_force}
    assert f"configs at {T.path} are ignored" in caplog.text


def test_configs_of_users_and_clients_go_to_whoever_wants_them(embedded, settings, clock) -> None:
    register(embedded, 0)
    heard = []
    changes = ConfigChanges(
        embedded, settings, broker_id=0, clock=clock, other=lambda *one: heard.append(one)
    )
    changes.load()
    user = ConfigEntity((("users", "ann"),))
    embedded.create(user.path, b'{"version":1,"config":{"producer_byte_rate":"5"}}')
    embedded.create(
        "/config/changes/config_change_",
        b'{"version":2,"entity_path":"users/ann"}',
        sequential=True,
    )
    changes.process()
    assert heard == [(user, {"producer_byte_rate": "5"})]


def test_configs_that_were_just_read_are_not_read_again(changes, embedded, monkeypatch) -> None:
    """Every broker that registers asks for it, at its start too."""
    asked = calls_of(monkeypatch, embedded)
    changes.read_again()
    changes.process()
    assert asked == ["children"]


@pytest.mark.parametrize("failure", [Unreachable("no answer"), ValueError("a bug")])
def test_configs_are_read_again_once_notices_may_have_been_removed(
    admin, changes, embedded, settings, clock, monkeypatch, failure: Exception
) -> None:
    def fail(paths: object) -> None:
        raise failure

    admin.alter(T, [Alteration("retention.ms", SET, "5")])
    for name in embedded.children(CONFIG_CHANGES):
        embedded.delete(f"{CONFIG_CHANGES}/{name}")
    clock.suspend(NOTICE_EXPIRY_MS)
    changes.process()
    assert settings.topic("t").retention_ms == 9
    changes.read_again()
    with monkeypatch.context() as patch:
        patch.setattr(embedded, "get_many", fail)
        with pytest.raises(type(failure)):
            changes.process()
    changes.process()
    assert settings.topic("t").retention_ms == 5


class Counting:
    """A store that counts what is asked of it about notices."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.lists = 0
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def children(self, path: str) -> list[str]:
        self.lists += path == CONFIG_CHANGES
        return self._store.children(path)

    def get(self, path: str) -> tuple[bytes, Stat]:
        self.reads += path.startswith(CONFIG_CHANGES)
        return self._store.get(path)


def test_notices_that_were_heard_cost_nothing_when_another_comes(
    admin, embedded, settings, clock
) -> None:
    store = Counting(embedded)
    changes = ConfigChanges(store, settings, broker_id=0, clock=clock)
    changes.load()
    for number in range(100):
        admin.alter(T, [Alteration("retention.ms", SET, str(number + 1))])
    changes.process()
    assert store.reads == 100
    admin.alter(T, [Alteration("retention.ms", SET, "7")])
    changes.process()
    assert store.reads == 101
    assert settings.topic("t").retention_ms == 7


def test_changes_that_come_faster_than_they_are_applied_are_read_together(
    admin, embedded, settings, clock
) -> None:
    store = Counting(embedded)
    changes = ConfigChanges(store, settings, broker_id=0, clock=clock)
    changes.load()
    applying, go_on = threading.Event(), threading.Event()

    def hold(name: str, made: TopicSettings) -> None:
        applying.set()
        assert go_on.wait(PATIENCE_S)

    settings.on_topic_change(hold)
    changes.start()
    try:
        admin.alter(T, [Alteration("retention.ms", SET, "1")])
        assert applying.wait(PATIENCE_S)
        lists = store.lists
        for number in range(100):
            admin.alter(T, [Alteration("retention.ms", SET, str(number + 2))])
        go_on.set()
        eventually(lambda: settings.topic("t").retention_ms == 101, "all are applied")
    finally:
        go_on.set()
        changes.stop()
    assert store.lists - lists <= 2
