"""The settings in force: the file's, and over them what was set while brokers run (KIP-226).

Owns the layers (static file, cluster default, this broker, each topic and group), the
snapshots made of them, and their description for DescribeConfigs. Never writes:
who changes a setting checks it here, writes it to the coordination store, and
every broker that is told applies it. A snapshot is immutable; whoever keeps one
subscribes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from plog.errors import InvalidRequest
from plog.settings.definitions import (
    NOTHING,
    BrokerSettings,
    EntitySettings,
    GroupSettings,
    TopicSettings,
)
from plog.settings.kafka_only import REFUSED, why_without_effect
from plog.settings.keys import ConfigType, EntityKey, Fault, Key, Update, unknown_key

logger = logging.getLogger(__name__)


THREAD_COUNTS = ("background.threads", "log.cleaner.threads", "num.io.threads")
"""Keys whose changes Kafka limits (DynamicThreadPool, LogCleaner)."""


class ConfigSource(IntEnum):
    """Where a value comes from, as DescribeConfigs v1 and later says it."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    LOGGER = 6
    GROUP = 8


class ConfigSynonym(NamedTuple):
    """A value that counts, or would count without those before it."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One key as DescribeConfigs shows it; `value` is None when unset and for secrets."""

    name: str
    value: str | None
    source: ConfigSource
    sensitive: bool
    read_only: bool
    type: ConfigType
    doc: str
    synonyms: tuple[ConfigSynonym, ...]


def _chains() -> dict[str, tuple[str, ...]]:
    """Broker keys that stand for others in another unit: each with those it falls back on."""
    chains: dict[str, tuple[str, ...]] = {"log.dirs": ("log.dir",)}
    for declared in TopicSettings.KEYS.values():
        assert isinstance(declared, EntityKey)
        names = tuple(synonym.key.name for synonym in declared.synonyms)
        for at, name in enumerate(names):
            chains.setdefault(name, names[at + 1 :])
    return chains


_FALLBACKS = _chains()


