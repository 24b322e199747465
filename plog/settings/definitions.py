"""The settings of a broker, topic and group, put together from the declarations beside this module.

Owns how a whole set of values is checked. Never reads files (`server_properties`
does) and never changes while the broker runs (`dynamic` makes new ones).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from plog.errors import ConfigError, InvalidConfig
from plog.settings.broker_log_keys import BrokerLogKeys
from plog.settings.cluster_keys import ClusterKeys
from plog.settings.coordinator_keys import ASSIGNOR_CLASSES, CoordinatorKeys
from plog.settings.group_keys import GroupKeys
from plog.settings.keys import LIST, LONG_MAX, EntityKey, Fault, Settings
from plog.settings.listeners import Listener, parse_listeners
from plog.settings.log_keys import LogKeys
from plog.settings.network_keys import NetworkKeys
from plog.settings.topic_keys import TopicKeys

NOTHING: Mapping[str, str] = MappingProxyType({})


class BrokerSettings(ClusterKeys, NetworkKeys, LogKeys, CoordinatorKeys, BrokerLogKeys):
    """The effective settings of a broker; `given` holds what was set, as text."""

    given: Mapping[str, str]

    def __init__(self, texts: Mapping[str, str] = NOTHING) -> None:
        """Take values as text, by key.

        Raises:
            ConfigError: naming everything that is wrong.
        """
        faults = self._take(texts)
        if faults:
            raise ConfigError("; ".join(f"{key}: {reason}" for key, reason in faults))

    @classmethod
    def faults(cls, texts: Mapping[str, str]) -> list[Fault]:
        """Return everything that is wrong with `texts`: nothing, if they make an object."""
        return cls.__new__(cls)._take(texts)

    def with_texts(self, texts: Mapping[str, str]) -> BrokerSettings:
        """Return settings with some keys set otherwise.

        Raises:
            ConfigError: naming everything that is wrong.
        """
        return type(self)({**self.given, **texts})

    @property
    def serves_consumer_protocol(self) -> bool:
        """Whether groups may use the protocol of KIP-848."""
        return "consumer" in self.group_coordinator_rebalance_protocols

    def consumer_assignors(self) -> tuple[str, ...]:
        """Return the short names of the coordinator's assignors."""
        return tuple(ASSIGNOR_CLASSES.get(name, name) for name in self.group_consumer_assignors)

    def parsed_listeners(self) -> list[Listener]:
        """Return what the four keys about listeners say together, in the order of `listeners`."""
        return self._parse_listeners()[0]

    def inter_broker_name(self) -> str:
        """Return the name of the listener by which brokers reach each other."""
        return next(one.name for one in self.parsed_listeners() if one.is_inter_broker)

    def _parse_listeners(self) -> tuple[list[Listener], list[Fault]]:
        return parse_listeners(
            self.listeners,
            self.advertised_listeners,
            self.listener_security_protocol_map,
            self.inter_broker_listener_name,
        )

    def _take(self, texts: Mapping[str, str]) -> list[Fault]:
        # Where single values are wrong, contradictions are looked for among the others.
        values, faults = self.parse(texts)
        vars(self)["given"] = MappingProxyType(dict(texts))
        if "log.dirs" not in values and values.get("log.dir"):
            values["log.dirs"] = LIST.parse(str(values["log.dir"]))
        self._fill(values)
        return faults + list(self._contradictions())

    def _contradictions(self) -> Iterable[Fault]:
        yield from self._parse_listeners()[1]
        if self.broker_id > self.reserved_broker_max_id:
            yield Fault(
                "broker.id",
                f"{self.broker_id} is above reserved.broker.max.id, {self.reserved_broker_max_id}",
            )
        if self.broker_id < 0 and not self.broker_id_generation_enable:
            yield Fault("broker.id", "must be set where broker.id.generation.enable is false")
        if not self.log_dirs:
            yield Fault("log.dirs", "names no directory")
        if not all(self.log_dirs):
            yield Fault("log.dirs", "names an empty directory")
        if len(set(self.log_dirs)) < len(self.log_dirs):
            yield Fault("log.dirs", "names a directory twice")
        if 0 < self.queued_max_request_bytes < self.socket_request_max_bytes:
            yield Fault(
                "queued.max.request.bytes",
                f"{self.queued_max_request_bytes} is below socket.request.max.bytes, "
                f"{self.socket_request_max_bytes}",
            )
        if self.log_cleaner_min_compaction_lag_ms > self.log_cleaner_max_compaction_lag_ms:
            yield Fault(
                "log.cleaner.min.compaction.lag.ms",
                f"{self.log_cleaner_min_compaction_lag_ms} is above "
                f"log.cleaner.max.compaction.lag.ms, {self.log_cleaner_max_compaction_lag_ms}",
            )
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            yield Fault(
                "group.min.session.timeout.ms",
                f"{self.group_min_session_timeout_ms} is above group.max.session.timeout.ms, "
                f"{self.group_max_session_timeout_ms}",
            )
        if self.zookeeper_set_acl and self.zookeeper_digest is None:
            yield Fault("zookeeper.set.acl", "needs zookeeper.digest: who may change the nodes")
        if self.zookeeper_digest is not None and ":" not in self.zookeeper_digest.reveal():
            yield Fault("zookeeper.digest", "is not user:password")
        if "classic" not in self.group_coordinator_rebalance_protocols:
            yield Fault("group.coordinator.rebalance.protocols", "must name classic")
        if not self.group_consumer_assignors:
            yield Fault("group.consumer.assignors", "names no assignor")
        yield from _outside_bounds(self, self, "group.consumer")


