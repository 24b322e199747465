"""The store on a real ZooKeeper: connections that break, sessions that end, several servers."""

from __future__ import annotations

import queue
import random
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from kazoo.exceptions import SessionExpiredError

from plog.cluster import zookeeper_client, zookeeper_store
from plog.cluster.store import (
    ANY_VERSION,
    Change,
    CheckOp,
    CreateOp,
    DeleteOp,
    Op,
    SessionEvent,
    SetOp,
    Store,
    StoreError,
    Unreachable,
    WatchEvent,
)
from plog.cluster.zookeeper_client import OPEN, Access
from plog.cluster.zookeeper_store import AT_ONCE, ZooKeeperStore, end_session
from plog.errors import ConfigError
from plog.settings.definitions import BrokerSettings
from tests.agreement.harness import run_seed
from tests.cluster.cutting_proxy import CuttingProxy
from tests.compat.live_kafka import ZooKeeper
from tests.waiting import until

WAIT_S = 40
SESSION_MS = 6_000
READERS = 6
MINE = Access("plog:secret", protects_nodes=True)


@pytest.fixture(autouse=True)
def _reconnects_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_client, "RECONNECT_S", 0.001)
    monkeypatch.setattr(zookeeper_store, "PAUSE_S", 0.005)


@dataclass
class World:
    """A store behind a proxy, and one that reaches the server directly."""

    proxy: CuttingProxy
    store: ZooKeeperStore
    other: ZooKeeperStore
    connect: str


@pytest.fixture
def world(zookeeper: ZooKeeper) -> Iterator[World]:
    proxy, root = CuttingProxy(zookeeper.port), uuid.uuid4()
    connect = f"127.0.0.1:{proxy.port}/{root}"
    store = ZooKeeperStore(connect, session_timeout_ms=SESSION_MS)
    other = ZooKeeperStore(f"{zookeeper.bootstrap}/{root}", session_timeout_ms=SESSION_MS)
    yield World(proxy, store, other, connect)
    for one in store, other:
        one.close()
    proxy.close()


# -- connections that break ------------------------------------------------------------------------


WRITES: dict[str, tuple[list[Op], list[Op]]] = {
    "create": ([], [CreateOp("/n", b"x")]),
    "create ephemeral": ([], [CreateOp("/n", b"x", ephemeral=True)]),
    "create sequential": ([CreateOp("/q")], [CreateOp("/q/n_", sequential=True)]),
    "set": ([CreateOp("/n", b"x")], [SetOp("/n", b"y", 0)]),
    "delete": ([CreateOp("/n", b"x")], [DeleteOp("/n", ANY_VERSION)]),
    "multi": (
        [CreateOp("/a"), CreateOp("/b", b"1")],
        [CheckOp("/a", 0), SetOp("/b", b"2", 0), CreateOp("/c"), DeleteOp("/a", 0)],
    ),
}
"""The nodes before, and the operation."""
READS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("/n"),
    "get many": lambda store: store.get_many(["/n", "/none", "/n"]),
    "exists": lambda store: store.exists("/n"),
    "children": lambda store: store.children("/"),
    "sync": lambda store: store.sync(),
    "watch many": lambda store: len(store.watch_data_many(["/n", "/none"], lambda event: None)),
}


def tree(store: Store) -> dict[str, bytes]:
    return {path: store.get(path)[0] for path in store.descendants("/") if path != "/"}


def clear(store: Store) -> None:
    for path in store.descendants("/"):
        if path != "/":
            store.delete(path)


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except Unreachable:
        return "unknown"
    except StoreError as error:
        return type(error).__name__
    return "done"


def request_bytes(world: World, call: Callable[[], object]) -> int:
    before = world.proxy.passed["request"]
    call()
    return world.proxy.passed["request"] - before


@pytest.mark.parametrize("kind", WRITES)
def test_write_that_is_cut_at_any_byte_is_done_whole_or_not_at_all(world: World, kind: str) -> None:
    first, ops = WRITES[kind]
    if first:
        world.other.multi(first)
    before = tree(world.other)
    size = request_bytes(world, lambda: world.store.multi(ops))
    after = tree(world.other)
    assert before != after or kind == "multi"
    seen = set()
    for cut in range(size + 1):
        clear(world.other)
        if first:
            world.other.multi(first)
        world.proxy.cut_after(requests=cut)
        said = outcome(lambda: world.store.multi(ops))
        world.store.exists("/")  # connected again: whatever was under way has come or not
        found = tree(world.other)
        assert said == "unknown", (cut, said)
        assert found in (before, after) or kind == "create sequential", (cut, found)
        seen.add(found == before)
        if cut < size:
            assert found == before, "a part of a request does nothing"
    assert seen == {True, False}, "and a whole one is done, though its answer is lost"


