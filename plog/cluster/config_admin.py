"""Configs of topics, brokers and groups: checks a change, writes it, leaves a notice of it.

Owns the operations of AlterConfigs and IncrementalAlterConfigs on the nodes below
/config; what changes nothing is not written. Applies nothing: every broker, this one
included, reads the notice (`config_changes`) and the configs anew.

Blocks on the coordination store; not for the asyncio loop. Any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from plog.cluster import topic_removals, znodes
from plog.cluster.store import (
    BadVersion,
    CheckOp,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    Op,
    SetOp,
    Store,
)
from plog.cluster.znodes import ConfigEntity, MalformedNode
from plog.errors import InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from plog.runtime.bounded_lines import BoundedLines
from plog.settings.alterations import Alteration, alter
from plog.settings.definitions import BrokerSettings, GroupSettings, TopicSettings
from plog.settings.dynamic import DynamicSettings
from plog.settings.keys import Fault, Settings
from plog.types import is_legal_topic_name

log = logging.getLogger(__name__)

_KNOWN = {**BrokerSettings.KEYS, **TopicSettings.KEYS, **GroupSettings.KEYS}


class ConfigAdmin:
    """Changes configs in the coordination store.

    Args:
        store: where configs are written.
        settings: checks them, and gives the value that an unset list begins with.
        broker_id: this broker: the only one whose own configs it can check.
        written: told of each change once it is written, so that this broker obeys it
            before the answer; others hear of it by the notice.
        refresh_topics: reads the configs of topics from the store, which other brokers write
            too. None for a broker whose store is its own.
    """

    def __init__(
        self,
        store: Store,
        settings: DynamicSettings,
        broker_id: int,
        written: Callable[[ConfigEntity], None] | None = None,
        refresh_topics: Callable[[Sequence[str]], object] | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._broker_id = broker_id
        self._written = written
        self.refresh_topics = refresh_topics
        self._lines = BoundedLines(log, "%d further config changes", least_level=logging.INFO)

    def alter(
        self,
        entity: ConfigEntity,
        alterations: Sequence[Alteration],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change some keys and leave the others.

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
            InvalidRequest: a key twice or not dynamic, an unknown operation, no value, another
                broker, a broker's configs that are wrong, a group without a name.
            InvalidConfig: configs of a topic or group that are unknown or wrong; configs that are
                no lists; a node that is unreadable.
                Everything that is wrong with values is named.
        """
        settings = self._settings

        def changed(present: Mapping[str, str]) -> tuple[dict[str, str], list[Fault]]:
            return alter(present, _inherited(settings, entity), alterations)

        self._write(entity, changed, validate_only=validate_only)

    def replace(
        self,
        entity: ConfigEntity,
        configs: Mapping[str, str | None],
        *,
        validate_only: bool = False,
    ) -> None:
        """Set these keys and no others. Raises as `alter`."""
        null = sorted(key for key, value in configs.items() if value is None)
        if null:
            raise InvalidRequest("; ".join(f"{key}: no value" for key in null))
        texts = {key: value for key, value in configs.items() if value is not None}
        self._write(entity, lambda present: (texts, []), validate_only=validate_only)

    def _write(
        self,
        entity: ConfigEntity,
        change: Callable[[Mapping[str, str]], tuple[Mapping[str, str], list[Fault]]],
        *,
        validate_only: bool,
    ) -> None:
        self._store.sync()  # what another broker confirmed counts here
        while True:
            self._check_can_alter(entity)
            is_topic = entity.kind == "topics"
            same_topic = [topic_removals.check_none_removed(self._store)] if is_topic else []
            try:
                data, stat = self._store.get(entity.path)
                version: int | None = stat.version
            except NoNode:
                data, version = b"", None
            try:
                present = znodes.decode_config(data)
            except MalformedNode as fault:
                raise InvalidConfig(f"{entity.path}: {fault}") from fault
            configs, faults = change(present)
            # As in Kafka: what is wrong with a topic's changes themselves is reported first.
            if not faults:
                self._check_exists(entity)
            self._check(entity, configs, faults)
            if validate_only:
                return
            if version is not None and configs == present:
                # Who keeps topics alike, as MirrorMaker does, sets them again and again.
                self._tell(entity)
                return
            write = _write_of(entity, configs, version)
            if write is None:
                return
            notice = CreateOp(
                znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(entity), sequential=True
            )
            try:
                self._store.multi([*self._controller_check(), *same_topic, write, notice])
            except (BadVersion, NodeExists, NoNode) as meanwhile:
                self._lines.info("retrying the write of %s: %s", entity.path, meanwhile)
                continue
            # Values may be as long as a request is.
            self._lines.info(
                "configs of %.300s: %.1000s", entity.entity_path, _shown(configs) or "none"
            )
            self._tell(entity)
            return

    def _tell(self, entity: ConfigEntity) -> None:
        if self._written is not None:
            self._written(entity)

    def _controller_check(self) -> list[Op]:
        # As Kafka's brokers do: no config is written under a controller that has changed.
        stat = self._store.exists(znodes.CONTROLLER)
        return [] if stat is None else [CheckOp(znodes.CONTROLLER, stat.version)]

    def _check_exists(self, entity: ConfigEntity) -> None:
        if entity.kind == "topics":
            name = entity.name
            if not is_legal_topic_name(name) or self._store.exists(znodes.topic_path(name)) is None:
                raise UnknownTopicOrPartition(f"topic {name[:300]!r} does not exist")

    def _check_can_alter(self, entity: ConfigEntity) -> None:
        if entity.kind == "topics":
            return
        if entity.kind == "groups":
            # The group need not exist yet: its members read its configs when they join.
            if not entity.name:
                raise InvalidRequest("groups have no default configs: name a group")
        elif entity.kind != "brokers":
            raise InvalidRequest(f"configs of {entity.kind} cannot be changed here")
        elif entity.name not in (znodes.DEFAULT_ENTITY, str(self._broker_id)):
            raise InvalidRequest(
                f"configs of broker {entity.name!r} were requested from broker {self._broker_id}"
            )

    def _check(
        self, entity: ConfigEntity, configs: Mapping[str, str], faults: Sequence[Fault]
    ) -> None:
        reasons = [f"{key}: {reason}" for key, reason in faults]
        try:
            self._check_values(entity, configs)
        except (InvalidConfig, InvalidRequest) as others:
            if not reasons:
                raise
            reasons.append(str(others))
        if reasons:
            raise InvalidConfig("; ".join(reasons))

    def _check_values(self, entity: ConfigEntity, configs: Mapping[str, str]) -> None:
        if entity.kind == "topics":
            self._settings.check_topic(configs)
        elif entity.kind == "groups":
            self._settings.check_group(configs)
        elif entity.name == znodes.DEFAULT_ENTITY:
            self._settings.check_cluster_default(configs)
        else:
            self._settings.check_broker(configs)


def _inherited(settings: DynamicSettings, entity: ConfigEntity) -> Settings:
    """Return the settings without the entity's own.

    Its own come from the store alone: those in force here may be older, or a deleted topic's.
    """
    match entity.kind:
        case "topics":
            return settings.check_topic({})
        case "groups":
            return settings.check_group({})
        case _ if entity.name == znodes.DEFAULT_ENTITY:
            return settings.static()
        case _:
            return settings.cluster_default()


def _write_of(entity: ConfigEntity, configs: Mapping[str, str], version: int | None) -> Op | None:
    """Return what writes configs in the place of a version (None: there is none).

    A group that nothing is set for has no node: nobody else would ever take it away.
    """
    if entity.kind == "groups" and not configs:
        return None if version is None else DeleteOp(entity.path, version)
    text = znodes.encode_config(configs)
    return CreateOp(entity.path, text) if version is None else SetOp(entity.path, text, version)


def _shown(configs: Mapping[str, str]) -> str:
    """Return configs for the log, without secrets; what nobody knows may be one."""
    shown = {name for name, declared in _KNOWN.items() if not declared.sensitive}
    return " ".join(
        f"{key}={value if key in shown else '[hidden]'}" for key, value in configs.items()
    )
