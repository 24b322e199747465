"""Orders of the controller as a broker takes them: fences, epochs, ids, roles and codes."""

from __future__ import annotations

import errno
import logging
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from plog._native import partition_log
from plog.cluster.channels import InProcessChannel
from plog.cluster.control_fence import ControlFence
from plog.cluster.control_requests import DRAIN, leader_and_isr_answered
from plog.cluster.controller_context import LiveBroker
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.replica_manager import ReplicaManager
from plog.cluster.store import Unreachable
from plog.errors import (
    ErrorCode,
    FencedLeaderEpoch,
    InconsistentTopicId,
    KafkaStorageError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from plog.protocol.messages.replication import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from plog.settings.definitions import BrokerSettings, TopicSettings
from plog.settings.dynamic import DynamicSettings
from plog.storage.incomplete_mark import Lack
from plog.storage.log_manager import LogManager
from plog.types import TopicPartition
from tests.cluster.in_sync_sets import FakeSets

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
ID, OTHER_ID = uuid.UUID(int=5), uuid.UUID(int=6)
ME, PEER = 1, 2
NONE, STORAGE = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR
STALE, INCOMPLETE = ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.INELIGIBLE_REPLICA


class FakeLog:
    """A log's roles; appends count."""

    def __init__(self, at: TopicPartition, topic_id: uuid.UUID, log_dir: Path) -> None:
        self.topic_partition, self.topic_id, self.log_dir = at, topic_id, log_dir
        self.log_end_offset, self.high_watermark, self.last_stable_offset = 3, 0, 0
        self.role: tuple = ()
        self.refusal: KafkaStorageError | None = None
        self.settings = None
        self.native = None
        self.lack: Lack | None = None

    def become_leader(self, leader_epoch: int, *, sole_replica: bool, enough_in_sync: bool) -> None:
        if self.refusal is not None:
            raise self.refusal
        if self.role == ("broken",):
            raise KafkaStorageError("the epoch cannot be written")
        self.role = ("leader", leader_epoch, sole_replica)

    def complete(self) -> None:
        self.lack = None

    def become_follower(self, leader_epoch: int) -> None:
        self.role = ("follower", leader_epoch)

    def append_as_leader(self, records, *, now_ms: int, guard=None):
        self.log_end_offset += 1
        return SimpleNamespace(
            status=partition_log.APPENDED, base_offset=self.log_end_offset - 1, took_us=0
        )

    def update_settings(self, settings) -> None:
        self.settings = settings


class FakeLogs:
    """A log manager that keeps names only."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, FakeLog] = {}
        self.offline: dict[TopicPartition, str] = {}
        self.lost: dict[TopicPartition, str] = {}
        self.has_forgotten = True
        self.offline_log_dirs: list[Path] = []
        self.deleted: list[TopicPartition] = []
        self.refusal: KafkaStorageError | None = None
        self.space = True

    def has_space_for(self, at: TopicPartition) -> bool:
        return self.space

    def get(self, at: TopicPartition) -> FakeLog | None:
        return self.logs.get(at)

    def reason_absent(self, at, topic_id, *, is_only) -> str | None:
        if self.offline_log_dirs:
            return f"{at} is not in any log directory that works"
        return self.lost.get(at) if is_only else None

    def was_never_made(self, at, topic_id) -> bool:
        is_known = self.reason_absent(at, topic_id, is_only=True) is not None
        return not (is_known or self.has_forgotten)

    def create(
        self, at, topic_id, settings, leader_epoch=0, is_late=False, is_incomplete=False
    ) -> FakeLog:
        if self.refusal is not None:
            raise self.refusal
        if at.topic == "full":
            raise KafkaStorageError("no space")
        self.logs[at] = FakeLog(at, topic_id, Path("/d0"))
        self.logs[at].lack = Lack.LOST_LOG if is_incomplete else None
        return self.logs[at]

    def create_all(self, wanted) -> list[FakeLog | KafkaStorageError]:
        made: list[FakeLog | KafkaStorageError] = []
        for one in wanted:
            try:
                made.append(self.create(*one))
            except KafkaStorageError as error:
                made.append(error)
        return made

    def delete(self, at) -> None:
        self.logs.pop(at, None)
        self.offline.pop(at, None)
        self.deleted.append(at)


class Fetchers:
    def __init__(self) -> None:
        self.following: dict[TopicPartition, int] = {}

    def follow(self, partitions) -> None:
        self.following |= {one.topic_partition: one.leadership.leader for one in partitions}

    def forget(self, topic_partitions) -> None:
        for at in topic_partitions:
            self.following.pop(at, None)


class Broker:
    def __init__(self, logs: LogManager | None = None) -> None:
        self.fence = ControlFence()
        self.fence.broker_epoch = 50
        self.logs = logs or FakeLogs()
        self.metadata = MetadataCache(self.fence)
        self.fetchers = Fetchers()
        self.in_sync_sets = FakeSets()
        self.changed: list[TopicPartition] = []
        self.roles: list[tuple[list, list]] = []
        self.reports = 0
        self.reads_left = -1  # no limit
        self.replicas = ReplicaManager(
            broker_id=ME,
            logs=self.logs,  # type: ignore[arg-type]
            metadata=self.metadata,
            fence=self.fence,
            settings_of=self._read_settings,
            on_change=self.changed.append,
            log_dir_failed=self._report,
            in_sync_sets=self.in_sync_sets,
            fetchers=self.fetchers,
            drain=lambda led: self.drained.extend(one.topic_partition for one in led),
        )
        self.drained: list[TopicPartition] = []
        self.configs = {"safe": {"min.insync.replicas": "2"}}
        self.settings = DynamicSettings(BrokerSettings())
        self.replicas.on_leadership(lambda *roles: self.roles.append(roles))
        self.channel = InProcessChannel(self.replicas, self.metadata)

    def _read_settings(self, topics: Sequence[str]) -> dict[str, TopicSettings]:
        if self.reads_left == 0:
            raise Unreachable("the store is away")
        self.reads_left -= 1
        return self._apply_configs(topics)

    def _apply_configs(self, topics: Sequence[str]) -> dict[str, TopicSettings]:
        for topic in topics:
            self.settings.apply_topic(topic, self.configs.get(topic, {}))
        return {topic: self.settings.topic(topic) for topic in topics}

    def obey_changes(self) -> None:
        """As a whole broker, which has its replicas hear of all settings that are applied."""
        self.settings.on_topic_change(self.replicas.update_topic_settings)

    def alter(self, topic: str, configs: dict[str, str]) -> None:
        self.configs[topic] = configs
        self._apply_configs([topic])

    def _report(self) -> None:
        self.reports += 1

    def send(self, request):
        answers: list = []
        self.channel.send(request, answers.append)
        (answer,) = answers
        return answer

    def lead(self, at=A0, leader=ME, epoch=0, *, isr=(ME,), topic_id=ID, new=True, **request):
        """Send LeaderAndIsr of one partition; return its code, or the request's."""
        answer = self.send(leader_and_isr(at, leader, epoch, isr, topic_id, new, **request))
        if answer.error_code:
            return ErrorCode(answer.error_code)
        (topic,) = answer.topics
        assert topic.topic_id == topic_id
        return ErrorCode(topic.partition_errors[0].error_code)

    def stop(self, at=A0, epoch=-2, *, delete=True, **request):
        state = StopReplicaPartitionState(
            partition_index=at.partition, leader_epoch=epoch, delete_partition=delete
        )
        answer = self.send(
            StopReplicaRequest(
                controller_id=0,
                topic_states=[StopReplicaTopicState(topic_name=at.topic, partition_states=[state])],
                **{"controller_epoch": 1, "broker_epoch": 50} | request,
            )
        )
        if answer.error_code:
            return ErrorCode(answer.error_code)
        return ErrorCode(answer.partition_errors[0].error_code)

    def announce(self, at=A0, leader=ME, topic_id=ID, **request):
        state = UpdateMetadataPartitionState(
            partition_index=at.partition,
            controller_epoch=1,
            leader=leader,
            leader_epoch=4,
            isr=[1],
            zk_version=3,
            replicas=[ME, PEER],
            offline_replicas=[2],
        )
        answer = self.send(
            UpdateMetadataRequest(
                controller_id=0,
                topic_states=[
                    UpdateMetadataTopicState(
                        topic_name=at.topic, topic_id=topic_id, partition_states=[state]
                    )
                ],
                live_brokers=[],
                **{"controller_epoch": 1, "broker_epoch": 50} | request,
            )
        )
        return ErrorCode(answer.error_code)


UNCLEAN = {"unclean.leader.election.enable": "true"}


def no_space() -> KafkaStorageError:
    refusal = KafkaStorageError("no space")
    refusal.__cause__ = OSError(errno.ENOSPC, "no space")
    return refusal


def leader_and_isr(at, leader, epoch, isr, topic_id, new, **request) -> LeaderAndIsrRequest:
    state = LeaderAndIsrPartitionState(
        partition_index=at.partition,
        controller_epoch=1,
        leader=leader,
        leader_epoch=epoch,
        isr=list(isr),
        partition_epoch=0,
        replicas=request.pop("replicas", [ME, PEER]),
        is_new=new,
    )
    return LeaderAndIsrRequest(
        controller_id=0,
        topic_states=[
            LeaderAndIsrTopicState(topic_name=at.topic, topic_id=topic_id, partition_states=[state])
        ],
        live_leaders=[],
        **{"controller_epoch": 1, "broker_epoch": 50} | request,
    )


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_leader_accepts_and_follower_fetches(broker: Broker) -> None:
    assert broker.lead(replicas=[ME]) == NONE
    assert broker.lead(A1, leader=PEER, isr=(PEER, ME)) == NONE
    assert broker.logs.logs[A0].role == ("leader", 0, True)
    assert broker.logs.logs[A1].role == ("follower", 0)
    assert broker.fetchers.following == {A1: PEER}
    leading, following = broker.roles[1]
    assert (leading, [one.topic_partition for one in following]) == ([], [A1])
    assert broker.changed == [A0, A0, A1, A1]  # by its role, and once it can be found
    # The roles change; a leader with others in sync does not commit alone.
    assert broker.lead(A1, epoch=1, isr=(PEER, ME)) == NONE
    assert broker.logs.logs[A1].role == ("leader", 1, False)
    assert broker.replicas.leaderships_taken == 2
    # A new epoch of the same leader is no new lead.
    assert broker.lead(A1, epoch=2, isr=(ME,)) == NONE
    assert broker.replicas.leaderships_taken == 2
    assert broker.fetchers.following == {}
    assert [*broker.in_sync_sets.led] == [A1]


def test_replicas_that_a_move_adds_are_known(broker: Broker) -> None:
    order = leader_and_isr(A0, ME, 0, (ME,), ID, True, replicas=[ME, PEER])
    order.topic_states[0].partition_states[0].adding_replicas = [PEER]
    broker.send(order)
    known = broker.replicas.leader(A0).leadership
    assert (known.replicas, known.adding) == ((ME, PEER), (PEER,))


def test_order_to_drain_is_for_leaders_in_the_epoch_that_it_names(broker: Broker) -> None:
    broker.lead(epoch=3, isr=(ME, PEER))
    broker.lead(A1, leader=PEER, epoch=3, isr=(PEER, ME))
    roles = list(broker.roles)
    for at, epoch, drained in [(A0, 2, []), (A1, 3, []), (A0, 3, [A0])]:
        order = leader_and_isr(at, ME, epoch, (ME, PEER), ID, False, type=DRAIN)
        answer = broker.replicas.apply_leader_and_isr(order)
        assert (answer.error_code, answer.topics) == (NONE, [])
        assert broker.drained == drained
    assert broker.roles == roles
    order = leader_and_isr(A0, ME, 3, (ME, PEER), ID, False, type=DRAIN, broker_epoch=49)
    assert broker.replicas.apply_leader_and_isr(order).error_code == ErrorCode.STALE_BROKER_EPOCH


FENCED = [
    ({"controller_epoch": 2}, NONE),
    ({"controller_epoch": 0}, STALE),
    ({"broker_epoch": 49}, ErrorCode.STALE_BROKER_EPOCH),
    ({"broker_epoch": 51}, NONE),
    ({"broker_epoch": -1}, NONE),
]


@pytest.mark.parametrize(("epochs", "code"), FENCED)
@pytest.mark.parametrize("order", ["lead", "stop", "announce"])
def test_every_order_passes_the_same_fence(broker, order: str, epochs, code) -> None:
    assert broker.announce() == NONE
    assert getattr(broker, order)(**epochs) == code
    assert (broker.replicas.get(A0) is not None) == (order == "lead" and code == NONE)
    assert broker.fence.controller_epoch == max(1, epochs.get("controller_epoch", 1))


def test_orders_that_are_not_new_are_ignored(broker) -> None:
    assert broker.lead(epoch=3) == NONE
    assert broker.lead(epoch=3, leader=PEER) == STALE
    assert broker.lead(epoch=2, leader=PEER) == STALE
    assert broker.replicas.leader(A0, 3).leadership.leader_epoch == 3


def test_broker_that_is_no_replica_refuses(broker) -> None:
    assert broker.lead(replicas=[PEER]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.replicas.get(A0) is None


def test_another_topics_id_is_refused_at_the_replica_and_at_its_files(broker) -> None:
    assert broker.lead() == NONE
    assert broker.lead(epoch=1, topic_id=OTHER_ID) == ErrorCode.INCONSISTENT_TOPIC_ID
    broker.logs.logs[A1] = FakeLog(A1, OTHER_ID, Path("/d0"))
    assert broker.lead(A1) == ErrorCode.INCONSISTENT_TOPIC_ID
    assert broker.replicas.get(A1) is None
    assert InconsistentTopicId.code == ErrorCode.INCONSISTENT_TOPIC_ID


def test_replica_that_may_be_on_a_lost_disk_is_not_made_anew(broker) -> None:
    broker.logs.offline_log_dirs = [Path("/d1")]
    assert broker.lead(new=False) == STORAGE
    assert broker.logs.logs == {}
    with pytest.raises(KafkaStorageError):
        broker.replicas.leader(A0)
    assert broker.lead(A1, new=True) == NONE


def test_replica_without_its_log_is_made_anew_and_reported(broker, caplog) -> None:
    assert broker.lead(leader=PEER, new=False) == INCOMPLETE
    assert "has no log on this broker" in caplog.text


def test_only_replica_is_not_made_anew_where_its_records_were(broker) -> None:
    broker.logs.lost[A0] = "it is gone"
    assert broker.lead(new=False, replicas=[ME]) == STORAGE
    assert broker.replicas.get(A0).offline_reason == "it is gone"
    assert broker.logs.logs == {}


@pytest.mark.parametrize("is_remembered", [True, False])
def test_lost_replica_of_several_leads_only_after_it_was_copied(
    broker: Broker, is_remembered: bool
) -> None:
    """An order without a leader is refused, too: the controller asks by it who is usable."""
    if is_remembered:
        broker.logs.lost[A0] = "it is gone"
    for epoch, leader in enumerate((ME, -1, -1, ME)):
        assert broker.lead(epoch=epoch, leader=leader, new=False) == STORAGE
    assert broker.logs.logs == {}
    with pytest.raises(KafkaStorageError):
        broker.replicas.leader(A0)
    assert broker.lead(epoch=4, leader=PEER, isr=(PEER, ME), new=False) == INCOMPLETE
    assert broker.lead(epoch=4, leader=PEER, isr=(PEER, ME), new=False) == INCOMPLETE, "asked again"
    assert broker.fetchers.following == {A0: PEER}
    assert broker.logs.logs[A0].lack is Lack.LOST_LOG
    for epoch, leader in ((5, ME), (6, -1)):
        assert broker.lead(epoch=epoch, leader=leader, new=False) == STORAGE
    assert broker.fetchers.following == {}
    assert broker.lead(epoch=7, leader=PEER, new=False) == INCOMPLETE
    broker.logs.logs[A0].complete()
    assert broker.lead(epoch=7, leader=PEER, new=False) == STALE
    assert broker.lead(epoch=8, leader=ME, new=False) == NONE
    assert broker.replicas.leader(A0).log is broker.logs.logs[A0]


@pytest.mark.parametrize("is_remembered", [True, False])
def test_lost_replica_leads_where_unclean_elections_are_allowed(
    broker: Broker, caplog: pytest.LogCaptureFixture, is_remembered: bool
) -> None:
    if is_remembered:
        broker.logs.lost[A0] = "it is gone"
    assert broker.lead(leader=-1, new=False) == STORAGE
    broker.obey_changes()
    broker.alter(A0.topic, UNCLEAN)
    assert broker.reports == 1, "the controller asks again who can be used"
    assert broker.lead(leader=-1, new=False) == INCOMPLETE
    assert broker.logs.logs[A0].lack is Lack.LOST_LOG
    assert broker.lead(epoch=1, leader=ME, new=False) == NONE
    assert broker.logs.logs[A0].lack is None
    assert "led from here, although this replica lost its log" in caplog.text


def test_replica_of_several_that_was_never_made_leads(broker: Broker) -> None:
    """Else a topic whose brokers are all killed while it is created is never led."""
    broker.logs.has_forgotten = False
    assert broker.lead(leader=-1, new=False) == NONE
    assert broker.lead(A1, leader=PEER, isr=(ME, PEER), new=False) == NONE
    assert broker.lead(epoch=1, leader=ME, new=False) == NONE
    assert broker.lead(A1, epoch=1, leader=ME, new=False) == NONE
    assert not any(log.lack for log in broker.logs.logs.values())


def test_replica_on_a_lost_disk_waits_for_it_whatever_is_allowed(broker: Broker) -> None:
    broker.logs.offline_log_dirs = [Path("/d1")]
    broker.alter(A0.topic, UNCLEAN)
    assert broker.lead(leader=-1, new=False) == STORAGE
    assert broker.logs.logs == {}


def test_leader_is_fresh_no_more_while_it_is_deposed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.lead()
    assert broker.replicas.is_fresh(A0)
    seen: list[bool] = []

    def become_follower(leader_epoch: int) -> None:
        seen.append(broker.replicas.is_fresh(A0))

    monkeypatch.setattr(broker.logs.logs[A0], "become_follower", become_follower)
    broker.lead(leader=PEER, epoch=1, isr=(PEER,), new=False)
    assert seen == [False]
    assert not broker.replicas.is_fresh(A0)
    assert not broker.replicas.is_fresh(A1), "there is no such replica"


def test_leader_whose_other_replicas_are_removed_keeps_no_set(broker: Broker) -> None:
    broker.lead(replicas=[ME, PEER])
    assert [*broker.in_sync_sets.led] == [A0]
    broker.lead(epoch=1, isr=(ME,), replicas=[ME], new=False)
    assert broker.in_sync_sets.led == {}
    assert broker.replicas.leader(A0).is_leader


def stopped_uncleanly(broker: Broker) -> FakeLog:
    """Give it a replica whose machine has stopped, with acknowledged records in its page cache."""
    log = broker.logs.create(A0, ID, None)
    log.lack = Lack.UNCLEAN_STOP
    return log


def test_replica_of_several_leads_after_an_unclean_stop_only_once_it_was_copied(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    log = stopped_uncleanly(broker)
    for epoch, leader in enumerate((ME, -1)):
        assert broker.lead(epoch=epoch, leader=leader, new=False) == STORAGE
    assert "unclean.leader.election.enable=true of the topic lets it lead" in caplog.text
    assert broker.lead(epoch=2, leader=PEER, isr=(PEER,), new=False) == INCOMPLETE
    assert broker.fetchers.following == {A0: PEER}
    log.complete()
    assert broker.lead(epoch=3, leader=ME, new=False) == NONE


def test_only_replica_leads_after_an_unclean_stop(broker: Broker) -> None:
    log = stopped_uncleanly(broker)
    assert broker.lead(epoch=1, leader=-1, new=False, replicas=[ME]) == INCOMPLETE
    assert log.lack is Lack.UNCLEAN_STOP
    assert broker.lead(epoch=2, leader=ME, new=False, replicas=[ME]) == NONE
    assert log.lack is None, "there is nothing that it lacks"


def test_topic_may_let_a_replica_lead_after_an_unclean_stop(broker: Broker) -> None:
    broker.obey_changes()
    log = stopped_uncleanly(broker)
    assert broker.lead(epoch=1, leader=ME, new=False) == STORAGE
    broker.alter("a", UNCLEAN)
    assert broker.reports == 1, "the controller asks again who can be used"
    broker.alter("a", {**UNCLEAN, "retention.ms": "5"})
    assert broker.reports == 1
    assert broker.lead(epoch=1, leader=-1, new=False) == INCOMPLETE
    assert broker.lead(epoch=2, leader=ME, new=False) == NONE
    assert log.lack is None


def test_only_replica_that_was_never_made_leads(broker: Broker) -> None:
    """Its broker was killed before it had the order that creates the topic."""
    for epoch, leader in ((1, -1), (2, ME)):
        assert broker.lead(epoch=epoch, leader=leader, new=False, replicas=[ME]) == NONE
        assert broker.logs.logs[A0].lack is None


@pytest.mark.parametrize("isr", [(PEER,), (PEER, ME)])
def test_new_replica_of_a_known_partition_is_complete_once_its_leader_says_so(
    broker: Broker, isr: tuple[int, ...]
) -> None:
    """One that is in sync already had a log that is gone."""
    code = broker.lead(leader=PEER, isr=isr, new=False)
    assert code == (INCOMPLETE if ME in isr else NONE)
    assert (broker.logs.logs[A0].lack is Lack.LOST_LOG) is (ME in isr)


def test_replica_that_was_never_made_is_made_by_a_later_order(broker: Broker) -> None:
    """The disk was full when the topic was created."""
    broker.logs.refusal = no_space()
    assert broker.lead() == STORAGE
    broker.logs.refusal = None
    assert broker.lead(epoch=1, new=False) == NONE
    assert broker.logs.logs[A0].lack is None


def test_offline_replica_is_known_and_says_so_whatever_the_epoch(broker) -> None:
    broker.logs.offline[A0] = "damaged"
    assert broker.lead(epoch=4, new=False) == STORAGE
    assert broker.lead(epoch=4, new=False) == STORAGE
    assert broker.lead(epoch=5, leader=-1, new=False) == STORAGE
    with pytest.raises(KafkaStorageError, match="damaged"):
        broker.replicas.leader(A0)
    partition = broker.replicas.get(A0)
    assert partition.leadership.leader_epoch == 5
    assert partition.offline_reason == "damaged"
    assert partition.hosted_log is None


def test_disk_that_refuses_takes_the_replica_offline(broker) -> None:
    full = TopicPartition("full", 0)
    assert broker.lead(full) == STORAGE
    assert broker.replicas.get(full).offline_reason == "no space"
    assert broker.lead() == NONE
    broker.logs.logs[A0].role = ("broken",)
    assert broker.lead(epoch=1) == STORAGE
    with pytest.raises(KafkaStorageError):
        broker.replicas.leader(A0)


def test_replicas_that_cannot_start_share_a_line_per_topic_and_reason(broker, caplog) -> None:
    gone = "records may be in a missing log directory"
    partitions = [TopicPartition(A0.topic, index) for index in range(5)]
    broker.logs.lost = {**dict.fromkeys(partitions, gone), partitions[4]: "another reason"}
    requests = [leader_and_isr(tp, ME, 0, (ME,), ID, new=False, replicas=[ME]) for tp in partitions]
    request = requests[0]
    request.topic_states[0].partition_states = [
        one.topic_states[0].partition_states[0] for one in requests
    ]
    with caplog.at_level(logging.DEBUG, logger="plog.cluster.replica_manager"):
        (answer,) = broker.send(request).topics
    assert [one.error_code for one in answer.partition_errors] == [STORAGE] * 5
    lines = {level: [] for level in (logging.ERROR, logging.DEBUG)}
    for record in caplog.records:
        lines[record.levelno].append(record.getMessage())
    assert lines[logging.ERROR] == [
        f"cannot start replicas of 4 partitions of {A0.topic}: {gone}",
        f"cannot start replica {A0.topic}-4: another reason",
    ]
    assert lines[logging.DEBUG] == [
        f"cannot start replica {A0.topic}-{index}: {gone}" for index in range(4)
    ]


def test_replica_refused_for_space_is_taken_up_when_there_is_some(broker, caplog) -> None:
    no_space = KafkaStorageError("no space")
    no_space.__cause__ = OSError(errno.ENOSPC, "no space")
    broker.logs.refusal = no_space
    broker.logs.space = False
    for _ in range(2):
        assert broker.lead() == STORAGE
    assert caplog.text.count("cannot start replica") == 1
    broker.replicas.ask_again_for_refused()
    assert broker.reports == 0
    broker.logs.refusal, broker.logs.space = None, True
    broker.replicas.ask_again_for_refused()
    assert broker.reports == 1
    # Asked again, it has an older order and the one that it refused.
    assert broker.lead(epoch=-1, new=False) == STORAGE
    assert broker.lead(new=False) == NONE
    assert broker.replicas.leader(A0).offline_reason is None
    assert broker.lead(new=False) == STALE
    broker.replicas.ask_again_for_refused()
    assert broker.reports == 1
    # Also where the log is there, and its leader epoch could not be written.
    broker.logs.logs[A0].refusal = no_space
    assert broker.lead(epoch=1, new=False) == STORAGE
    broker.logs.logs[A0].refusal = None
    assert broker.lead(epoch=1, new=False) == NONE
    broker.replicas.leader(A0, 1)


def test_replica_recovered_after_the_start_is_taken_up_with_the_order_it_refused(
    broker, caplog
) -> None:
    broker.lead()
    log = broker.logs.logs.pop(A0)
    again = Broker()
    again.obey_changes()
    again.logs.offline[A0] = "no space to recover it"
    assert again.lead(new=False) == STORAGE
    assert again.lead(epoch=1, new=False) == STORAGE
    # Its log is there, and nobody has been told.
    again.logs.logs[A0] = log
    del again.logs.offline[A0]
    log.refusal = KafkaStorageError("no space")
    log.refusal.__cause__ = OSError(errno.ENOSPC, "no space")
    caplog.clear()
    assert again.lead(epoch=1, new=False) == STORAGE
    assert caplog.text == ""
    again.replicas.on_late_recovery([A0])
    assert again.reports == 1
    assert again.lead(new=False) == STORAGE
    # Its leader epoch could not be written: that is tried again, too.
    assert again.lead(epoch=1, new=False) == STORAGE
    again.replicas.ask_again_for_refused()
    assert again.reports == 2
    log.refusal = None
    assert again.lead(epoch=1, new=False) == NONE
    assert again.replicas.leader(A0, 1).hosted_log is log
    assert log.settings is not None  # which may have changed while it was recovered
    assert again.lead(epoch=1, new=False) == STALE


def test_recovered_replica_that_goes_again_is_not_made_anew(broker) -> None:
    broker.logs.offline[A0] = "no space to recover it"
    assert broker.lead(new=False) == STORAGE
    del broker.logs.offline[A0]
    broker.replicas.on_late_recovery([A0])
    broker.logs.offline_log_dirs = [Path("/d1")]
    assert broker.lead(new=False) == STORAGE
    assert broker.logs.logs == {}


def test_recovery_that_comes_before_any_order_needs_none_again(broker) -> None:
    broker.replicas.on_late_recovery([A0])
    assert broker.reports == 0
    assert broker.lead() == NONE
    assert broker.lead(new=False) == STALE


def test_lost_directory_takes_its_replicas_and_no_others(broker) -> None:
    broker.lead()
    broker.lead(A1)
    broker.logs.logs[A1].log_dir = Path("/d1")
    broker.changed.clear()
    broker.replicas.on_log_dir_failure(Path("/d1"), "Input/output error")
    assert (broker.changed, broker.reports) == ([A1], 1)
    broker.replicas.leader(A0)
    with pytest.raises(KafkaStorageError, match="Input/output error"):
        broker.replicas.leader(A1)
    # Asked with the epoch it knows, it tells the controller which it has lost.
    assert broker.lead(new=False) == STALE
    assert broker.lead(A1, new=False) == STORAGE
    broker.logs.offline[A0] = "a flipped bit"
    broker.replicas.on_damage(A0, "a flipped bit")
    with pytest.raises(KafkaStorageError, match="a flipped bit"):
        broker.replicas.leader(A0)
    assert broker.reports == 2


@pytest.mark.parametrize("topic_id", [ID, OTHER_ID], ids=["replica", "topic"])
def test_damage_of_a_deleted_log_is_not_that_of_the_next_replica(broker, topic_id) -> None:
    broker.lead()
    broker.logs.offline[A0] = "a flipped bit"
    # Both orders come before the broker hears of the damage.
    assert broker.stop() == NONE
    assert broker.lead(topic_id=topic_id) == NONE
    broker.fetchers.following[A0] = PEER
    broker.replicas.on_damage(A0, "a flipped bit")
    assert broker.replicas.leader(A0).offline_reason is None
    assert broker.fetchers.following == {A0: PEER}
    assert broker.reports == 0


STOPPED = [
    (-2, True, NONE, []),
    (-1, True, NONE, []),
    (5, True, NONE, []),
    (4, True, ErrorCode.FENCED_LEADER_EPOCH, [A0]),
    (-2, False, NONE, [A0]),
    (5, False, NONE, [A0]),
]


@pytest.mark.parametrize(("epoch", "delete", "code", "left"), STOPPED)
def test_stopped_replica_goes_or_stays_as_ordered(broker, epoch, delete, code, left) -> None:
    broker.lead(epoch=5)
    partition = broker.replicas.get(A0)
    assert broker.stop(epoch=epoch, delete=delete) == code
    assert [one.topic_partition for one in broker.replicas.partitions] == left
    assert broker.logs.deleted == ([A0] if not left else [])
    if code == NONE:
        with pytest.raises(NotLeaderOrFollower):
            partition.check_leader()
    with pytest.raises(UnknownTopicId):
        broker.replicas.by_id(OTHER_ID, 0)
    # A stopped replica can be taken up again, at a newer epoch.
    assert broker.lead(epoch=6) == NONE
    assert broker.replicas.by_id(ID, 0).is_leader


def test_replica_nobody_took_up_since_the_start_is_deleted_too(broker) -> None:
    broker.logs.create(A0, ID, None)
    assert broker.stop() == NONE
    assert broker.logs.deleted == [A0]
    assert broker.stop(A1) == NONE


def test_damaged_log_can_be_deleted_but_not_one_on_a_lost_disk(broker) -> None:
    broker.logs.offline[A0] = "damaged"
    broker.lead(new=False)
    broker.logs.offline_log_dirs = [Path("/d1")]
    assert broker.stop() == STORAGE
    broker.logs.offline_log_dirs = []
    assert broker.stop() == NONE
    assert broker.lead(topic_id=OTHER_ID) == NONE


def test_lookup_tells_nowhere_from_elsewhere(broker) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        broker.replicas.leader(A0)
    broker.announce(leader=PEER)
    with pytest.raises(NotLeaderOrFollower):
        broker.replicas.leader(A0)
    broker.announce(leader=-2)
    with pytest.raises(UnknownTopicOrPartition):
        broker.replicas.leader(A0)


CHECKED = [
    (ME, -1, None),
    (ME, 4, None),
    (ME, 3, FencedLeaderEpoch),
    (ME, 5, UnknownLeaderEpoch),
    (PEER, -1, NotLeaderOrFollower),
    (PEER, 4, NotLeaderOrFollower),
    (PEER, 3, FencedLeaderEpoch),
    (PEER, 5, UnknownLeaderEpoch),
    (-1, -1, NotLeaderOrFollower),
]


@pytest.mark.parametrize(("leader", "asked", "error"), CHECKED)
def test_epoch_a_client_believes_in_is_checked(broker, leader, asked, error) -> None:
    broker.lead(leader=leader, epoch=4)
    if error is None:
        assert broker.replicas.leader(A0, asked).topic_partition == A0
    else:
        with pytest.raises(error):
            broker.replicas.leader(A0, asked)


APPENDED = [("a", (ME,), -1, None), ("safe", (ME,), 1, None), ("safe", (ME, PEER), -1, None),
            ("safe", (ME,), -1, NotEnoughReplicas)]  # fmt: skip


@pytest.mark.parametrize(("topic", "isr", "acks", "error"), APPENDED)
def test_acks_all_needs_the_replicas_in_sync(broker, topic, isr, acks, error) -> None:
    at = TopicPartition(topic, 0)
    broker.lead(at, isr=isr)
    partition = broker.replicas.leader(at)
    broker.changed.clear()
    if error is None:
        assert partition.append(bytearray(b"x"), acks=acks, now_ms=0).base_offset == 3
        assert broker.changed == [at]
    else:
        with pytest.raises(error):
            partition.append(bytearray(b"x"), acks=acks, now_ms=0)
        assert broker.logs.logs[at].log_end_offset == 3


def test_settings_reach_the_replicas_of_their_topic(broker) -> None:
    broker.lead()
    broker.lead(TopicPartition("b", 0), topic_id=OTHER_ID)
    changed = TopicSettings(BrokerSettings(), {"retention.ms": "5"})
    broker.replicas.update_topic_settings("a", changed)
    assert broker.replicas.get(A0).settings.retention_ms == 5
    assert broker.logs.logs[A0].settings is changed
    assert broker.logs.logs[TopicPartition("b", 0)].settings is None


@pytest.mark.parametrize(("fake", "step"), [(FakeLogs, "create_all"), (FakeLog, "become_leader")])
def test_settings_that_change_while_a_replica_is_taken_up_reach_it_and_its_log(
    broker, monkeypatch, fake, step
) -> None:
    broker.obey_changes()
    real = getattr(fake, step)

    def call(self, *args, **options):
        done = real(self, *args, **options)
        broker.alter("a", {"retention.ms": "5"})
        return done

    monkeypatch.setattr(fake, step, call)
    assert broker.lead() == NONE
    partition = broker.replicas.get(A0)
    assert partition.settings.retention_ms == 5
    assert partition.log.settings is partition.settings


def test_coordinators_hear_of_roles_though_the_store_goes_away(broker: Broker) -> None:
    broker.reads_left = 1
    with pytest.raises(Unreachable):
        broker.lead()
    broker.reads_left = -1
    assert broker.lead() == STALE  # nothing is left to do
    assert [one.topic_partition for leading, _ in broker.roles for one in leading] == [A0]


def test_controller_learns_from_a_repeated_order_that_a_replica_is_usable(broker: Broker) -> None:
    broker.logs.refusal = no_space()
    assert read(broker.send(leader_and_isr(A0, ME, 0, (ME,), ID, True))) == ((), (A0,))
    broker.logs.refusal = None
    broker.reads_left = 1
    with pytest.raises(Unreachable):
        broker.send(ORDER)  # it is obeyed, and its response is lost
    broker.reads_left = -1
    response = broker.send(ORDER)
    assert response.topics[0].partition_errors[0].error_code == STALE
    assert read(response) == ((A0,), ())


ORDER = leader_and_isr(A0, ME, 0, (ME,), ID, False)


def read(response: LeaderAndIsrResponse) -> tuple[tuple[TopicPartition, ...], ...]:
    """Return the partitions that the controller takes for online and for offline."""
    answered = leader_and_isr_answered(LiveBroker(ME, 50, ()), {ID: A0.topic}, response)
    return answered.online, answered.offline


def test_unforeseen_failure_leaves_no_role_untold(broker: Broker, monkeypatch, caplog) -> None:
    order = leader_and_isr(A0, ME, 0, (ME,), ID, True)
    for at, leader in ((TopicPartition("full", 0), ME), (A1, PEER), (TopicPartition("bug", 0), ME)):
        order.topic_states += leader_and_isr(at, leader, 0, (ME,), ID, True).topic_states
    real = broker.logs.get

    def get(at: TopicPartition) -> FakeLog | None:
        if at.topic == "bug" and A1 in broker.logs.logs:
            raise RuntimeError("a bug")
        return real(at)

    monkeypatch.setattr(broker.logs, "create_all", lambda new: [])
    monkeypatch.setattr(broker.logs, "get", get)
    with pytest.raises(RuntimeError):
        broker.send(order)
    ((leading, following),) = broker.roles
    assert [one.topic_partition for one in (*leading, *following)] == [A0, A1]
    assert broker.fetchers.following == {A1: PEER}
    assert "cannot start replica full-0: no space" in caplog.text


def test_order_without_settings_is_obeyed_when_it_comes_again(broker: Broker) -> None:
    broker.reads_left = 0
    with pytest.raises(Unreachable):
        broker.lead()
    assert broker.roles == []
    broker.reads_left = -1
    assert broker.lead() == NONE