@pytest.mark.parametrize("kind", WRITES)
def test_write_whose_answer_is_cut_at_any_byte_is_done_once(world: World, kind: str) -> None:
    first, ops = WRITES[kind]
    if first:
        world.other.multi(first)
    before = world.proxy.passed["answer"]
    world.store.multi(ops)
    size = world.proxy.passed["answer"] - before
    after = tree(world.other)
    for cut in range(size):
        clear(world.other)
        if first:
            world.other.multi(first)
        world.proxy.cut_after(answers=cut)
        assert outcome(lambda: world.store.multi(ops)) == "unknown", cut
        world.store.exists("/")
        found = tree(world.other)
        assert found == after or (kind == "create sequential" and len(found) == len(after)), cut


@pytest.mark.parametrize("side", ["requests", "answers"])
@pytest.mark.parametrize("kind", READS)
def test_read_that_is_cut_at_any_byte_is_asked_again(world: World, kind: str, side: str) -> None:
    world.other.create("/n", b"x" * 20)
    read = READS[kind]
    passed = side.removesuffix("s")
    before = world.proxy.passed[passed]
    expected = read(world.store)
    for cut in range(world.proxy.passed[passed] - before + 1):
        world.proxy.cut_after(**{side: cut})
        assert read(world.store) == expected, cut
        world.proxy.cut_after()


@pytest.mark.parametrize("side", ["requests", "answers"])
def test_setup_of_a_session_that_is_cut_at_any_byte_goes_on(
    zookeeper: ZooKeeper, side: str
) -> None:
    """The connection, the user's right, and the path of the store."""
    passed = side.removesuffix("s")
    set_up: list[int] = []

    def open_and_use(proxy: CuttingProxy) -> None:
        connect = f"127.0.0.1:{proxy.port}/{uuid.uuid4().hex[:8]}"
        opened = ZooKeeperStore(connect, session_timeout_ms=SESSION_MS, access=MINE)
        with closing(opened) as store:
            set_up.append(proxy.passed[passed])
            store.create("/n", b"x", ephemeral=True)
            assert store.get("/n")[1].ephemeral_owner == store.session_id

    with closing(CuttingProxy(zookeeper.port)) as proxy:
        open_and_use(proxy)
        for cut in range(set_up[0]):
            proxy.cut_after(**{side: cut})
            open_and_use(proxy)
        assert proxy.cuts == set_up[0] > 100


def test_seeded_cuts_lose_no_write_that_was_answered(world: World) -> None:
    chance = random.Random(run_seed())
    world.store.create("/n")
    certain = unknown = 0
    for _ in range(200):
        if chance.random() < 0.5:
            side = chance.choice(["requests", "answers"])
            world.proxy.cut_after(**{side: chance.randrange(150)})
        try:
            world.store.set("/n", b"")
        except Unreachable:
            unknown += 1
        else:
            certain += 1
    world.proxy.cut_after()
    version = world.store.get("/n")[1].version
    assert certain <= version <= certain + unknown
    assert min(certain, unknown) > 10


# -- watches ---------------------------------------------------------------------------------------


