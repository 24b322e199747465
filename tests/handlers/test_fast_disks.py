"""The fast path on disks that are slow, fail, or are left for another."""

from __future__ import annotations

import errno
import socket
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from plog._native.disk_room import DiskRoom
from plog._native.faults import Fault
from plog.cluster.disks import Disks
from plog.errors import ErrorCode
from plog.protocol.messages.fetch import FetchResponse
from plog.protocol.messages.produce import ProduceResponse
from plog.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from plog.storage.filesystem import Filesystem
from plog.storage.full_log_dirs import FullLogDirs
from plog.storage.live_log_dir import LiveLogDir
from plog.storage.log import Log
from plog.storage.log_moves import LogMoves
from plog.types import TopicPartition
from tests.handlers.running import (
    Running,
    ask_in_one_go,
    decoded,
    end_of,
    faults,
    framed,
    receive,
    records_of,
)
from tests.handlers.wire import (
    WAIT_MS,
    create_topic,
    fetch_request,
    flat,
    make_batch,
    produce_request,
)
from tests.planes import Plane


def partitions_by_disk(running: Running) -> tuple[str, int, int]:
    """Return (the first directory, its partition, the other's)."""
    (path,) = running.directory.glob("disk*/t-0")
    return str(path.parent), 0, 1


def make_slow(running: Running, disk: str, index: int) -> None:
    """Have the broker find out that a disk is slow: a write that takes 30 ms."""
    with faults(Fault("pwritev", delay_us=30_000, path_prefix=disk)):
        running.ask(produce_request([("t", index, make_batch())], acks=1), 9)


def test_slow_disk_keeps_nobody_from_another(two_disks: Running) -> None:
    disk, slow, quick = partitions_by_disk(two_disks)
    make_slow(two_disks, disk, slow)
    before = two_disks.fast_requests
    with faults(Fault("pwritev", delay_us=1_500_000, path_prefix=disk)):
        two_disks.send(produce_request([("t", slow, make_batch())], acks=1), 9)
        two_disks.until_waiting()
        for _ in range(20):
            two_disks.wire.ask(produce_request([("t", quick, make_batch())]), 9)
        assert two_disks.broker.reactor_stats.waiting == 1
        (part,) = flat(decoded(ProduceResponse, 9, two_disks.receive()))
    assert (part.error_code, part.base_offset) == (0, 1)
    assert two_disks.fast_requests == before + 21
    # Once it is fast again, so is its way.
    for offset in range(2, 80):
        frame = two_disks.ask(produce_request([("t", slow, make_batch())], acks=-1), 9)
        (part,) = flat(decoded(ProduceResponse, 9, frame))
        assert (part.error_code, part.base_offset) == (0, offset)
    assert two_disks.fast_requests == before + 99


def test_disk_that_is_slow_from_the_first_write_on_keeps_nobody_from_another(
    two_disks: Running,
) -> None:
    disk, slow, quick = partitions_by_disk(two_disks)
    with faults(Fault("pwritev", delay_us=1_500_000, path_prefix=disk)):
        two_disks.send(produce_request([("t", slow, make_batch())], acks=1), 9)
        two_disks.until_waiting()
        for _ in range(20):
            two_disks.wire.ask(produce_request([("t", quick, make_batch())]), 9)
        assert two_disks.broker.reactor_stats.waiting == 1
        two_disks.receive()


def make_fast(running: Running, disk: str) -> None:
    """Have it known that a disk is not slow, as after some writes."""
    assert running.broker._replicas is not None
    for _ in range(64):
        running.broker._replicas.disks.note_append(Path(disk), 0)


def produced(frame: bytes) -> tuple[int, int]:
    """Return the error and the offset of an answer to a Produce for one partition."""
    (part,) = flat(decoded(ProduceResponse, 9, frame))
    return part.error_code, part.base_offset


def test_disk_that_becomes_slow_is_waited_for_once(two_disks: Running) -> None:
    create_topic(two_disks.wire, "u", 16)
    disk, *_ = partitions_by_disk(two_disks)
    indexes = [int(path.name.removeprefix("u-")) for path in Path(disk).glob("u-*")]
    make_fast(two_disks, disk)
    requests = [produce_request([("u", at, make_batch())], acks=1) for at in indexes]
    with faults(Fault("pwritev", delay_us=100_000, path_prefix=disk)):
        # They are read in one round, and written one partition after the other.
        answers = ask_in_one_go(two_disks, *((request, 9) for request in requests))
    assert [produced(frame) for frame in answers] == [(0, 0)] * len(indexes)
    assert two_disks.callouts["unusual append"] == len(indexes) - 1 > 1