def _outside_bounds(settings: Settings, broker: BrokerSettings, prefix: str) -> Iterable[Fault]:
    """Hold the times of consumer groups against the broker's bounds, and each other."""
    is_within = True
    for rest in ("session.timeout.ms", "heartbeat.interval.ms"):
        name, value = f"{prefix}.{rest}", int(str(settings.value(f"{prefix}.{rest}")))
        bounds = [f"group.consumer.{bound}.{rest}" for bound in ("min", "max")]
        least, most = (int(str(broker.value(bound))) for bound in bounds)
        if value < least:
            yield Fault(name, f"{value} is below {bounds[0]}, {least}")
        if value > most:
            yield Fault(name, f"{value} is above {bounds[1]}, {most}")
        is_within &= least <= value <= most
    session, interval = f"{prefix}.session.timeout.ms", f"{prefix}.heartbeat.interval.ms"
    if is_within and int(str(settings.value(interval))) >= int(str(settings.value(session))):
        yield Fault(
            interval,
            f"{settings.value(interval)} is not below {session}, {settings.value(session)}",
        )


class EntitySettings(Settings):
    """The effective settings of one thing: its own `overrides` (as text), else the broker's."""

    overrides: Mapping[str, str]

    def __init__(
        self, broker: BrokerSettings | None = None, overrides: Mapping[str, str] = NOTHING
    ) -> None:
        """Take the broker's settings (without them, the defaults) and its own.

        Raises:
            InvalidConfig: naming everything that is wrong with the overrides.
        """
        faults = self._take(broker or DEFAULTS, overrides)
        if faults:
            raise InvalidConfig("; ".join(f"{key}: {reason}" for key, reason in faults))

    @classmethod
    def faults(
        cls, overrides: Mapping[str, str], broker: BrokerSettings | None = None
    ) -> list[Fault]:
        """Return everything that is wrong with `overrides`."""
        return cls.__new__(cls)._take(broker or DEFAULTS, overrides)

    def _take(self, broker: BrokerSettings, overrides: Mapping[str, str]) -> list[Fault]:
        values, faults = self.parse(overrides)
        vars(self)["overrides"] = MappingProxyType(dict(overrides))
        self._fill(_broker_values(broker, type(self)) | values)
        return faults + list(self._contradictions(broker))

    def _contradictions(self, broker: BrokerSettings) -> Iterable[Fault]:
        raise NotImplementedError


class TopicSettings(EntitySettings, TopicKeys):
    """The effective settings of a topic."""

    def _fill(self, values: Mapping[str, object]) -> None:
        super()._fill(values)
        # KIP-937: the older key counts for each of the newer ones that is not set.
        for attribute in ("message_timestamp_before_max_ms", "message_timestamp_after_max_ms"):
            if vars(self)[attribute] == LONG_MAX:
                vars(self)[attribute] = self.message_timestamp_difference_max_ms

    def _contradictions(self, broker: BrokerSettings) -> Iterable[Fault]:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            yield Fault(
                "min.compaction.lag.ms",
                f"{self.min_compaction_lag_ms} is above max.compaction.lag.ms, "
                f"{self.max_compaction_lag_ms}",
            )


class GroupSettings(EntitySettings, GroupKeys):
    """The effective settings of a consumer group."""

    def _contradictions(self, broker: BrokerSettings) -> Iterable[Fault]:
        return _outside_bounds(self, broker, "consumer")


DEFAULTS = BrokerSettings()
"""What holds where nothing is set."""


def _broker_values(broker: BrokerSettings, kind: type[EntitySettings]) -> dict[str, object]:
    """Return what the broker's settings say for every key of a topic or group, by that key."""
    values: dict[str, object] = {}
    for name, declared in kind.KEYS.items():
        assert isinstance(declared, EntityKey)
        for synonym in declared.synonyms:
            given = broker.value(synonym.key.name)
            if given is not None:
                values[name] = synonym.value(given)
                break
    return values