def test_watch_reports_what_changed_while_there_was_no_connection(world: World) -> None:
    seen: queue.Queue[WatchEvent] = queue.Queue()
    for path in ("/kept", "/set", "/gone", "/again", "/parent"):
        world.other.create(path)
    for path in ("/kept", "/set", "/gone", "/again", "/fresh"):
        world.store.watch_data(path, seen.put)
    world.store.watch_children("/parent", seen.put)
    world.proxy.refuse()
    world.other.set("/set", b"x")
    world.other.delete("/gone")
    world.other.delete("/again")
    world.other.create("/again")
    world.other.create("/fresh")
    world.other.create("/parent/child")
    assert seen.empty()
    world.proxy.refuse(is_refusing=False)
    found = [seen.get(timeout=WAIT_S) for _ in range(6)]
    assert found == [
        WatchEvent(Change.CHANGED, "/set"),
        WatchEvent(Change.DELETED, "/gone"),
        WatchEvent(Change.DELETED, "/again"),
        WatchEvent(Change.CREATED, "/again"),
        WatchEvent(Change.CREATED, "/fresh"),
        WatchEvent(Change.CHILDREN, "/parent"),
    ]
    for path in ("/kept", "/set", "/again", "/fresh"):  # each is armed, and once
        world.other.set(path, b"again")
        assert seen.get(timeout=WAIT_S) == WatchEvent(Change.CHANGED, path)
    world.other.delete("/parent/child")
    assert seen.get(timeout=WAIT_S) == WatchEvent(Change.CHILDREN, "/parent")
    assert seen.empty()


def test_reader_misses_no_end_state_though_connections_break(world: World) -> None:
    chance = random.Random(run_seed())
    seen: queue.Queue[WatchEvent] = queue.Queue()
    world.other.create("/n", b"0")
    world.store.watch_data("/n", seen.put)
    for number in range(1, 60):
        if number % 3 == 0:
            world.proxy.cut_after(answers=chance.randrange(80))
        for _ in range(chance.randrange(1, 4)):
            world.other.set("/n", b"%d" % number)
        read = b""
        while read != b"%d" % number:
            seen.get(timeout=WAIT_S)
            read = world.store.get("/n")[0]
        while not seen.empty():
            seen.get()


def test_children_of_a_node_that_was_deleted_and_created_again_are_watched(world: World) -> None:
    seen: queue.Queue[WatchEvent] = queue.Queue()
    world.other.create("/p")
    world.store.watch_children("/p", seen.put)
    children = WatchEvent(Change.CHILDREN, "/p")
    for change in (
        lambda: world.other.create("/p/a"),
        lambda: world.other.delete("/p/a"),
        lambda: world.other.delete("/p"),
        lambda: world.other.create("/p"),
        lambda: world.other.create("/p/b"),
    ):
        change()
        assert seen.get(timeout=WAIT_S) == children
    assert seen.empty()


@pytest.mark.parametrize("is_new_connection", [False, True])
def test_many_watches_are_armed_together(
    world: World, monkeypatch: pytest.MonkeyPatch, is_new_connection: bool
) -> None:
    seen: queue.Queue[WatchEvent] = queue.Queue()
    paths = [f"/{number}" for number in range(AT_ONCE + 50)]
    ask = world.store._client.exists_async
    asked: list[str] = []
    asked_before_answers: list[int] = []

    def exists_async(path: str, watch: Callable[[object], None]) -> SimpleNamespace:
        asked.append(path)
        answer = ask(path, watch=watch)

        def get(timeout: float) -> object:
            asked_before_answers.append(len(asked))
            return answer.get(timeout=timeout)

        return SimpleNamespace(get=get)

    if is_new_connection:
        world.store.watch_data_many(paths, seen.put)
        world.proxy.refuse()
    monkeypatch.setattr(world.store._client, "exists_async", exists_async)
    if is_new_connection:
        world.other.create(paths[-1])
        world.proxy.refuse(is_refusing=False)
        assert seen.get(timeout=WAIT_S) == WatchEvent(Change.CREATED, paths[-1])
    else:
        world.store.watch_data_many(paths, seen.put)
    # On a slow host the connection may be lost after that: then they are armed again.
    assert asked[: len(paths)] == paths
    assert sorted(set(asked_before_answers))[:2] == [AT_ONCE, len(paths)]


def cut_off(world: World) -> None:
    world.proxy.refuse()
    until(lambda: not world.store._client.connected, "cut off")


def suspended_and_back(world: World, seen: queue.Queue[object], created: Sequence[str]) -> None:
    """SUSPENDED comes while there is no connection, and the rest once there is one."""
    try:
        while seen.get(timeout=WAIT_S) is not SessionEvent.SUSPENDED:
            continue
    finally:
        world.proxy.refuse(is_refusing=False)
    while seen.get(timeout=WAIT_S) is not SessionEvent.CONNECTED:
        continue  # the session may have ended
    found = {seen.get(timeout=WAIT_S) for _ in created}
    assert found == {WatchEvent(Change.CREATED, path) for path in created}