def test_large_batch_is_given_up_after_its_first_slow_write(two_disks: Running) -> None:
    disk, slow, _ = partitions_by_disk(two_disks)
    make_fast(two_disks, disk)
    large = produce_request([("t", slow, make_batch([b"v" * 900_000]))], acks=1)
    with faults(Fault("pwritev", delay_us=100_000, times=1, path_prefix=disk)):
        assert produced(two_disks.ask(large, 9)) == (0, 0)
    assert two_disks.callouts["unusual append"] == 1
    assert produced(two_disks.ask(large, 9)) == (0, 1)
    whole = fetch_request(("t", slow, 0), partition_max_bytes=2_000_000)
    assert records_of(two_disks.ask(whole, 12)) > 1_800_000


def test_request_for_two_disks_waits_once_for_one_that_becomes_slow(two_disks: Running) -> None:
    create_topic(two_disks.wire, "u", 16)
    disk, _, quick = partitions_by_disk(two_disks)
    (quick_path,) = two_disks.directory.glob(f"disk*/t-{quick}")
    make_fast(two_disks, disk)
    make_fast(two_disks, str(quick_path.parent))
    parts = [("u", index, make_batch()) for index in range(16)]
    with faults(Fault("pwritev", delay_us=30_000, path_prefix=disk)):
        frame = two_disks.ask(produce_request(parts, acks=1), 9)
    told = [
        (part.error_code, part.base_offset) for part in flat(decoded(ProduceResponse, 9, frame))
    ]
    assert told == [(0, 0)] * 16
    assert two_disks.callouts["unusual append"] == 1


def test_large_write_by_many_quick_calls_is_no_slow_one(
    soon_fast_again: None, two_disks: Running
) -> None:
    disk, index, _ = partitions_by_disk(two_disks)
    large = produce_request([("t", index, make_batch([b"v" * 900_000]))], acks=1)
    with faults(Fault("pwritev", delay_us=4_000, path_prefix=disk)):
        for offset in range(20):  # for a busy machine a call may take long
            make_fast(two_disks, disk)
            assert produced(two_disks.ask(large, 9)) == (0, offset)
            if not two_disks.broker._replicas.disks.is_slow(Path(disk)):
                break
        else:
            pytest.fail("eight calls of 4 ms each are taken for a slow disk")


@dataclass
class Numbering:
    """An idempotent producer on a connection of its own."""

    producer_id: int
    socket: socket.socket
    next_sequence: int = 0

    def send(self, count: int, size: int, index: int) -> None:
        """Send so many batches in one go."""
        sequences = range(self.next_sequence, self.next_sequence + count)
        self.next_sequence += count
        batches = [
            make_batch([b"v" * size], producer=(self.producer_id, 0, one)) for one in sequences
        ]
        requests = [produce_request([("t", index, batch)], acks=1) for batch in batches]
        self.socket.sendall(b"".join(framed(request, 9, 1) for request in requests))

    def answers(self, count: int) -> list[tuple[int, int]]:
        return [produced(receive(self.socket)) for _ in range(count)]


def test_round_is_written_as_far_as_the_disk_is_fast(
    soon_fast_again: None, two_disks: Running
) -> None:
    disk, slow, quick = partitions_by_disk(two_disks)
    (quick_path,) = two_disks.directory.glob(f"disk*/t-{quick}")
    with ExitStack() as stack:
        producers = [
            Numbering(producer_id, stack.enter_context(closing(two_disks.connect())))
            for producer_id in range(8)
        ]
        told = []
        for one in producers:
            one.send(1, 10, slow)  # makes it known
            told += one.answers(1)
        callouts = passed = two_disks.callouts["unusual append"]
        # How much is read in one round is the moment's; more than one write of 128 KB is to be.
        for attempt in range(1, 31):
            if passed > callouts:
                break
            make_fast(two_disks, disk)
            make_fast(two_disks, str(quick_path.parent))
            with faults(
                Fault("pwritev", delay_us=30_000, path_prefix=disk),
                # While the reactor waits for this one, what is sent below comes in.
                Fault(
                    "pwritev",
                    delay_us=min(attempt, 8) * 250_000,
                    path_prefix=str(quick_path),
                    times=1,
                ),
            ):
                two_disks.send(produce_request([("t", quick, make_batch())], acks=1), 9)
                for one in producers:
                    one.send(3, 20_000, slow)
                for one in producers:
                    told += one.answers(3)
            two_disks.receive()
            passed = two_disks.callouts["unusual append"]
    assert passed > callouts
    assert sorted(told) == [(0, offset) for offset in range(len(told))]
    assert end_of(two_disks, "t", slow) == len(told)


