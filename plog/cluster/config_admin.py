"""Configs of topics and brokers: checks a change, writes it, leaves a notice of it.

Owns the operations of AlterConfigs and IncrementalAlterConfigs on the nodes below
/config. Applies nothing: every broker, this one included, reads the notice
(`config_changes`) and the configs anew.

Blocks on the coordination store; not for the asyncio loop. Any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from plog.cluster import znodes
from plog.cluster.store import (
    BadVersion,
    CheckOp,
    CreateOp,
    NodeExists,
    NoNode,
    Op,
    SetOp,
    Store,
)
from plog.cluster.znodes import ConfigEntity
from plog.errors import InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from plog.runtime.bounded_lines import BoundedLines
from plog.settings.alterations import Alteration, alter
from plog.settings.definitions import BrokerSettings, TopicSettings
from plog.settings.dynamic import DynamicSettings
from plog.settings.keys import Fault
from plog.types import is_legal_topic_name

log = logging.getLogger(__name__)

_KNOWN = {**BrokerSettings.KEYS, **TopicSettings.KEYS}


class ConfigAdmin:
    """Changes configs in the coordination store.

    Args:
        store: where configs are written.
        settings: checks them, and knows what a list that is appended to holds now.
        broker_id: this broker: the only one whose own configs it can check.
        written: told of each change once it is written, so that this broker obeys it
            before the answer; others hear of it by the notice.
    """

    def __init__(
        self,
        store: Store,
        settings: DynamicSettings,
        broker_id: int,
        written: Callable[[ConfigEntity], None] | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._broker_id = broker_id
        self._written = written
        self._lines = BoundedLines(log, "%d further changes of configs", least_level=logging.INFO)

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
                broker, a broker's configs that are wrong.
            InvalidConfig: configs of a topic that are unknown or wrong; configs that are no lists.
                Everything that is wrong with values is named.
        """
        settings = self._settings

        def changed(present: Mapping[str, str]) -> tuple[dict[str, str], list[Fault]]:
            is_topic = entity.kind == "topics"
            inherited = settings.topic(entity.name) if is_topic else settings.broker()
            return alter(present, inherited, alterations)

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
        while True:
            self._check_exists(entity)
            try:
                data, stat = self._store.get(entity.path)
                version: int | None = stat.version
            except NoNode:
                data, version = b"", None
            present = znodes.decode_config(data)
            configs, faults = change(present)
            self._check(entity, configs, faults)
            if validate_only:
                return
            text = znodes.encode_config(configs)
            write: Op = (
                CreateOp(entity.path, text)
                if version is None
                else SetOp(entity.path, text, version)
            )
            notice = CreateOp(
                znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(entity), sequential=True
            )
            try:
                self._store.multi([*self._controller_check(), write, notice])
            except (BadVersion, NodeExists, NoNode) as meanwhile:
                self._lines.info("writing %s again: %s", entity.path, meanwhile)
                continue
            # Values may be as long as a request is.
            self._lines.info(
                "configs of %s: %.1000s", entity.entity_path, _shown(configs) or "none"
            )
            if self._written is not None:
                self._written(entity)
            return

    def _controller_check(self) -> list[Op]:
        # As Kafka's brokers do: no config is written under a controller that has changed.
        stat = self._store.exists(znodes.CONTROLLER)
        return [] if stat is None else [CheckOp(znodes.CONTROLLER, stat.version)]

    def _check_exists(self, entity: ConfigEntity) -> None:
        if entity.kind == "topics":
            name = entity.name
            if not is_legal_topic_name(name) or self._store.exists(znodes.topic_path(name)) is None:
                raise UnknownTopicOrPartition(f"topic {name[:300]!r} does not exist")
        elif entity.kind != "brokers":
            raise InvalidRequest(f"configs of {entity.kind} can not be changed here")
        elif entity.name not in (znodes.DEFAULT_ENTITY, str(self._broker_id)):
            raise InvalidRequest(
                f"configs of broker {entity.name!r} asked of broker {self._broker_id}"
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
        elif entity.name == znodes.DEFAULT_ENTITY:
            self._settings.check_cluster_default(configs)
        else:
            self._settings.check_broker(configs)


def _shown(configs: Mapping[str, str]) -> str:
    """Return configs for the log, without secrets; what nobody knows may be one."""
    shown = {name for name, declared in _KNOWN.items() if not declared.sensitive}
    return " ".join(
        f"{key}={value if key in shown else '[hidden]'}" for key, value in configs.items()
    )