@pytest.fixture
def seen(world: World, monkeypatch: pytest.MonkeyPatch) -> queue.Queue[object]:
    """Gets the events of the session. A wait for a connection would take hours."""
    events: queue.Queue[object] = queue.Queue()
    world.store.watch_session(events.put)
    monkeypatch.setattr(world.store._client, "session_timeout_ms", 10_000_000)
    return events


@pytest.mark.parametrize("pending", ["changes", "a new watch"])
def test_session_is_suspended_at_once_whatever_is_pending(
    world: World, seen: queue.Queue[object], pending: str
) -> None:
    is_held, goes_on = threading.Event(), threading.Event()

    def hold(_: WatchEvent) -> None:
        is_held.set()
        assert goes_on.wait(WAIT_S)

    paths = [f"/{number}" for number in range(5)]
    if pending == "changes":
        world.store.watch_data_many(paths, seen.put)
    world.store.watch_data("/gate", hold)
    with ThreadPoolExecutor(1) as beside:
        world.other.create("/gate")
        assert is_held.wait(WAIT_S)
        if pending == "a new watch":
            adding = beside.submit(world.store.watch_data_many, paths, seen.put)
        world.other.multi([CreateOp(path) for path in paths])
        waiting = world.store._watches._todo.qsize
        until(lambda: waiting() == (1 if pending == "a new watch" else len(paths)), "pending")
        cut_off(world)
        goes_on.set()
        if pending == "changes":
            suspended_and_back(world, seen, paths)
        else:
            suspended_and_back(world, seen, [])
            adding.result(WAIT_S)
            world.other.delete(paths[0])
            assert seen.get(timeout=WAIT_S) == WatchEvent(Change.DELETED, paths[0])