def test_slow_disk_does_not_keep_the_handlers_either(two_disks: Running) -> None:
    disk, slow, quick = partitions_by_disk(two_disks)
    make_slow(two_disks, disk, slow)
    with faults(Fault("pwritev", delay_us=1_500_000, path_prefix=disk)):
        # Producers that are new: the handlers' business.
        new = [make_batch(producer=(producer_id, 0, 0)) for producer_id in (71, 72)]
        two_disks.send(produce_request([("t", slow, new[0])], acks=1), 9)
        until = time.monotonic() + WAIT_MS / 1000
        while two_disks.callouts["unusual append"] == 0:
            assert time.monotonic() < until
            time.sleep(0.001)
        two_disks.wire.ask(produce_request([("t", quick, new[1])], acks=1), 9)
        two_disks.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            two_disks.socket.recv(1)
        two_disks.socket.settimeout(WAIT_MS / 1000)
        (part,) = flat(decoded(ProduceResponse, 9, two_disks.receive()))
    assert (part.error_code, part.base_offset) == (0, 1)


def test_cold_read_keeps_nobody_waiting(two_disks: Running) -> None:
    disk, cold, hot = partitions_by_disk(two_disks)
    data = make_batch([b"v" * 100_000])
    for index in (cold, hot):
        for _ in range(8):
            two_disks.ask(produce_request([("t", index, data)], acks=1), 9)
    with faults(
        Fault("is_resident", errno=errno.EAGAIN, path_prefix=disk),
        Fault("pread", delay_us=1_500_000, path_prefix=disk, times=1),
    ):
        two_disks.send(fetch_request(("t", cold, 3), partition_max_bytes=1), 12)
        two_disks.until_waiting()
        for offset in 2 * [*range(8)]:
            two_disks.wire.ask(fetch_request(("t", hot, offset), partition_max_bytes=1), 12)
        assert two_disks.broker.reactor_stats.waiting == 1
        frame = two_disks.receive()
    assert records_of(frame) == len(data)
    assert two_disks.callouts["unusual read"] == 0


def test_cold_read_of_which_a_part_has_gone_meanwhile_is_the_handlers(fast: Running) -> None:
    create_topic(fast.wire, "t", 2)
    data = make_batch([b"v" * 100_000])
    for index in (0, 1):
        for _ in range(12):
            fast.ask(produce_request([("t", index, data)], acks=1), 9)
    with (
        faults(
            Fault("is_resident", errno=errno.EAGAIN),
            Fault("pread", delay_us=1_000_000, times=1),
        ),
        socket.create_connection(("127.0.0.1", fast.port)) as other,
    ):
        # Keeps the thread of the disk; the next request has been found, and waits to be read there.
        other.sendall(framed(fetch_request(("t", 0, 9), partition_max_bytes=1), 12, 1))
        fast.until_waiting()
        fast.send(fetch_request(("t", 0, 3), ("t", 1, 3), partition_max_bytes=len(data)), 12)
        fast.until_waiting(2)
        gone = DeleteRecordsPartition(partition_index=0, offset=5)
        topics = [DeleteRecordsTopic(name="t", partitions=[gone])]
        fast.wire.ask(DeleteRecordsRequest(topics=topics, timeout_ms=WAIT_MS), 2)
        assert fast.broker.reactor_stats.waiting == 2
        answer = decoded(FetchResponse, 12, fast.receive())
    first, second = answer.responses[0].partitions
    assert (first.error_code, second.error_code) == (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NONE)
    assert len(second.records) == len(data)
    assert fast.callouts["unusual read"] == 1


def test_client_that_goes_while_its_disk_is_slow_harms_nobody(two_disks: Running) -> None:
    disk, slow, quick = partitions_by_disk(two_disks)
    make_slow(two_disks, disk, slow)
    with faults(Fault("pwritev", delay_us=100_000, path_prefix=disk)):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", two_disks.port)) as gone:
                gone.sendall(framed(produce_request([("t", slow, make_batch())]), 9, 1))
                two_disks.until_waiting()
            two_disks.until_waiting(0)
            two_disks.ask(produce_request([("t", quick, make_batch())]), 9)
        (part,) = flat(decoded(ProduceResponse, 9, two_disks.ask(
            produce_request([("t", slow, make_batch())]), 9)))  # fmt: skip
    # What had come whole was appended, each once.
    assert (part.error_code, part.base_offset) == (0, 6)


