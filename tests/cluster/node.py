"""A whole broker but for the network: store, logs, replicas, metadata, controller."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from plog.cluster.broker_registration import (
    BrokerRegistration,
    create_persistent_paths,
    ensure_cluster_id,
)
from plog.cluster.channels import InProcessChannel
from plog.cluster.config_admin import ConfigAdmin
from plog.cluster.config_changes import ConfigChanges
from plog.cluster.control_fence import ControlFence
from plog.cluster.controller import Controller
from plog.cluster.controller_context import LiveBroker
from plog.cluster.controller_events import ElectionType
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.features import SUPPORTED
from plog.cluster.member import Member
from plog.cluster.metadata_cache import MetadataCache, MetadataSnapshot
from plog.cluster.replica_manager import ReplicaManager
from plog.cluster.store import Store
from plog.cluster.topic_admin import NewTopic, TopicAdmin
from plog.cluster.znodes import (
    BrokerNode,
    Endpoint,
    broker_path,
)
from plog.runtime.clock import SystemClock
from plog.settings.definitions import BrokerSettings
from plog.settings.dynamic import DynamicSettings
from plog.storage.log_manager import LogManager
from plog.types import TopicPartition
from tests.cluster.in_sync_sets import unasked_keeper

WAIT_S = 60


class Node:
    """Brokers that share a store (and its session) share `peers` too, to reach each other."""

    def __init__(
        self,
        log_dirs: list[Path],
        broker_id: int = 0,
        *,
        store: Store | None = None,
        peers: dict[int, Node] | None = None,
        session_ms: Callable[[], int] | None = None,
        **settings: str,
    ) -> None:
        self.broker_id = broker_id
        self.peers = {} if peers is None else peers
        self.peers[broker_id] = self
        self.own_store = store is None
        self.clock = SystemClock()
        texts = {key.replace("_", "."): value for key, value in settings.items()}
        texts |= {"broker.id": str(broker_id), "log.dirs": ",".join(map(str, log_dirs))}
        self.settings = DynamicSettings(BrokerSettings(texts))
        self.changed: list[TopicPartition] = []
        self.store = store or EmbeddedStore(log_dirs, clock=self.clock)
        create_persistent_paths(self.store)
        self.cluster_id = ensure_cluster_id(self.store)
        self.config_changes = ConfigChanges(
            self.store, self.settings, broker_id=broker_id, clock=self.clock
        )
        self.config_changes.load()
        self.logs = LogManager(
            self.settings.broker(),
            self.settings.topic,
            cluster_id=self.cluster_id,
            clock=self.clock,
        )
        self.logs.start()
        self.fence = ControlFence()
        self.metadata = MetadataCache(self.fence)
        self.replicas = ReplicaManager(
            broker_id=broker_id,
            logs=self.logs,
            metadata=self.metadata,
            fence=self.fence,
            settings_of=self.config_changes.topic_settings,
            on_change=self.changed.append,
            log_dir_failed=lambda: self.registration().report_lost_replicas(),
            in_sync_sets=unasked_keeper(broker_id, self.clock),
        )
        self.logs.on_log_dir_failure(self.replicas.on_log_dir_failure)
        self.logs.on_partition_damage(self.replicas.on_damage)
        self.settings.on_topic_change(self.replicas.update_topic_settings)
        self.settings.on_broker_change(
            lambda settings: self.replicas.renew_settings(self.settings.topic)
        )
        self.config_changes.start()
        self.member: Member | None = None
        if session_ms is not None:
            self.join(session_ms)
        else:
            self.fence.broker_epoch = self.registration().register(self.broker_node())
            self.take_over()
        self.topics = TopicAdmin(self.store, self.settings, random.Random(1))
        self.configs = ConfigAdmin(self.store, self.settings, broker_id)

    def registration(self) -> BrokerRegistration:
        return BrokerRegistration(self.store, self.broker_id)

    def broker_node(self) -> BrokerNode:
        ends = (Endpoint("PLAINTEXT", "127.0.0.1", 9092 + self.broker_id),)
        return BrokerNode(ends, self.clock.now_ms(), features=SUPPORTED)

    def join(self, session_ms: Callable[[], int]) -> None:
        """Register as a member whose session may end."""
        self.controller = self.new_controller()
        self.controller.start()
        self.member = Member(
            self.store,
            registration=self.registration(),
            node=self.broker_node,
            fence=self.fence,
            controller=self.controller,
            read_again=self.config_changes.read_again,
            clock=self.clock,
            timeout_ms=session_ms,
        )
        self.member.start()

    def new_controller(self) -> Controller:
        return Controller(
            self.store,
            broker_id=self.broker_id,
            channels=self.channel,
            settings=self.settings.broker,
            clock=self.clock,
            inter_broker_listener="PLAINTEXT",
        )

    def take_over(self) -> None:
        """Start a controller of this broker's, in the place of one that has stopped."""
        self.controller = self.new_controller()
        self.controller.start()
        if self.own_store:
            assert self.controller.wait_active(WAIT_S)

    def channel(self, broker: LiveBroker) -> InProcessChannel:
        peer = self.peers[broker.id]
        return InProcessChannel(peer.replicas, peer.metadata)

    def create(self, name: str, partitions: int = 1, factor: int = 1, **configs: str):
        named = {key.replace("_", "."): value for key, value in configs.items()}
        created = self.topics.create(NewTopic(name, partitions, factor, configs=named))
        self.until(lambda snapshot: snapshot.has_leaders(name, partitions))
        return created

    def delete(self, name: str) -> None:
        self.topics.delete(name)
        self.until(lambda snapshot: name not in snapshot.topics)

    def until(self, predicate: Callable[[MetadataSnapshot], bool]) -> None:
        assert self.metadata.wait_until(predicate, WAIT_S), self.metadata.snapshot

    def settled(self) -> None:
        """Wait until the controller has done everything asked of it before."""
        future: Future = self.controller.elect_leaders(ElectionType.PREFERRED, [])
        future.result(WAIT_S)

    def stop(self) -> None:
        if self.member is not None:
            self.member.stop()
        self.controller.stop()
        self.config_changes.stop()
        self.logs.shutdown()
        if self.own_store:
            self.store.close()
        elif self.store.exists(broker_path(self.broker_id)):
            self.store.delete(broker_path(self.broker_id))