def test_session_is_suspended_at_once_though_a_watch_is_armed_without_a_connection(
    world: World, seen: queue.Queue[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes just before kazoo gets the request, which it keeps for the next one."""
    exists_async = world.store._client.exists_async

    def cut_before(path: str, watch: Callable[[object], None]) -> object:
        cut_off(world)
        return exists_async(path, watch=watch)

    world.store.watch_data("/n", seen.put)
    monkeypatch.setattr(world.store._client, "exists_async", cut_before)
    world.other.create("/n")
    until(lambda: not world.store._client.connected, "cut off")
    monkeypatch.setattr(world.store._client, "exists_async", exists_async)
    suspended_and_back(world, seen, ["/n"])


# -- sessions --------------------------------------------------------------------------------------


def test_session_that_expired_is_followed_by_a_new_one(world: World) -> None:
    states: queue.Queue[SessionEvent] = queue.Queue()
    seen: queue.Queue[WatchEvent] = queue.Queue()
    world.store.watch_session(states.put)
    world.store.create("/mine", ephemeral=True)
    world.store.watch_data("/mine", seen.put)
    before = world.store.session
    assert end_session(world.connect, before, within_s=WAIT_S)
    events = [states.get(timeout=WAIT_S)]
    while events[-1] is not SessionEvent.CONNECTED or SessionEvent.LOST not in events:
        events.append(states.get(timeout=WAIT_S))
    assert events[0] in (SessionEvent.SUSPENDED, SessionEvent.LOST)
    assert world.store.session.id != before.id
    assert seen.get(timeout=WAIT_S) == WatchEvent(Change.DELETED, "/mine")
    assert world.store.exists("/mine") is None
    world.store.create("/mine", ephemeral=True)
    assert world.store.get("/mine")[1].ephemeral_owner == world.store.session_id
    assert seen.get(timeout=WAIT_S) == WatchEvent(Change.CREATED, "/mine")
    assert not end_session(world.connect, before, within_s=WAIT_S), "it was over before"


REQUESTS = {
    "get": "get_async",
    "get many": "get_async",
    "exists": "exists_async",
    "children": "get_children_async",
    "sync": "sync_async",
    "watch many": "exists_async",
}
"""Which request of kazoo's a read begins with."""


@pytest.mark.parametrize("kind", READS)
def test_read_during_which_the_session_expires_is_asked_again(
    world: World, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    client, name = world.store._client, REQUESTS[kind]
    ask, session = getattr(client, name), world.store.session

    def ask_between(path: str, **options: object) -> object:
        monkeypatch.setattr(client, name, ask)
        cut_off(world)
        assert end_session(zookeeper.bootstrap, session, within_s=WAIT_S)
        asked = ask(path, **options)
        world.proxy.refuse(is_refusing=False)
        return asked

    world.other.create("/n", b"x")
    expected = READS[kind](world.other)
    monkeypatch.setattr(client, name, ask_between)
    assert READS[kind](world.store) == expected
    assert world.store.session.id != session.id


def test_store_that_is_cut_off_says_so_and_keeps_its_session(world: World) -> None:
    states: queue.Queue[SessionEvent] = queue.Queue()
    world.store.watch_session(states.put)
    world.store.create("/mine", ephemeral=True)
    session = world.store.session
    world.proxy.refuse()
    assert states.get(timeout=WAIT_S) is SessionEvent.SUSPENDED
    assert world.store.session == session
    assert world.store.session_id == session.id
    world.proxy.refuse(is_refusing=False)
    assert states.get(timeout=WAIT_S) is SessionEvent.CONNECTED
    assert world.store.session == session
    assert world.store.exists("/mine") is not None


def test_sessions_of_the_store_are_its_own_though_they_have_expired(world: World) -> None:
    states: queue.Queue[SessionEvent] = queue.Queue()
    world.store.watch_session(states.put)
    first = world.store.session
    assert end_session(world.connect, first, within_s=WAIT_S)
    while states.get(timeout=WAIT_S) is not SessionEvent.CONNECTED:
        pass
    assert world.store.is_own(first.id)
    assert world.store.is_own(world.store.session_id)
    assert not world.store.is_own(world.other.session_id)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("expires", [False, True], ids=["suspended", "expired"])
def test_client_that_fails_is_seen(
    world: World, monkeypatch: pytest.MonkeyPatch, expires: bool
) -> None:
    def fail(*_: object) -> None:
        if expires and not lost:
            lost.append(True)
            raise SessionExpiredError
        raise ValueError("what kazoo does not expect")

    lost: list[bool] = []
    monkeypatch.setattr(world.store._client._connection, "_connect", fail)
    assert not world.store.has_failed
    world.proxy.refuse()
    world.proxy.refuse(is_refusing=False)
    until(lambda: world.store.has_failed, "seen")
    assert outcome(lambda: world.store.get("/n")) in ("unknown", "SessionLost")
    world.store.close()
    assert not world.store.has_failed, "it was closed"


def test_connection_that_is_never_answered_is_given_up_within_a_session(
    zookeeper: ZooKeeper,
) -> None:
    """ZooKeeper leaves a connection that it accepts while it starts without an answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address, port = listening.getsockname()
        held: list[socket.socket] = []

        def answer_the_second() -> None:
            held.append(listening.accept()[0])
            client = listening.accept()[0]
            host, to = zookeeper.bootstrap.split(":")
            server = socket.create_connection((host, int(to)))
            held.extend((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=pass_on, args=(source, sink), daemon=True).start()

        threading.Thread(target=answer_the_second, daemon=True).start()
        connects(f"{address}:{port}")
        for one in held:
            one.close()


def test_host_that_is_off_leaves_time_for_the_others(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers no packet, as a listener whose backlog is full."""
    monkeypatch.setattr(random, "shuffle", lambda hosts: None)  # kazoo's order of hosts
    with ExitStack() as undo:
        off = undo.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address, port = off.getsockname()
        while True:
            waiting = undo.enter_context(socket.socket())
            waiting.settimeout(0.5)
            try:
                waiting.connect((address, port))
            except TimeoutError:
                break
        connects(f"{address}:{port},{zookeeper.bootstrap}")


def connects(hosts: str) -> None:
    """Connect to one of the servers in a session's time, and write to it."""
    connect = f"{hosts}/{uuid.uuid4()}"
    with closing(
        ZooKeeperStore(connect, session_timeout_ms=SESSION_MS, connection_timeout_ms=SESSION_MS)
    ) as store:
        store.create("/n")


def pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)


def test_call_without_a_server_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.store.create("/n")
    monkeypatch.setattr(world.store._client, "session_timeout_ms", 500)
    world.proxy.refuse()
    for call in (
        lambda: world.store.get("/n"),
        lambda: world.store.get_many(["/n"]),
        lambda: world.store.set("/n", b"x"),
        lambda: world.store.watch_data("/other", print),
    ):
        assert outcome(call) == "unknown"


def test_calls_of_many_threads_without_a_server_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes after they have looked for it, and before they ask."""
    await_connection, is_cut = world.store._await_connection, threading.Event()
    waiting = threading.Semaphore(0)

    def awaiting(until: float) -> None:
        await_connection(until)
        waiting.release()
        assert is_cut.wait(WAIT_S)

    world.store.create("/n")
    monkeypatch.setattr(world.store._client, "session_timeout_ms", 500)
    with ThreadPoolExecutor(READERS) as readers:
        with monkeypatch.context() as patch:
            patch.setattr(world.store, "_await_connection", awaiting)
            paths = ["/n"] * 10 * AT_ONCE
            outcomes = [
                readers.submit(outcome, lambda: world.store.get_many(paths)) for _ in range(READERS)
            ]
            try:
                for _ in range(READERS):
                    assert waiting.acquire(timeout=WAIT_S)
                world.proxy.refuse()
                until(lambda: not world.store._client.connected, "cut off")
                is_cut.set()
                assert [one.result(WAIT_S) for one in outcomes] == ["unknown"] * READERS
            finally:
                is_cut.set()
                world.proxy.refuse(is_refusing=False)
        until(lambda: outcome(lambda: world.store.get("/n")) == "done", "connected again")


def test_missing_server_is_reported_with_its_address() -> None:
    with pytest.raises(Unreachable, match=r"no ZooKeeper answers at 127\.0\.0\.1:1/x"):
        ZooKeeperStore("127.0.0.1:1/x", connection_timeout_ms=300)


def test_ephemeral_nodes_go_with_the_store(world: World) -> None:
    seen: queue.Queue[WatchEvent] = queue.Queue()
    world.store.create("/mine", ephemeral=True)
    world.other.watch_data("/mine", seen.put)
    world.store.close()
    assert seen.get(timeout=WAIT_S) == WatchEvent(Change.DELETED, "/mine")
    assert outcome(lambda: world.store.get("/mine")) == "SessionLost"
    world.store.close()


def test_path_of_the_store_is_made(zookeeper: ZooKeeper) -> None:
    root = f"/{uuid.uuid4()}/below"
    store = ZooKeeperStore(f"{zookeeper.bootstrap}{root}")
    store.create("/n", b"x")
    store.close()
    with zookeeper.client() as client:
        assert client.get(f"{root}/n")[0] == b"x"


def test_nodes_are_changed_by_the_user_who_made_them_and_read_by_all(zookeeper: ZooKeeper) -> None:
    root = f"{zookeeper.bootstrap}/{uuid.uuid4()}"
    accesses = {"mine": MINE, "same": Access("plog:secret"), "other": Access("plog:guess")}
    with ExitStack() as undo:
        stores = {
            name: undo.enter_context(closing(ZooKeeperStore(root, access=access)))
            for name, access in {**accesses, "without": OPEN}.items()
        }
        stores["mine"].create("/n", b"first")
        for name in ("other", "without"):
            assert stores[name].get("/n")[0] == b"first"
            with pytest.raises(
                StoreError, match=r"refuses this broker access to /n: check zookeeper\.digest"
            ):
                stores[name].set("/n", b"changed")
            with pytest.raises(
                StoreError, match=r"refuses this broker access to /n: check zookeeper\.digest"
            ):
                stores[name].delete("/n")
        assert stores["same"].set("/n", b"second").version == 1
        stores["same"].create("/open", b"")
        stores["without"].set("/open", b"without a user")


@pytest.mark.parametrize(
    ("texts", "fault"),
    [
        ({"zookeeper.set.acl": "true"}, r"zookeeper\.set\.acl: needs zookeeper\.digest"),
        ({"zookeeper.digest": "secret"}, r"zookeeper\.digest: is not user:password"),
    ],
)
def test_rights_need_a_user(texts: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        BrokerSettings(texts)


def test_settings_name_the_user() -> None:
    settings = BrokerSettings({"zookeeper.digest": "plog:secret", "zookeeper.set.acl": "true"})
    assert Access.of(settings) == Access("plog:secret", protects_nodes=True)
    assert "secret" not in repr(settings.zookeeper_digest)
    assert Access.of(BrokerSettings()) == OPEN