class DynamicSettings:
    """The current settings of the broker, of every topic and of every group.

    Reading takes no lock and is safe from any thread. Changes are applied one
    at a time; subscribers are called by the thread that applies, without a lock,
    after the new snapshots are in force.
    """

    def __init__(self, static: BrokerSettings) -> None:
        """Begin with what the file says and nothing changed."""
        self._static = static
        # What the store told, faults and all: a later change elsewhere may make it right.
        self._told_cluster_default: Mapping[str, str] = NOTHING
        self._told_broker: Mapping[str, str] = NOTHING
        self._told_topics: dict[str, Mapping[str, str]] = {}
        self._told_groups: dict[str, Mapping[str, str]] = {}
        # What of it is in force.
        self._cluster_default: Mapping[str, str] = NOTHING
        self._this_broker: Mapping[str, str] = NOTHING
        self._broker = static
        self._plain_topic = TopicSettings(static)
        self._topics: dict[str, TopicSettings] = {}
        self._plain_group = GroupSettings(static)
        self._groups: dict[str, GroupSettings] = {}
        self._lock = threading.Lock()
        self._remarks = _Remarks()
        self._broker_listeners: list[Callable[[BrokerSettings], None]] = []
        self._topic_listeners: list[Callable[[str, TopicSettings], None]] = []

    # -- the current snapshots

    def broker(self) -> BrokerSettings:
        """Return the broker's settings of now."""
        return self._broker

    def static(self) -> BrokerSettings:
        """Return the broker's settings from the file."""
        return self._static

    def cluster_default(self) -> BrokerSettings:
        """Return the broker's settings of now without this broker's own."""
        return type(self._static)({**self._static.given, **self._cluster_default})

    def topic(self, name: str) -> TopicSettings:
        """Return a topic's settings of now; those of a topic without its own are all one object."""
        return self._topics.get(name, self._plain_topic)

    def group(self, name: str) -> GroupSettings:
        """Return a group's settings of now; those of a group without its own are all one object."""
        return self._groups.get(name, self._plain_group)

    def groups(self) -> list[str]:
        """Return the groups that something is set for."""
        return list(self._groups)

    # -- subscriptions

    def on_broker_change(self, listener: Callable[[BrokerSettings], None]) -> None:
        """Call `listener` after every change of the broker's settings.

        Topics' settings may have changed with them: who keeps any asks `topic` again.
        """
        self._broker_listeners.append(listener)

    def on_topic_change(self, listener: Callable[[str, TopicSettings], None]) -> None:
        """Call `listener` after every change of a topic's own settings."""
        self._topic_listeners.append(listener)

    # -- checks, for those who are about to write

    def check_topic(self, overrides: Mapping[str, str]) -> TopicSettings:
        """Return what a topic's settings would be with these overrides and no others.

        Raises:
            InvalidConfig: naming every key that is wrong, and why.
        """
        return TopicSettings(self._broker, overrides) if overrides else self._plain_topic

    def check_group(self, overrides: Mapping[str, str]) -> GroupSettings:
        """Return what a group's settings would be with these overrides and no others.

        Raises:
            InvalidConfig: naming every key that is wrong, and why.
        """
        return GroupSettings(self._broker, overrides)

    def check_broker(self, configs: Mapping[str, str]) -> BrokerSettings:
        """Return what this broker's settings would be with these of its own and no others.

        Unknown keys are no fault: as in Kafka, they may be some plugin's.

        Raises:
            InvalidRequest: naming every key that is wrong, not dynamic, or changed too much.
        """
        faults = self._not_dynamic(configs, cluster_default=False)
        return self._checked(faults, {**self._cluster_default, **configs})

    def check_cluster_default(self, configs: Mapping[str, str]) -> BrokerSettings:
        """Return what this broker's settings would be with these defaults of the cluster.

        Unknown keys are no fault.

        Raises:
            InvalidRequest: naming every key that is wrong or not dynamic for all, and why.
        """
        faults = self._not_dynamic(configs, cluster_default=True)
        return self._checked(faults, {**configs, **self._this_broker})

    def _checked(self, not_dynamic: list[Fault], dynamic: Mapping[str, str]) -> BrokerSettings:
        known = {name: text for name, text in dynamic.items() if name in self._static.KEYS}
        texts = {**self._static.given, **known}
        faulty = {fault.key for fault in not_dynamic}
        others = [fault for fault in type(self._static).faults(texts) if fault.key not in faulty]
        if not (faults := [*not_dynamic, *others]):
            changed = type(self._static)(texts)
            if not (faults := self._thread_count_faults(changed)):
                return changed
        # As in Kafka: only a topic's configs are INVALID_CONFIG.
        raise InvalidRequest("; ".join(f"{key}: {reason}" for key, reason in faults))

    def _thread_count_faults(self, changed: BrokerSettings) -> list[Fault]:
        """Return the thread counts that change to 0, to less than half, or to more than double."""
        faults = []
        for name in THREAD_COUNTS:
            count, current = changed.value(name), self._broker.value(name)
            assert isinstance(count, int)
            assert isinstance(current, int)
            if count == current:
                continue
            if count < 1:
                faults.append(Fault(name, f"{count} is below 1"))
            elif count < current // 2:
                faults.append(Fault(name, f"{count} is below half of the current {current}"))
            elif count > current * 2:
                faults.append(Fault(name, f"{count} is above double the current {current}"))
        return faults

    def _not_dynamic(self, configs: Mapping[str, str], *, cluster_default: bool) -> list[Fault]:
        faults = []
        for name in configs:
            declared = self._static.KEYS.get(name)
            if declared is None:
                if name in REFUSED:
                    faults.append(Fault(name, REFUSED[name]))
            elif declared.update is Update.READ_ONLY:
                faults.append(Fault(name, "cannot be changed while the broker runs"))
            elif declared.update is Update.PER_BROKER and cluster_default:
                faults.append(Fault(name, "can be set only for one broker"))
        return faults

    # -- changes, as the coordination store tells of them

    def apply_broker(self, configs: Mapping[str, str]) -> None:
        """Take `configs` for all that is set for this broker.

        What is wrong was not checked by whoever wrote it; it is logged and left out.
        """
        with self._lock:
            self._told_broker = dict(configs)
            self._renew()
        self._tell()

    def apply_cluster_default(self, configs: Mapping[str, str]) -> None:
        """Take `configs` for all that is set for every broker.

        What is wrong was not checked by whoever wrote it; it is logged and left out.
        """
        with self._lock:
            self._told_cluster_default = dict(configs)
            self._renew()
        self._tell()

    def apply_topic(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replace the overrides of a topic, and call its listeners with the new settings.

        Logs and omits malformed values: the store may hold some that no broker has checked.
        An empty mapping, as for a deleted topic, forgets the topic.
        """
        with self._lock:
            # Readers take no lock: what a topic has stays until there is something else.
            if overrides:
                self._told_topics[name] = dict(overrides)
                self._topics[name] = self._topic_of(name)
            else:
                self._told_topics.pop(name, None)
                self._topics.pop(name, None)
                self._remarks.forget(_topic_place(name))
        settings = self.topic(name)
        for listener in self._topic_listeners:
            listener(name, settings)

    def apply_group(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replace the overrides of a group, as `apply_topic` does for a topic."""
        with self._lock:
            if overrides:
                self._told_groups[name] = dict(overrides)
                self._groups[name] = self._group_of(name)
            else:
                self._told_groups.pop(name, None)
                self._groups.pop(name, None)
                self._remarks.forget(_group_place(name))

    def _broker_faults(self, configs: Mapping[str, str]) -> list[Fault]:
        texts = {**self._static.given, **self._cluster_default, **configs}
        return self._not_dynamic(configs, cluster_default=False) + type(self._static).faults(texts)

    def _cluster_default_faults(self, configs: Mapping[str, str]) -> list[Fault]:
        texts = {**self._static.given, **configs}
        return self._not_dynamic(configs, cluster_default=True) + type(self._static).faults(texts)

    def _without_effect(self, configs: Mapping[str, str]) -> dict[str, str]:
        """Return the keys that plog ignores, and why.

        A broker keeps such keys, as Kafka's do, because they may belong to a plugin.
        """
        reasons = {}
        for name in configs:
            declared = self._static.KEYS.get(name)
            if declared is not None:
                if declared.no_effect is not None:
                    reasons[name] = f"has no effect in plog: {declared.no_effect}"
            elif name not in REFUSED:
                reason = why_without_effect(name)
                reasons[name] = (
                    f"is ignored: {unknown_key(name, self._static.KEYS)}"
                    if reason is None
                    else f"has no effect in plog: {reason}"
                )
        return reasons

    def _topic_faults(self, overrides: Mapping[str, str]) -> list[Fault]:
        return TopicSettings.faults(overrides, self._broker)

    def _group_faults(self, overrides: Mapping[str, str]) -> list[Fault]:
        return GroupSettings.faults(overrides, self._broker)

    def _renew(self) -> None:
        self._cluster_default = self._broker_layer(
            "settings of all brokers", self._told_cluster_default, self._cluster_default_faults
        )
        self._this_broker = self._broker_layer(
            "settings of this broker", self._told_broker, self._broker_faults
        )
        texts = {**self._static.given, **self._cluster_default, **self._this_broker}
        self._broker = type(self._static)(texts)
        self._plain_topic = TopicSettings(self._broker)
        self._topics = {name: self._topic_of(name) for name in self._told_topics}
        self._plain_group = GroupSettings(self._broker)
        self._groups = {name: self._group_of(name) for name in self._told_groups}

    def _broker_layer(
        self,
        place: str,
        configs: Mapping[str, str],
        faults_of: Callable[[Mapping[str, str]], list[Fault]],
    ) -> Mapping[str, str]:
        """Return the entries of a layer that are valid and known."""
        ignored = self._without_effect(configs)
        known = {
            name: text
            for name, text in configs.items()
            if name in self._static.KEYS or name in REFUSED
        }
        kept, faults = _without_faults(known, faults_of)
        self._remarks.report(place, faults=faults, ignored=ignored)
        return kept

    def _topic_of(self, name: str) -> TopicSettings:
        kept, faults = _without_faults(self._told_topics[name], self._topic_faults)
        self._remarks.report(_topic_place(name), faults=faults)
        return TopicSettings(self._broker, kept)

    def _group_of(self, name: str) -> GroupSettings:
        kept, faults = _without_faults(self._told_groups[name], self._group_faults)
        self._remarks.report(_group_place(name), faults=faults)
        return GroupSettings(self._broker, kept)

    def _tell(self) -> None:
        settings = self._broker
        for listener in self._broker_listeners:
            listener(settings)

    # -- descriptions

    def describe_topic(self, name: str, names: Collection[str] | None = None) -> list[ConfigEntry]:
        """Describe a topic's settings: all of them, or those of `names` that there are."""
        return self.describe(self.topic(name), names)

    def describe(
        self, settings: EntitySettings, names: Collection[str] | None = None
    ) -> list[ConfigEntry]:
        """Describe settings that a topic or group has or would have (`check_topic`)."""
        return [
            self._entity_entry(settings, declared)
            for declared in settings.KEYS.values()
            if names is None or declared.name in names
        ]

    def describe_group(self, name: str, names: Collection[str] | None = None) -> list[ConfigEntry]:
        """Describe a group's settings: all of them, or those of `names` that there are."""
        return self.describe(self.group(name), names)

    def describe_broker(self, names: Collection[str] | None = None) -> list[ConfigEntry]:
        """Describe this broker's settings: all of them, or those of `names` that there are."""
        entries = [
            self._broker_entry(declared)
            for declared in self._static.KEYS.values()
            if names is None or declared.name in names
        ]
        layers = {
            ConfigSource.DYNAMIC_BROKER: self._told_broker,
            ConfigSource.DYNAMIC_DEFAULT_BROKER: self._told_cluster_default,
        }
        return entries + self._unknown_entries(layers, names)

    def describe_cluster_default(self, names: Collection[str] | None = None) -> list[ConfigEntry]:
        """Describe what is set for every broker, and nothing else, as Kafka does."""
        entries = []
        for name, text in self._cluster_default.items():
            if names is not None and name not in names:
                continue
            declared = self._static.KEYS[name]
            value = None if declared.sensitive else text
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER
            synonyms = (ConfigSynonym(name, value, source),)
            entries.append(_entry(declared, value, source, synonyms, read_only=False))
        layers = {ConfigSource.DYNAMIC_DEFAULT_BROKER: self._told_cluster_default}
        return entries + self._unknown_entries(layers, names)

    def _unknown_entries(
        self, layers: Mapping[ConfigSource, Mapping[str, str]], names: Collection[str] | None
    ) -> list[ConfigEntry]:
        """Describe unknown keys, as tools remove only what they see; values may be secrets."""
        synonyms: dict[str, list[ConfigSynonym]] = {}
        for source, told in layers.items():
            for name in told:
                if name not in self._static.KEYS and (names is None or name in names):
                    synonyms.setdefault(name, []).append(ConfigSynonym(name, None, source))
        return [
            ConfigEntry(
                name,
                None,
                chain[0].source,
                sensitive=True,
                read_only=False,
                type=ConfigType.UNKNOWN,
                doc="Unknown to plog, and ignored.",
                synonyms=tuple(chain),
            )
            for name, chain in synonyms.items()
        ]

    def _entity_entry(self, settings: EntitySettings, declared: Key[Any]) -> ConfigEntry:
        assert isinstance(declared, EntityKey)
        synonyms: list[ConfigSynonym] = []
        if declared.name in settings.overrides:
            text = settings.overrides[declared.name]
            is_topic = isinstance(settings, TopicSettings)
            own = ConfigSource.TOPIC if is_topic else ConfigSource.GROUP
            synonyms.append(ConfigSynonym(declared.name, text, own))
        for synonym in declared.synonyms:
            synonyms += self._set_values(synonym.key)
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        value = declared.format(settings.value(declared.name))
        return _entry(declared, value, source, tuple(synonyms), read_only=False)

    def _broker_entry(self, declared: Key[Any]) -> ConfigEntry:
        synonyms = list(self._set_values(declared))
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        for name in _FALLBACKS.get(declared.name, ()):
            synonyms += self._set_values(self._static.KEYS[name])
        value = declared.format(self._broker.value(declared.name))
        read_only = declared.update is Update.READ_ONLY
        return _entry(declared, value, source, tuple(synonyms), read_only=read_only)

    def _set_values(self, declared: Key[Any]) -> Iterator[ConfigSynonym]:
        layers = (
            (self._this_broker, ConfigSource.DYNAMIC_BROKER),
            (self._cluster_default, ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (self._static.given, ConfigSource.STATIC_BROKER),
        )
        for layer, source in layers:
            if declared.name in layer:
                value = None if declared.sensitive else layer[declared.name]
                yield ConfigSynonym(declared.name, value, source)
        if declared.default is not None:
            value = declared.format(declared.default)
            yield ConfigSynonym(declared.name, value, ConfigSource.DEFAULT)


def _entry(
    declared: Key[Any],
    value: str | None,
    source: ConfigSource,
    synonyms: tuple[ConfigSynonym, ...],
    *,
    read_only: bool,
) -> ConfigEntry:
    return ConfigEntry(
        declared.name,
        value,
        source,
        declared.sensitive,
        read_only,
        declared.kind.type,
        _documentation(declared),
        synonyms,
    )


def _documentation(declared: Key[Any]) -> str:
    if declared.caveat is None:
        return declared.doc
    outcome, reason = declared.caveat
    return f"{declared.doc} {outcome}: {reason}."


def _topic_place(name: str) -> str:
    return f"settings of topic {name}"


def _group_place(name: str) -> str:
    # A client that may alter configs may use any group name, of any length.
    return f"settings of group {name[:100]!r}"


class _Remarks:
    """Logs each thing that is wrong with the settings once, for as long as it stays wrong.

    Every change of a layer reads all layers again, so the same faults are found many times.
    """

    def __init__(self) -> None:
        self._reported: dict[str, dict[str, str]] = {}

    def report(
        self, place: str, *, faults: Mapping[str, str], ignored: Mapping[str, str] = NOTHING
    ) -> None:
        """Log what was not wrong with a place before: faults as errors, the rest as warnings."""
        before = self._reported.get(place, NOTHING)
        for level, reasons in ((logging.ERROR, faults), (logging.WARNING, ignored)):
            for subject, reason in reasons.items():
                if before.get(subject) != reason:
                    logger.log(level, "%s: %s %s", place, subject, reason)
        self._reported[place] = {**ignored, **faults}
        if not self._reported[place]:
            del self._reported[place]

    def forget(self, place: str) -> None:
        """Log the faults of a place again if they come back."""
        self._reported.pop(place, None)


def _without_faults(
    configs: Mapping[str, str],
    faults_of: Callable[[Mapping[str, str]], list[Fault]],
) -> tuple[Mapping[str, str], dict[str, str]]:
    """Return `configs` without the entries that are wrong, and why each of these is ignored."""
    kept = dict(configs)
    reasons: dict[str, str] = {}
    while faults := faults_of(kept):
        wrong = [fault for fault in faults if fault.key in kept]
        if not wrong:
            # It contradicts another layer, whose keys must not be dropped here.
            key, reason = faults[0]
            reasons[key] = f"is wrong, so none of these settings applies: {reason}"
            return NOTHING, reasons
        for key, reason in wrong:
            if kept.pop(key, None) is not None:
                reasons[key] = f"is ignored: {reason}"
    return MappingProxyType(kept), reasons
