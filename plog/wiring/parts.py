"""The parts of a broker that handlers use and the controller commands, each with what it needs.

Owns who hears of whose changes. Nothing is served yet: `broker` opens the network, and registers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple

from plog.cluster.broker_registration import BrokerRegistration
from plog.cluster.change_bells import ChangeBells
from plog.cluster.channels import BrokerChannel, InProcessChannel
from plog.cluster.config_admin import ConfigAdmin
from plog.cluster.config_changes import ConfigChanges
from plog.cluster.controller import Controller
from plog.cluster.controller_context import LiveBroker
from plog.cluster.disks import Disks
from plog.cluster.fast_path import FastPath
from plog.cluster.features import Features
from plog.cluster.member import Member
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.order_gate import OrderGate
from plog.cluster.peer_channel import PeerChannel
from plog.cluster.peer_link import PeerLink, address_of
from plog.cluster.peers import Peers, known_address
from plog.cluster.producer_ids import ProducerIds
from plog.cluster.replica_manager import ReplicaManager
from plog.cluster.replication.in_sync_keeper import InSyncKeeper
from plog.cluster.replication.isr import fresh_within_ms
from plog.cluster.replication.isr_question import IsrQuestion
from plog.cluster.replication.leader_requests import Limits
from plog.cluster.replication.replica_fetchers import ReplicaFetchers
from plog.cluster.store_calls import StoreCalls
from plog.cluster.topic_admin import INTERNAL_TOPICS, TopicAdmin
from plog.cluster.unclean_elections import UncleanElections
from plog.handlers.context import Services
from plog.protocol.messages.fetch import ReplicaState
from plog.runtime.purgatory import Purgatory
from plog.storage.log_moves import LogMoves
from plog.types import TopicPartition
from plog.wiring.addresses import Addresses
from plog.wiring.base import Base
from plog.wiring.coordinators import make_coordinators

CHANNEL_TIMEOUT_MS = 30_000
"""How long a broker may take to obey an order, before the controller sends it again, or to answer
another one."""
ASK_AGAIN_MS = 2_000
"""How often it is seen whether replicas that a full disk refused can be taken up."""


class Parts(NamedTuple):
    """What a broker is made of, before it is reached."""

    services: Services
    member: Member
    fast_path: FastPath
    keeper: InSyncKeeper
    fetchers: ReplicaFetchers
    peers: Peers
    """The ways of a stopping broker to the controller."""


def make_parts(
    base: Base, addresses: Addresses, undo: AsyncExitStack, *, on_end: Callable[[str], None]
) -> Parts:
    """Make all parts; `undo` gets what stops them. For the event loop's thread.

    Args:
        on_end: hears why the broker has to end, on any thread.
    """
    cluster, store, settings = base.cluster, base.cluster.store, base.settings
    session_timeout_ms = cluster.session_timeout_ms or base.static.zookeeper_session_timeout_ms
    purgatory: Purgatory[TopicPartition] = Purgatory(asyncio.get_running_loop())
    bells = ChangeBells(asyncio.get_running_loop(), purgatory)
    undo.callback(bells.close)
    disks = Disks(several=len(base.static.log_dirs) > 1)
    undo.callback(disks.stop)
    fast_path = FastPath(disks, INTERNAL_TOPICS)
    undo.callback(fast_path.stop)
    metadata = MetadataCache(base.fence)
    registration = BrokerRegistration(store, cluster.broker_id)
    peers = partial(_make_peers, base, metadata, addresses, undo)
    keeper = InSyncKeeper(
        cluster.broker_id,
        lag_time_ms=base.static.replica_lag_time_max_ms,
        fresh_within_ms=fresh_within_ms(
            base.static.replica_lag_time_max_ms,
            session_timeout_ms,
            base.static.replica_fetch_wait_max_ms,
        ),
        clock=base.clock,
        ask=lambda batch: ask_isrs(batch),
        changed=lambda at, led: replicas.on_in_sync(at, led),
    )
    fetchers = _make_fetchers(base, metadata, addresses)
    replicas = ReplicaManager(
        broker_id=cluster.broker_id,
        logs=base.logs,
        metadata=metadata,
        fence=base.fence,
        settings_of=base.changes.topic_settings,
        on_change=purgatory.touch_threadsafe,
        log_dir_failed=lambda: member.report_lost_replicas(),
        in_sync_sets=keeper,
        fetchers=fetchers,
        publisher=fast_path,
        disks=disks,
    )
    features = Features(store)
    undo.callback(features.stop)
    producer_ids = ProducerIds(store, cluster.broker_id)
    if cluster.is_shared:
        producer_ids.reserve()
    store_calls = StoreCalls(
        most=base.static.queued_max_requests,
        patience_s=session_timeout_ms / 1000,
    )
    undo.callback(store_calls.stop)
    coordinators = make_coordinators(
        base,
        peers=peers,
        replicas=replicas,
        metadata=metadata,
        purgatory=purgatory,
        bells=bells,
        new_producer_id=partial(_new_producer_id, producer_ids, store_calls),
        undo=undo,
    )
    _follow_settings(base, replicas, fast_path)
    controller = _make_controller(base, replicas, metadata, addresses)
    UncleanElections(base.settings, controller.on_unclean_enabled)
    ask_isrs = IsrQuestion(
        cluster.broker_id,
        fence=base.fence,
        controller=controller,
        metadata=metadata,
        peers=peers("in-sync sets"),
    )
    fast_path.on_may_join = keeper.hint
    undo.callback(keeper.stop)
    undo.callback(fetchers.stop)
    keeper.start()
    member = Member(
        store,
        registration=registration,
        node=lambda: addresses.broker_node(base.clock.now_ms()),
        fence=base.fence,
        controller=controller,
        read_again=partial(_read_again, base.changes, features),
        remember=cluster.remember_session,
        on_end=on_end,
        clock=base.clock,
        timeout_ms=lambda: cluster.session_timeout_ms,
    )
    services = Services(
        node_id=cluster.broker_id,
        cluster_id=cluster.cluster_id,
        clock=base.clock,
        settings=settings,
        logs=base.logs,
        log_moves=_make_moves(base, replicas),
        replicas=replicas,
        metadata=metadata,
        topics=TopicAdmin(store, settings),
        configs=ConfigAdmin(
            store,
            settings,
            cluster.broker_id,
            written=base.changes.refresh,
            refresh_topics=base.changes.topic_settings if cluster.is_shared else None,
        ),
        producer_ids=producer_ids,
        features=features,
        controller=controller,
        gate=OrderGate(base.fence, metadata, registration),
        purgatory=purgatory,
        bells=bells,
        groups=coordinators.groups,
        transactions=coordinators.transactions,
        verifier=coordinators.verifier,
        store_calls=store_calls,
    )
    undo.callback(services.expanders.shutdown)
    undo.callback(services.orders.shutdown)
    return Parts(services, member, fast_path, keeper, fetchers, peers("controller"))


def _read_again(changes: ConfigChanges, features: Features) -> None:
    changes.read_again()
    features.read_again()


async def _new_producer_id(ids: ProducerIds, calls: StoreCalls) -> int:
    spare = ids.spare()
    return await calls.make(ids.next) if spare is None else spare


def _make_peers(
    base: Base,
    metadata: MetadataCache,
    addresses: Addresses,
    undo: AsyncExitStack,
    purpose: str,
    *,
    timeout_ms: int = CHANNEL_TIMEOUT_MS,
) -> Peers:
    made = Peers(
        metadata,
        broker_id=base.cluster.broker_id,
        listener=addresses.inter_broker_listener,
        purpose=purpose,
        timeout_ms=timeout_ms,
    )
    undo.callback(made.close)
    return made


def _make_fetchers(base: Base, metadata: MetadataCache, addresses: Addresses) -> ReplicaFetchers:
    static, broker_id = base.static, base.cluster.broker_id
    limits = Limits(
        max_wait_ms=static.replica_fetch_wait_max_ms,
        min_bytes=static.replica_fetch_min_bytes,
        max_bytes=static.replica_fetch_response_max_bytes,
        partition_max_bytes=static.replica_fetch_max_bytes,
        backoff_ms=static.replica_fetch_backoff_ms,
    )

    def link(leader: int) -> PeerLink:
        address = partial(known_address, metadata, addresses.inter_broker_listener, leader)
        return PeerLink(broker_id, address, timeout_ms=static.replica_socket_timeout_ms)

    made = ReplicaFetchers(
        link=link,
        limits=limits,
        per_leader=base.settings.broker().num_replica_fetchers,
        who=lambda: ReplicaState(replica_id=broker_id, replica_epoch=base.fence.broker_epoch),
        clock=base.clock,
    )
    base.settings.on_broker_change(lambda now: made.share_among(now.num_replica_fetchers))
    return made


def _follow_settings(base: Base, replicas: ReplicaManager, fast_path: FastPath) -> None:
    """Have the parts hear of settings that change."""
    settings, served = base.settings, fast_path.served
    settings.on_broker_change(lambda now: served.set_fetch_max_bytes(now.fetch_max_bytes))
    served.set_fetch_max_bytes(settings.broker().fetch_max_bytes)
    settings.on_topic_change(replicas.update_topic_settings)
    settings.on_broker_change(lambda _: replicas.renew_settings(settings.topic))
    settings.on_broker_change(lambda _: base.logs.cleaner.start())


def _make_controller(
    base: Base, replicas: ReplicaManager, metadata: MetadataCache, addresses: Addresses
) -> Controller:
    broker_id, listener = base.cluster.broker_id, addresses.inter_broker_listener

    def channel(broker: LiveBroker) -> BrokerChannel:
        if broker.id == broker_id:
            return InProcessChannel(replicas, metadata)
        address = partial(address_of, broker, listener)
        return PeerChannel(broker, PeerLink(broker_id, address, timeout_ms=CHANNEL_TIMEOUT_MS))

    return Controller(
        base.cluster.store,
        broker_id=broker_id,
        channels=channel,
        settings=base.settings.broker,
        clock=base.clock,
        inter_broker_listener=listener,
        stands=False,
    )


def _make_moves(base: Base, replicas: ReplicaManager) -> LogMoves:
    """Have the replicas hear of what happens to their logs; return what moves these."""
    logs = base.logs
    logs.on_log_dir_failure(replicas.on_log_dir_failure)
    logs.on_partition_damage(replicas.on_damage)
    logs.on_late_recovery(replicas.on_late_recovery)
    moves = LogMoves(logs, base.fs)
    moves.on_log_moved(replicas.on_log_moved)
    logs.scheduler.every(ASK_AGAIN_MS, replicas.ask_again_for_refused)
    return moves
