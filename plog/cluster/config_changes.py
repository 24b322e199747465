"""Hears of changed configs and applies them to this broker's settings.

Owns the watch on /config/changes, the order of the notices and their removal (by any
broker): after a quarter of an hour, and the oldest when there are many, for whoever may
alter configs could fill the memory with them. A notice only names what has changed; the
configs are read anew, so notices may be heard twice or out of date without harm, and who
has missed one, as their numbers tell, reads all configs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from plog.cluster import znodes
from plog.cluster.store import (
    DeleteOp,
    NoNode,
    SessionLost,
    Store,
    StoreError,
    Unreachable,
    Watch,
    join,
)
from plog.cluster.store_follower import StoreFollower
from plog.cluster.znodes import ConfigEntity, MalformedNode
from plog.runtime.clock import Clock
from plog.settings.definitions import TopicSettings

log = logging.getLogger(__name__)

NOTICE_EXPIRY_MS = 15 * 60 * 1000
MOST_NOTICES, LEFT_OF_MANY = 1000, 500
"""So many notices are kept at most; when there are more, these newest ones are left."""
SWEEP_EVERY_MS = 60 * 1000
"""How often notices are looked at for their age, at most: there may be tens of thousands."""


class AppliedSettings(Protocol):
    """The settings that configs change; `settings.dynamic.DynamicSettings`."""

    def topic(self, name: str, /) -> TopicSettings:
        """Return the settings of a topic."""
        ...

    def apply_topic(self, name: str, overrides: Mapping[str, str], /) -> None:
        """Replace the overrides of a topic."""
        ...

    def apply_group(self, name: str, overrides: Mapping[str, str], /) -> None:
        """Replace the overrides of a group."""
        ...

    def apply_broker(self, configs: Mapping[str, str], /) -> None:
        """Replace the settings of this broker."""
        ...

    def apply_cluster_default(self, configs: Mapping[str, str], /) -> None:
        """Replace the settings of all brokers."""
        ...


OtherConfigs = Callable[[ConfigEntity, Mapping[str, str]], None]


class ConfigChanges:
    """Keeps this broker's settings in step with the coordination store.

    `load` and `topic_settings` run on the caller's thread; after `start`, notices are
    applied on a thread of its own.

    Args:
        store: where configs are.
        settings: what they are applied to.
        broker_id: whose broker configs count here.
        clock: tells which notices are old.
        other: told of the configs of clients, users and addresses.
    """

    def __init__(
        self,
        store: Store,
        settings: AppliedSettings,
        *,
        broker_id: int,
        clock: Clock,
        other: OtherConfigs | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._broker_id = broker_id
        self._clock = clock
        self._other = other
        self._last = -1
        self._must_read_all = False
        self._read_all_ms = 0
        """When all configs were read, by a clock that goes on while the host is suspended."""
        self._watch: Watch | None = None
        # Held from reading to applying, so that what is applied last was read last.
        self._applying = threading.Lock()
        self._next_sweep_ms = clock.monotonic_ms()
        self._follower = StoreFollower("config changes", self.process)

    # -- at start-up ---------------------------------------------------------------------------

    def load(self) -> None:
        """Apply everything that is set now; notices already there are then old news."""
        notices = self._store.children(znodes.CONFIG_CHANGES)
        self._apply_all()
        self._last = max(map(_number, notices), default=-1)

    def _apply_all(self) -> None:
        begun_ms = self._clock.since_boot_ms()
        self._apply(ConfigEntity.broker(None))
        self._apply(ConfigEntity.broker(self._broker_id))
        self.topic_settings(self._store.children("/config/topics"))
        for name in self._store.children(znodes.CONFIG_GROUPS):
            self._apply(ConfigEntity.from_entity_path(f"groups/{name}"))
        self._read_all_ms = begun_ms

    def start(self) -> None:
        """Apply changes from now on."""
        self._watch = self._store.watch_children(znodes.CONFIG_CHANGES, self._follower.note_change)
        self._follower.start()

    def read_again(self) -> None:
        """Read all configs, soon, if notices may have been missed and removed since.

        Those of the last minutes are still there: a broker that starts has just read all configs.
        """
        if self._clock.since_boot_ms() - self._read_all_ms > NOTICE_EXPIRY_MS // 2:
            self._must_read_all = True
        self._follower.note_change()

    def stop(self) -> None:
        """End the thread."""
        if self._watch is not None:
            self._watch.cancel()
        self._follower.stop()

    def topic_settings(self, names: Sequence[str]) -> dict[str, TopicSettings]:
        """Read topics' configs and apply them: their creation leaves no notice.

        A store elsewhere is asked for many at a time: it takes a while to answer each.
        """
        topics = [ConfigEntity.topic(name) for name in names]
        with self._applying:
            self._store.sync()  # another broker may have written them just now
            found = self._store.get_many([topic.path for topic in topics])
            for topic, node in zip(topics, found, strict=True):
                self._apply_data(topic, b"" if node is None else node[0])
            return {name: self._settings.topic(name) for name in names}

    def refresh(self, entity: ConfigEntity) -> None:
        """Apply what is set now, before its notice is heard: for whoever has just written it."""
        self._apply(entity)

    # -- the thread ----------------------------------------------------------------------------

    def process(self) -> None:
        """Apply the notices not heard yet, in order, and now and then remove old ones.

        What is left of either when the broker stops is done at its next start.
        """
        names: Sequence[str] = sorted(self._store.children(znodes.CONFIG_CHANGES), key=_number)
        oldest = next((number for number in map(_number, names) if number >= 0), 0)
        if self._must_read_all or 0 <= self._last < oldest - 1:
            log.info("config change notices may have been missed: reading all configs")
            self._must_read_all = False
            try:
                self._apply_all()
            except Exception:
                self._must_read_all = True
                raise
        for name in names:
            if _number(name) > self._last and not self._follower.is_stopping:
                self._hear(name)
        if len(names) > MOST_NOTICES and not self._follower.is_stopping:
            names = self._keep_newest(names)
        if self._clock.monotonic_ms() >= self._next_sweep_ms:
            self._next_sweep_ms = self._clock.monotonic_ms() + SWEEP_EVERY_MS
            self._sweep(names)

    def _hear(self, name: str) -> None:
        path = join(znodes.CONFIG_CHANGES, name)
        try:
            data, _ = self._store.get(path)
        except NoNode:
            return  # another broker removed it; it was old
        try:
            self._apply(znodes.decode_config_change(data))
        except MalformedNode as fault:
            log.error("%s is ignored: %s", path, fault)
        self._last = _number(name)

    def _keep_newest(self, names: Sequence[str]) -> Sequence[str]:
        """Remove the oldest of many notices; return those that are left."""
        old, kept = names[:-LEFT_OF_MANY], names[-LEFT_OF_MANY:]
        paths = [join(znodes.CONFIG_CHANGES, name) for name in old]
        try:
            self._store.multi([DeleteOp(path) for path in paths])
        except NoNode:
            for path in paths:  # another broker removes them too
                self._remove(path)
        except (SessionLost, Unreachable):
            raise
        except StoreError as refused:
            log.warning("cannot delete %d config change notices: %s", len(paths), refused)
            return names
        return kept

    def _sweep(self, names: Sequence[str]) -> None:
        """Remove notices that every broker has had time to read."""
        for name in names:
            path = join(znodes.CONFIG_CHANGES, name)
            stat = self._store.exists(path)
            if self._follower.is_stopping:
                return
            if stat is not None and self._clock.now_ms() - stat.ctime_ms > NOTICE_EXPIRY_MS:
                self._remove(path)

    def _remove(self, path: str) -> None:
        try:
            self._store.delete(path)
        except NoNode:
            log.debug("another broker has removed %s", path)
        except (SessionLost, Unreachable):
            raise
        except StoreError as refused:
            log.warning("cannot delete %s: %s", path, refused)

    def _apply(self, entity: ConfigEntity) -> None:
        with self._applying:
            self._read_and_apply(entity)

    def _read_and_apply(self, entity: ConfigEntity) -> None:
        try:
            data, _ = self._store.get(entity.path)
        except NoNode:
            data = b""
        self._apply_data(entity, data)

    def _apply_data(self, entity: ConfigEntity, data: bytes) -> None:
        try:
            configs = znodes.decode_config(data)
        except MalformedNode as fault:
            log.error("configs at %s are ignored: %s", entity.path, fault)
            return
        if entity.kind == "topics":
            self._settings.apply_topic(entity.name, configs)
        elif entity.kind == "groups":
            self._settings.apply_group(entity.name, configs)
        elif entity.kind != "brokers":
            if self._other is not None:
                self._other(entity, configs)
        elif entity.name == znodes.DEFAULT_ENTITY:
            self._settings.apply_cluster_default(configs)
        elif entity.name == str(self._broker_id):
            self._settings.apply_broker(configs)


def _number(name: str) -> int:
    """Return the sequence number at the end of a notice's name."""
    digits = name[-10:]
    return int(digits) if digits.isdigit() else -1