def test_stopping_waits_for_what_a_slow_disk_is_writing(two_disks: Running) -> None:
    disk, slow, _ = partitions_by_disk(two_disks)
    make_slow(two_disks, disk, slow)
    with faults(Fault("pwritev", delay_us=200_000, path_prefix=disk)):
        two_disks.send(produce_request([("t", slow, make_batch())]), 9)
        two_disks.until_waiting()
        stopping = threading.Thread(target=two_disks.stop_broker)
        stopping.start()
        (part,) = flat(decoded(ProduceResponse, 9, two_disks.receive()))
        assert (part.error_code, part.base_offset) == (0, 1)
        stopping.join()


@pytest.mark.parametrize("served_by", list(Plane), ids=str)
def test_flush_that_takes_longer_than_the_timeout_is_told(tmp_path: Path, served_by: Plane) -> None:
    one = Running(tmp_path, plane=served_by)
    create_topic(one.wire, "t")
    with faults(Fault("fdatasync", delay_us=400_000)):
        frame = one.ask(produce_request([("t", 0, make_batch())], timeout_ms=50), 9)
    (part,) = flat(decoded(ProduceResponse, 9, frame))
    assert part.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert part.error_message == "the records are not safe on every in-sync replica yet"
    # The batch is there all the same, and the connection goes on.
    (part,) = flat(
        decoded(ProduceResponse, 9, one.ask(produce_request([("t", 0, make_batch())]), 9))
    )
    assert (part.error_code, part.base_offset) == (0, 1)
    one.stop()


def test_flush_that_fails_is_told_to_all_who_wait(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    with faults(Fault("fdatasync", errno=errno.EIO)):
        request = produce_request([(topic, 0, make_batch())])
        (part,) = flat(decoded(ProduceResponse, 9, fast.ask(request, 9)))
        assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        (part,) = flat(decoded(ProduceResponse, 9, fast.ask(request, 9)))
        assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("served_by", list(Plane), ids=str)
def test_flush_without_a_descriptor_keeps_its_clients_waiting(
    tmp_path: Path, served_by: Plane
) -> None:
    one = Running(tmp_path, plane=served_by)
    create_topic(one.wire, "t")
    with faults(Fault("open_directory", errno=errno.EMFILE, times=1)):
        frame = one.ask(produce_request([("t", 0, make_batch())]), 9)
    (part,) = flat(decoded(ProduceResponse, 9, frame))
    assert (part.error_code, part.base_offset) == (0, 0)
    with faults(Fault("open_directory", errno=errno.EIO)):
        create_topic(one.wire, "u")
        frame = one.ask(produce_request([("u", 0, make_batch())]), 9)
    (part,) = flat(decoded(ProduceResponse, 9, frame))
    assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    one.stop()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_write_that_fails_is_told_as_the_handler_tells_it(tmp_path: Path, error: int) -> None:
    answers = []
    for plane in Plane:
        one = Running(tmp_path / plane.value, plane=plane)
        create_topic(one.wire, "t")
        one.ask(produce_request([("t", 0, make_batch())]), 9)
        with faults(Fault("pwritev", errno=error, path_prefix=str(tmp_path / plane.value / "t-0"))):
            frame = one.ask(produce_request([("t", 0, make_batch())]), 9)
        (part,) = flat(decoded(ProduceResponse, 9, frame))
        answers.append((part.error_code, part.base_offset, part.record_errors))
        again = one.ask(produce_request([("t", 0, make_batch())]), 9)
        answers.append(flat(decoded(ProduceResponse, 9, again))[0].error_code)
        one.stop()
    assert answers[0] == (ErrorCode.KAFKA_STORAGE_ERROR, -1, [])
    assert answers[:2] == answers[2:]


@pytest.mark.parametrize("served_by", list(Plane), ids=str)
@pytest.mark.parametrize("acks", [1, -1])
def test_partition_that_there_is_no_room_for_is_refused_and_its_neighbours_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int, served_by: Plane
) -> None:
    rooms: dict[Path, DiskRoom] = {}

    def look(_: FullLogDirs, live: LiveLogDir) -> None:
        rooms[live.path] = live.room

    monkeypatch.setattr(FullLogDirs, "look", look)
    monkeypatch.setattr(Filesystem, "device", lambda _, path: path)  # as if each were a disk
    disks = [tmp_path / "disk0", tmp_path / "disk1"]
    one = Running(tmp_path, log_dirs=",".join(map(str, disks)), plane=served_by)
    create_topic(one.wire, "t", 4)
    full, *_ = (n for n in range(4) if (disks[0] / f"t-{n}").exists())
    first, last = (n for n in range(4) if (disks[1] / f"t-{n}").exists())
    batch = make_batch([b"v" * 1000])
    for offset in range(3):
        rooms[disks[0]].left = offset * len(batch) + len(batch) // 2
        parts = [("t", number, batch) for number in (first, full, last)]
        answers = flat(decoded(ProduceResponse, 9, one.ask(produce_request(parts, acks=acks), 9)))
        refused = (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        expected = [(0, offset), (0, offset - 1) if offset else refused, (0, offset)]
        assert [(part.error_code, part.base_offset) for part in answers] == expected
        taken = len(batch) if offset else 0
        assert rooms[disks[0]].left == offset * len(batch) + len(batch) // 2 - taken
    assert one.fast_requests == (2 if served_by is Plane.FAST else 0)
    one.stop()


@pytest.mark.parametrize("served_by", list(Plane), ids=str)
def test_partitions_of_one_request_take_of_the_same_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served_by: Plane
) -> None:
    rooms: list[DiskRoom] = []
    monkeypatch.setattr(FullLogDirs, "look", lambda _, live: rooms.append(live.room))
    one = Running(tmp_path, plane=served_by)
    create_topic(one.wire, "t", 20)
    batch = make_batch([b"v" * 1000])
    rooms[-1].left = 3 * len(batch) + 1
    parts = [("t", number, batch) for number in range(20)]
    answers = flat(decoded(ProduceResponse, 9, one.ask(produce_request(parts, acks=1), 9)))
    assert sum(part.error_code == 0 for part in answers) == 3
    assert rooms[-1].left == 1
    one.stop()


