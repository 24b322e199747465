"""Log directories that are not there at a start: missed again at the next one, whatever it was.

`data0` holds the topic "gone" and `data1` the topic "kept", a record each.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.known_log_dirs import LOG_DIRS, registered_log_dirs
from plog.cluster.store import DeleteOp
from plog.cluster.store_copy import FILE_NAME as STORE
from plog.errors import ErrorCode
from plog.runtime.clock import SystemClock
from plog.storage.log_dir import CLEAN_SHUTDOWN_FILE, META_PROPERTIES, decode_properties
from plog.types import uuid_to_text
from tests.broker.test_lost_replicas import partition_state
from tests.cli.conftest import command_line
from tests.handlers.wire import create_topic, make_batch, produce, speak
from tests.hosts.host import read_all, wait_until
from tests.servers import BrokerProcess

GONE = (ErrorCode.LEADER_NOT_AVAILABLE, -1, [0])
TIMEOUT_S = 120


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that has run and was stopped."""
    made = BrokerProcess(tmp_path, log_dirs=2)
    with made, closing(speak(made.port)) as client:
        for name in ("gone", "kept"):
            create_topic(client, name)
            assert produce(client, name, make_batch([b"before"])).error_code == ErrorCode.NONE
    for path, name in zip(made.log_dirs, ("gone", "kept"), strict=True):
        assert (path / f"{name}-0").is_dir()
    made.log_path.unlink()
    yield made
    made.kill()


def id_of(path: Path) -> str:
    return decode_properties((path / META_PROPERTIES).read_text())["directory.id"]


def registered(broker: BrokerProcess) -> dict[str, Path]:
    """Return what the store of a stopped broker remembers."""
    store = EmbeddedStore(
        [path for path in broker.log_dirs if (path / META_PROPERTIES).exists()],
        clock=SystemClock(),
    )
    try:
        return {uuid_to_text(one): path for one, path in registered_log_dirs(store, 0).items()}
    finally:
        store.close()


def forget_ids(broker: BrokerProcess) -> None:
    """Have the directories be those of a release that knew no ids."""
    store = EmbeddedStore(broker.log_dirs, clock=SystemClock())
    store.multi([DeleteOp(path) for path in store.descendants(LOG_DIRS)])
    store.close()
    for path in broker.log_dirs:
        meta = path / META_PROPERTIES
        kept = [line for line in meta.read_text().splitlines() if "directory.id" not in line]
        meta.write_text("\n".join(kept) + "\n")


def expect_missed(broker: BrokerProcess, *, end: Callable[[], None] | None = None) -> None:
    """Start: one topic is offline and not made anew, the other served, new partitions beside it."""
    broker.start()
    with Admin(broker.bootstrap) as admin, closing(speak(broker.port)) as client:
        wait_until(lambda: partition_state(client, "gone") == GONE, "leaderless", broker)
        code = produce(client, "gone", make_batch([b"meanwhile"])).error_code
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        assert partition_state(client, "kept") == (ErrorCode.NONE, 0, [])
        admin.create_topic("new", partitions=3)
        assert all((broker.log_dirs[1] / f"new-{n}").is_dir() for n in range(3))
        admin.delete_topic("new")
    assert not (broker.log_dirs[1] / "gone-0").exists()
    (end or broker.stop)()


def expect_served(broker: BrokerProcess) -> None:
    with broker:
        assert read_all(broker, "gone") == read_all(broker, "kept") == ["before"]


# -- starts that end early -------------------------------------------------------------------------

KILLED = """
import importlib, os, signal, sys
module, name = sys.argv[1].split(":")
module = importlib.import_module(module)
whole = getattr(module, name)
def killed(*arguments, **options):
    if sys.argv[2] == "behind":
        whole(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(module, name, killed)
from plog.cli import main
main(["server", *sys.argv[3:]])
"""


def arguments(broker: BrokerProcess) -> list[str]:
    return [
        word for key, value in broker.overrides.items() for word in ("--override", f"{key}={value}")
    ]


def killed_start(broker: BrokerProcess, step: str, when: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, step, when, *arguments(broker)],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()


