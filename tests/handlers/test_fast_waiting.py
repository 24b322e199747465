"""Requests that wait in the reactor: acks=all for safety, Fetch for bytes."""

from __future__ import annotations

import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from plog._native.faults import Fault
from plog.errors import ErrorCode
from plog.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from plog.protocol.messages.fetch import FetchResponse
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.produce import ProduceResponse
from plog.protocol.messages.topics import DeleteTopicsRequest
from plog.protocol.schema import Struct
from tests.handlers.running import (
    Running,
    ask_in_one_go,
    decoded,
    end_of,
    faults,
    framed,
    records_of,
)
from tests.handlers.twins import GONE, Twins
from tests.handlers.wire import (
    WAIT_MS,
    create_topic,
    eventually,
    fetch_request,
    flat,
    make_batch,
    produce_request,
)


def test_roll_in_the_middle_of_a_request_appends_each_batch_once(twins: Twins) -> None:
    topic = twins.create_topic(segment_bytes=2048)
    for first in range(0, 60, 2):
        sizes = (200, 300, 400)  # so that the segments roll at different requests
        parts = [(topic, n, make_batch([b"v" * size] * 2)) for n, size in enumerate(sizes)]
        request = produce_request(parts, acks=(-1, 1)[first % 4 // 2])
        answer, expected = (one.ask(request, 9) for one in twins.both)
        assert answer == expected
        offsets = [part.base_offset for part in flat(decoded(ProduceResponse, 9, answer))]
        assert offsets == [first] * 3
    assert twins.fast.callouts["unusual append"] > 0


@pytest.mark.parametrize("by_handler", [False, True])
@pytest.mark.parametrize("acks", [1, -1])
def test_fetch_waits_for_bytes_and_is_woken_by_either_path(
    fast: Running, acks: int, by_handler: bool
) -> None:
    topic, _ = create_topic(fast.wire)
    begun = time.monotonic()
    fast.send(fetch_request((topic, 0, 0), max_wait_ms=WAIT_MS), 12)
    fast.until_waiting()
    before = fast.fast_requests
    # A producer that is new is the handler's.
    producer = (1000, 0, 0) if by_handler else (-1, -1, -1)
    request = produce_request([(topic, 0, make_batch(producer=producer))], acks=acks)
    fast.wire.ask(request, 9)
    assert fast.fast_requests - before == (not by_handler)
    assert records_of(fast.receive()) > 61
    assert time.monotonic() - begun < WAIT_MS / 2000


def test_handler_that_waits_is_woken_by_the_fast_path(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    begun = time.monotonic()
    # A debugging consumer: the handlers' business.
    callouts = sum(fast.callouts.values())
    fast.send(fetch_request((topic, 0, 0), max_wait_ms=WAIT_MS, replica_id=-2), 12)
    eventually(lambda: sum(fast.callouts.values()) > callouts, "it is handed over")
    fast.wire.ask(MetadataRequest(topics=[]), 9)  # a handler that begins behind it
    before = fast.fast_requests
    fast.wire.ask(produce_request([(topic, 0, make_batch())]), 9)
    assert fast.fast_requests == before + 1
    assert records_of(fast.receive()) > 61
    assert time.monotonic() - begun < WAIT_MS / 2000


def test_request_that_is_asked_about_repeatedly_counts_once(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    request = fetch_request(
        (topic, 0, 0), max_wait_ms=WAIT_MS, replica_id=-2, min_bytes=2 * len(make_batch())
    )
    before, asked = fast.fast_requests, sum(fast.callouts.values())
    fast.send(request, 12)
    for _ in range(2):
        fast.until_waiting()
        fast.wire.ask(produce_request([(topic, 0, make_batch())]), 9)
    assert records_of(fast.receive()) == 2 * len(make_batch())
    assert fast.fast_requests == before + 2
    assert sum(fast.callouts.values()) >= asked + 2


def test_fetch_that_waits_follows_its_log_to_another_directory(tmp_path: Path) -> None:
    dirs = [tmp_path / "disk0", tmp_path / "disk1"]
    one = Running(tmp_path, log_dirs=",".join(map(str, dirs)))
    try:
        topic, _ = create_topic(one.wire, partitions=1)
        (there,) = [path for path in dirs if not (path / f"{topic}-0").exists()]
        begun = time.monotonic()
        one.send(fetch_request((topic, 0, 0), max_wait_ms=WAIT_MS), 12)
        one.until_waiting()
        asked = AlterReplicaLogDirTopic(name=topic, partitions=[0])
        move = AlterReplicaLogDirsRequest(
            dirs=[AlterReplicaLogDir(path=str(there), topics=[asked])]
        )
        (result,) = one.wire.ask(move, 2).results
        assert [part.error_code for part in result.partitions] == [0]
        eventually(lambda: (there / f"{topic}-0").exists(), "it has moved")
        one.until_waiting()
        one.wire.ask(produce_request([(topic, 0, make_batch())]), 9)
        assert records_of(one.receive()) == len(make_batch())
        assert time.monotonic() - begun < WAIT_MS / 2000
    finally:
        one.stop()


def test_fetch_that_waits_is_answered_when_its_topic_is_deleted(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    begun = time.monotonic()
    fast.send(fetch_request((topic, 0, 0), max_wait_ms=WAIT_MS), 11)
    fast.until_waiting()
    fast.wire.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=WAIT_MS), 3)
    answer = decoded(FetchResponse, 11, fast.receive())
    assert time.monotonic() - begun < WAIT_MS / 2000
    # Its replica stops before the topic is unknown.
    assert answer.responses[0].partitions[0].error_code in (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )


def test_fetch_that_waits_in_vain_is_answered_at_its_time(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    begun = time.monotonic()
    answer = decoded(FetchResponse, 12, fast.ask(fetch_request((topic, 0, 0), max_wait_ms=300), 12))
    assert 0.29 <= time.monotonic() - begun < WAIT_MS / 2000
    assert answer.responses[0].partitions[0].error_code == 0


def test_fetch_that_waits_is_told_of_what_its_topic_comes_to(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    fast.send(fetch_request((topic, 0, 0), max_wait_ms=WAIT_MS), 12)
    fast.until_waiting()
    begun = time.monotonic()
    fast.wire.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=WAIT_MS), 3)
    answer = decoded(FetchResponse, 12, fast.receive())
    assert time.monotonic() - begun < WAIT_MS / 2000
    assert answer.responses[0].partitions[0].error_code in GONE


def test_requests_in_one_go_are_answered_in_order(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    requests = []
    for n in range(200):
        acks = (1, -1)[n % 2]
        requests.append(framed(produce_request([(topic, 0, make_batch())], acks=acks), 9, 5000 + n))
    fast.socket.sendall(b"".join(requests))
    for n in range(200):
        frame = fast.receive()
        assert struct.unpack_from(">i", frame)[0] == 5000 + n
        assert flat(decoded(ProduceResponse, 9, frame))[0].base_offset == n


def test_large_answers_in_one_go_all_come(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    fast.ask(produce_request([(topic, 0, make_batch([b"v" * 300_000]))], acks=1), 9)
    count = 40
    fast.socket.sendall(
        b"".join(framed(fetch_request((topic, 0, 0)), 12, 100 + n) for n in range(count))
    )
    for n in range(count):
        frame = fast.receive()
        assert struct.unpack_from(">i", frame)[0] == 100 + n
        assert records_of(frame) > 300_000


def test_client_that_goes_while_its_request_waits_harms_nobody(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", fast.port)) as gone:
            gone.sendall(
                framed(fetch_request((topic, 0, end_of(fast, topic)), max_wait_ms=5000), 12, 1)
            )
            fast.until_waiting()
        fast.ask(produce_request([(topic, 0, make_batch())]), 9)
    fast.until_waiting(0)
    assert end_of(fast, topic) == 50


def test_produces_of_one_client_share_a_flush(fast: Running) -> None:
    topic, _ = create_topic(fast.wire, partitions=3)
    requests = [(produce_request([(topic, n % 3, make_batch())]), 9) for n in range(30)]
    with faults(Fault("fdatasync", delay_us=300_000)):
        begun = time.monotonic()
        frames = ask_in_one_go(fast, *requests)
        # One flush of each partition after another, twice at most: not thirty.
        assert time.monotonic() - begun < 5
    found = [flat(decoded(ProduceResponse, 9, frame))[0] for frame in frames]
    assert [(part.error_code, part.base_offset) for part in found] == [
        (0, n // 3) for n in range(30)
    ]
    fast.until_waiting(0)


def test_answers_keep_their_order_whatever_follows_a_produce_that_waits(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)

    def sent(acks: int, producer: tuple[int, int, int] = (-1, -1, -1)) -> tuple[Struct, int]:
        return produce_request([(topic, 0, make_batch(producer=producer))], acks=acks), 9

    requests = [
        sent(-1),
        sent(1),
        sent(0),
        sent(-1),
        (fetch_request((topic, 0, 0)), 12),
        sent(-1),
        sent(-1, (900, 0, 0)),  # a new producer: Python's
        sent(-1, (900, 0, 1)),
        (MetadataRequest(topics=None), 9),
        sent(1),
        (produce_request([(topic, 7, make_batch())]), 9),  # no such partition: Python's
        sent(-1),
    ]
    with faults(Fault("fdatasync", delay_us=30_000)):
        frames = ask_in_one_go(fast, *requests)
    answers = dict(zip([n for n in range(12) if n != 2], frames, strict=True))
    offsets = {}
    for n in (0, 1, 3, 5, 6, 7, 9, 10, 11):
        (part,) = flat(decoded(ProduceResponse, 9, answers[n]))
        assert part.error_code == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if n == 10 else 0)
        offsets[n] = part.base_offset
    assert offsets == {0: 0, 1: 1, 3: 3, 5: 4, 6: 5, 7: 6, 9: 7, 10: -1, 11: 8}
    assert records_of(answers[4]) == 4 * len(make_batch())


def test_roll_behind_a_produce_that_waits_appends_each_batch_once(fast: Running) -> None:
    topic, _ = create_topic(fast.wire, partitions=2, segment_bytes=1500)
    batches = [make_batch([b"v" * 400]), make_batch([b"v" * 300])]
    requests = [
        (produce_request([(topic, 0, batches[0]), (topic, 1, batches[1])]), 9) for _ in range(20)
    ]
    with faults(Fault("fdatasync", delay_us=20_000)):
        frames = ask_in_one_go(fast, *requests)
    for n, frame in enumerate(frames):
        parts = flat(decoded(ProduceResponse, 9, frame))
        assert [(part.error_code, part.base_offset) for part in parts] == [(0, n), (0, n)]
    assert fast.callouts["unusual append"] > 0


def test_each_produce_that_waits_has_a_time_of_its_own(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    with faults(Fault("fdatasync", delay_us=1_000_000, times=1)):
        short = (produce_request([(topic, 0, make_batch())], timeout_ms=100), 9)
        patient = (produce_request([(topic, 0, make_batch())], timeout_ms=WAIT_MS), 9)
        frames = ask_in_one_go(fast, short, patient, short)
    codes = [flat(decoded(ProduceResponse, 9, frame))[0].error_code for frame in frames]
    # The third is over in time, too, but answered behind the second, and safe by then.
    assert codes == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE, ErrorCode.NONE]


def test_memory_of_what_waits_is_counted_and_comes_back(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    before = fast.broker.reactor_stats.queued_bytes
    with faults(Fault("fdatasync", delay_us=200_000)):
        for _ in range(20):
            fast.send(produce_request([(topic, 0, make_batch())]), 9)
        fast.until_waiting(20)
        waiting = fast.broker.reactor_stats.queued_bytes
        assert 20 * 200 < waiting - before < 20 * 4096
        for _ in range(20):
            fast.receive()
    fast.until_waiting(0)
    fast.send(fetch_request((topic, 0, 20), max_wait_ms=WAIT_MS), 12)
    fast.until_waiting()
    assert fast.broker.reactor_stats.queued_bytes > before
    fast.wire.ask(produce_request([(topic, 0, make_batch())]), 9)
    assert records_of(fast.receive()) > 61
    fast.until_waiting(0)
    assert fast.broker.reactor_stats.queued_bytes == before


def test_client_that_goes_while_its_produces_wait_harms_nobody(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    with faults(Fault("fdatasync", delay_us=50_000)):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", fast.port)) as gone:
                request = framed(produce_request([(topic, 0, make_batch())]), 9, 1)
                gone.sendall(request * 10)
                fast.until_waiting(10)
            fast.until_waiting(0)
    assert end_of(fast, topic) == 50


def test_topic_that_is_deleted_under_a_produce_that_waits(fast: Running) -> None:
    topic, _ = create_topic(fast.wire)
    with faults(Fault("fdatasync", delay_us=1_000_000, path_prefix=f"{fast.directory}/{topic}-0")):
        fast.send(produce_request([(topic, 0, make_batch())]), 9)
        fast.until_waiting()
        fast.wire.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=WAIT_MS), 3)
        (part,) = flat(decoded(ProduceResponse, 9, fast.receive()))
    # By then the flush may be done, too.
    assert part.error_code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_stopping_answers_what_waits_for_the_disk(tmp_path: Path) -> None:
    one = Running(tmp_path / "data")
    topic, _ = create_topic(one.wire)
    with faults(Fault("fdatasync", delay_us=200_000)):
        one.send(produce_request([(topic, 0, make_batch())]), 9)
        one.until_waiting()
        stopping = threading.Thread(target=one.stop_broker)
        stopping.start()
        (part,) = flat(decoded(ProduceResponse, 9, one.receive()))
        assert part.error_code == 0
        stopping.join()
    one.stop()