def test_refused_write_says_nothing_of_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms: list[DiskRoom] = []
    disks: list[Disks] = []
    init = Disks.__init__
    monkeypatch.setattr(
        Disks, "__init__", lambda self, **several: disks.append(self) or init(self, **several)
    )
    monkeypatch.setattr(FullLogDirs, "look", lambda _, live: rooms.append(live.room))
    one = Running(tmp_path)
    create_topic(one.wire, "t")
    make_slow(one, str(tmp_path), 0)
    rooms[-1].left = 1
    for _ in range(100):
        frame = one.ask(produce_request([("t", 0, make_batch())], acks=1), 9)
        (part,) = flat(decoded(ProduceResponse, 9, frame))
        assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert one.callouts["unusual append"] == 100
    assert disks[-1].is_slow(tmp_path)
    one.stop()


# -- moves to another log directory


@pytest.mark.parametrize("replica_id", [-1, -2], ids=["fast", "handler"])
def test_log_that_moves_between_the_look_and_the_read_is_read_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replica_id: int
) -> None:
    moves: list[LogMoves] = []
    init = LogMoves.__init__
    monkeypatch.setattr(
        LogMoves, "__init__", lambda self, *parts: moves.append(self) or init(self, *parts)
    )
    one = Running(tmp_path, log_dirs=f"{tmp_path / 'disk0'},{tmp_path / 'disk1'}")
    at = TopicPartition("t", 0)
    create_topic(one.wire, at.topic)
    one.ask(produce_request([("t", 0, make_batch())]), 9)
    read = Log.read
    moved: list[Path] = []

    def read_late(log: Log, *args: object) -> object:
        if not moved:
            moved.extend({tmp_path / "disk0", tmp_path / "disk1"} - {log.log_dir})
            mover = threading.Thread(target=moves[0].move, args=(at, moved[0]))
            mover.start()
            mover.join()
        return read(log, *args)

    monkeypatch.setattr(Log, "read", read_late)
    answer = decoded(
        FetchResponse, 12, one.ask(fetch_request(("t", 0, 0), replica_id=replica_id), 12)
    )
    (part,) = answer.responses[0].partitions
    assert (part.error_code, part.high_watermark) == (0, 1)
    assert len(part.records) > 61
    assert len(moved) == (replica_id == -2)
    one.stop()