def start_with_its_port_in_use(broker: BrokerProcess) -> None:
    with socket.create_server(("127.0.0.1", broker.port)):
        ended = subprocess.run(
            command_line("server", *arguments(broker)),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert b"Address already in use" in ended.stderr


def killed_after(step: str) -> Callable[[BrokerProcess], None]:
    return lambda broker: killed_start(broker, step, "behind")


EARLIER = {
    "killed after its first look": killed_after("plog.broker:find_log_dirs"),
    "killed with its store open": killed_after("plog.wiring.base:missing_log_dirs"),
    "killed with its logs loaded": killed_after("plog.wiring.base:register_log_dirs"),
    "killed before it listens": lambda broker: killed_start(
        broker, "plog.broker:listen_on", "before"
    ),
    "port in use": start_with_its_port_in_use,
    "whole": expect_missed,
    "whole, then killed": lambda broker: expect_missed(broker, end=broker.kill),
}


@pytest.mark.parametrize("earlier", EARLIER.values(), ids=EARLIER)
@pytest.mark.parametrize("by", ["registry", "first start with ids"])
def test_disk_that_is_not_mounted_is_missed_again_at_the_next_start(
    broker: BrokerProcess, earlier: Callable[[BrokerProcess], None], by: str
) -> None:
    place, away = broker.log_dirs[0], broker.directory / "away"
    if by != "registry":
        forget_ids(broker)
    place.rename(away)
    place.mkdir()
    earlier(broker)
    expect_missed(broker)
    assert list(place.iterdir()) == []
    lines = [line for line in broker.log.splitlines() if f"log directory {place} is off" in line]
    assert len(lines) == broker.log.count("listening on")
    assert all("Mount its disk and restart" in line for line in lines)
    assert f"{place} (directory.id " in broker.log
    place.rmdir()
    away.rename(place)
    expect_served(broker)
    assert registered(broker) == {id_of(path): path for path in broker.log_dirs}


@pytest.mark.parametrize("place_is", ["empty directory", "file", "absent"])
def test_damaged_store_beside_a_missing_disk_is_not_replaced(
    broker: BrokerProcess, place_is: str
) -> None:
    """The missing disk may have the only whole copy. Without it, its topics would be forgotten."""
    (place, left), away = broker.log_dirs, broker.directory / "away"
    place.rename(away)
    if place_is == "empty directory":
        place.mkdir()
    elif place_is == "file":
        place.touch()  # no directory can be created there
    (left / STORE).write_bytes(b"no database" * 1000)
    before = sorted(path.name for path in left.iterdir())
    ended = subprocess.run(
        command_line("server", *arguments(broker)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 1
    (line,) = [line for line in ended.stderr.splitlines() if "coordination store" in line]
    assert line.startswith("plog: no copy of the coordination store is whole")
    assert f"{place} may hold one: mount it and start again" in line
    assert sorted(path.name for path in left.iterdir()) == before
    if place_is == "empty directory":
        assert list(place.iterdir()) == []
        place.rmdir()
    elif place_is == "file":
        place.unlink()
    else:
        assert not place.exists()
    away.rename(place)
    expect_served(broker)


def test_directory_that_is_left_out_is_missed_until_it_is_back(broker: BrokerProcess) -> None:
    both, left = broker.overrides["log.dirs"], broker.log_dirs[1]
    broker.overrides["log.dirs"] = left
    killed_start(broker, "plog.wiring.base:register_log_dirs", "behind")
    for _ in range(2):
        expect_missed(broker)
    assert f"log directory {broker.log_dirs[0]} (directory.id " in broker.log
    # Nor is it forgotten for a new directory beside the other.
    broker.overrides["log.dirs"] = f"{left},{broker.directory / 'more'}"
    broker.start()
    with closing(speak(broker.port)) as client:
        wait_until(lambda: partition_state(client, "gone") == GONE, "leaderless", broker)
    broker.stop()
    broker.overrides["log.dirs"] = f"{both},{broker.directory / 'more'}"
    expect_served(broker)


def test_topic_of_a_missing_directory_can_be_deleted(broker: BrokerProcess) -> None:
    shutil.rmtree(broker.log_dirs[0])
    with broker, Admin(broker.bootstrap) as admin, closing(speak(broker.port)) as client:
        wait_until(lambda: partition_state(client, "gone") == GONE, "leaderless", broker)
        admin.delete_topic("gone")
        assert produce(client, create_topic(client, "gone")[0], make_batch()).base_offset == 0
    with broker:
        assert read_all(broker, "gone") == ["v"]


# -- disks that are there, elsewhere or twice ------------------------------------------------------


def test_disks_that_were_swapped_are_known_by_their_ids(broker: BrokerProcess) -> None:
    one, two = broker.log_dirs
    ids = [id_of(one), id_of(two)]
    away = broker.directory / "away"
    one.rename(away)
    two.rename(one)
    away.rename(two)
    expect_served(broker)
    assert " ERROR " not in broker.log
    assert registered(broker) == {ids[0]: two, ids[1]: one}
    # Where it is now it is missed.
    two.rename(away)
    with broker, closing(speak(broker.port)) as client:
        wait_until(lambda: partition_state(client, "gone") == GONE, "leaderless", broker)
    assert f"log directory {two} is offline" in broker.log
    assert not two.exists()


def test_copy_of_a_disk_is_refused_beside_it(broker: BrokerProcess) -> None:
    one, two = broker.log_dirs
    copy = broker.directory / "copy"
    shutil.copytree(one, copy)
    broker.overrides["log.dirs"] = f"{one},{two},{copy}"
    ended = subprocess.run(
        command_line("server", *arguments(broker)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 1
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("plog: ")]
    assert f"{one} and {copy} are copies of one log directory" in line
    assert (copy / CLEAN_SHUTDOWN_FILE).exists()
    # Instead of it, it is it.
    broker.overrides["log.dirs"] = f"{copy},{two}"
    expect_served(broker)


def test_identity_that_is_lost_is_found_by_the_place(broker: BrokerProcess) -> None:
    ids = [id_of(path) for path in broker.log_dirs]
    (broker.log_dirs[0] / META_PROPERTIES).unlink()
    (broker.log_dirs[1] / META_PROPERTIES).write_bytes(b"\0" * 30)
    expect_served(broker)
    assert [id_of(path) for path in broker.log_dirs] == ids
    assert " ERROR " not in broker.log


# -- killed at every step --------------------------------------------------------------------------

AT_EVERY_STEP = """
import asyncio, importlib, os, pkgutil, shutil, sys
from pathlib import Path
import plog.handlers
from plog.broker import Broker
from plog.cluster.store_copy import StoreCopy
from plog.settings.definitions import BrokerSettings
from plog.storage.filesystem import Filesystem

# A start imports these: here once, and not in each child.
for one in pkgutil.iter_modules(plog.handlers.__path__, "plog.handlers."):
    importlib.import_module(one.name)

pristine, work, unmounted = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
settings = BrokerSettings({
    "broker.id": "0", "listeners": "PLAINTEXT://127.0.0.1:0", "auto.create.topics.enable": "false",
    "log.dirs": ",".join(str(work / name) for name in ("data0", "data1")),
})
left = -1

def counted(owner, name):
    whole = getattr(owner, name)
    def step(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os._exit(9)
        return whole(*arguments, **options)
    setattr(owner, name, step)

for name in ("rename", "sync_directory", "make_directory", "unlink", "write_bytes", "remove_tree"):
    counted(Filesystem, name)
for name in ("_create", "_write_once", "_fold_wal"):
    counted(StoreCopy, name)

async def whole():
    broker = Broker(settings)
    await broker.start()
    await broker.stop()

def forked(steps):
    global left
    child = os.fork()
    if not child:
        left = steps
        try:
            asyncio.run(whole())
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

steps = 0
while True:
    steps += 1
    for name in ("data0", "data1"):
        shutil.rmtree(work / name, ignore_errors=True)
    shutil.copytree(pristine, work, dirs_exist_ok=True)
    status = forked(steps)
    assert status in (0, 9), (steps, status)
    if status == 0:
        break
    assert forked(-1) == 0, steps
    for name in unmounted:
        assert not (work / name).exists(), steps
    held = len(list(pristine.glob("data*/gone-0")))
    assert len(list(work.glob("data*/gone-0"))) == held, steps
print(steps)
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("before", ["nothing", "no ids", "no ids, unmounted", "unmounted"])
def test_start_that_is_killed_at_any_step_is_begun_again(
    broker: BrokerProcess, before: str
) -> None:
    pristine = broker.directory / "pristine"
    pristine.mkdir()
    if "no ids" in before:
        forget_ids(broker)
    if before != "nothing":
        for path in broker.log_dirs[1 if "unmounted" in before else 0 :]:
            shutil.copytree(path, pristine / path.name)
    unmounted = ["data0"] if "unmounted" in before else []
    ended = subprocess.run(
        [sys.executable, "-c", AT_EVERY_STEP, pristine, broker.directory, *unmounted],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S * 3,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert int(ended.stdout) > 10
