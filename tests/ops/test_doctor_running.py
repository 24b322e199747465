"""What `plog doctor` finds at a running broker: addresses, disks, partitions, page, clock."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from plog import __version__
from plog.cli.doctor import command
from plog.client.admin import Admin
from plog.ops.doctor.clocks import ClockState, kernel_clock
from plog.ops.doctor.examination import examine, examine_client
from plog.ops.doctor.findings import Finding, Verdict
from plog.ops.doctor.running_broker import clock_difference
from plog.ops.pages.paths import READY
from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import lock_log_dirs
from tests.handlers.wire import create_topic, speak
from tests.ops.test_doctor import failures, warnings
from tests.ops.test_health_client import page
from tests.servers import BrokerProcess, free_port
from tests.waiting import until

AHEAD_S = 3600


def properties_of(broker: BrokerProcess, **more: object) -> str:
    given = broker.overrides | {key.replace("_", "."): value for key, value in more.items()}
    path = broker.directory / f"server{len(more)}.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    return str(path)


def of(found: list[Finding], what: str) -> list[Finding]:
    return [one for one in found if one.what == what]


@pytest.fixture(autouse=True)
def _any_disk_has_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk beneath the tests may be nearly full."""
    monkeypatch.setattr("plog.ops.doctor.findings.FREE_SHARE", 0)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("other")) as running:
        yield running


@pytest.fixture(scope="module")
def closed_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, other: BrokerProcess, closed_port: int
) -> Iterator[BrokerProcess]:
    """A broker that is advertised well on one listener, and wrongly on the others."""
    made = BrokerProcess(tmp_path_factory.mktemp("broker"))
    ports = [made.port, *(free_port() for _ in range(3))]
    names = ["PLAINTEXT", "NONAME", "CLOSED", "OTHER"]
    advertised = [made.bootstrap, "plog.invalid:9092", f"127.0.0.1:{closed_port}", other.bootstrap]
    made.overrides |= {
        "listeners": ",".join(
            f"{name}://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)
        ),
        "advertised.listeners": ",".join(map("{}://{}".format, names, advertised)),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        "metrics.listener": f"127.0.0.1:{free_port()}",
    }
    with made:
        with closing(speak(made.port)) as client:
            create_topic(client, "flights")
        yield made


def test_each_advertised_address_is_tried(
    broker: BrokerProcess, other: BrokerProcess, closed_port: int
) -> None:
    found = examine(properties_of(broker))
    good, *bad = of(found, "advertised")
    assert good == Finding(
        "advertised",
        Verdict.OK,
        f"PLAINTEXT at {broker.bootstrap} is reachable, and this broker answers",
    )
    unknown, closed = bad
    assert {one.verdict for one in bad} == {Verdict.WARNING}
    assert unknown.text.startswith("NONAME cannot be reached from here: cannot connect to plog.inv")
    assert f"127.0.0.1:{closed_port}: Connection refused" in closed.text
    assert "plog doctor -b" in closed.advice
    (wrong,) = [one for one in found if one.verdict is Verdict.FAILURE]
    assert f"answers at the advertised address of OTHER at {other.bootstrap} instead" in wrong.text
    assert (of(found, "partitions")[0].verdict, of(found, "disks")[0].verdict) == (
        Verdict.OK,
        Verdict.OK,
    )
    (version,) = of(found, "version")
    assert version.verdict is Verdict.OK
    assert __version__ in version.text
    assert of(found, "clock")[-1].text.endswith("agree within 2 s")


def test_disk_of_a_running_broker_with_little_space_is_warned_of(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for share, verdict in (0, Verdict.OK), (1.01, Verdict.WARNING):
        monkeypatch.setattr("plog.ops.doctor.findings.FREE_SHARE", share)
        (found,) = of(examine(properties_of(broker)), "disks")[:1]
        assert found.verdict is verdict
        assert re.fullmatch(r"\S+ is online, [\d,]+ MB of [\d,]+ MB free", found.text)
        assert ("retention.bytes" in found.advice) is (verdict is Verdict.WARNING)


def test_client_sees_what_is_advertised_to_it(broker: BrokerProcess, closed_port: int) -> None:
    listeners = str(broker.overrides["listeners"]).split(",")
    ports = {one.partition(":")[0]: one.rpartition(":")[2] for one in listeners}
    assert failures(examine_client(broker.bootstrap)) == []
    (text,) = failures(examine_client(f"127.0.0.1:{ports['CLOSED']}"))
    assert text.startswith("broker 0 cannot be reached from here")
    (text,) = failures(examine_client(f"127.0.0.1:{closed_port}"))
    assert text == f"cannot connect to 127.0.0.1:{closed_port}: Connection refused"
    # A later address counts where an earlier one does not answer.
    both = examine_client(f"127.0.0.1:{closed_port},{broker.bootstrap}")
    assert of(both, "partitions")


def test_page_that_is_off_is_a_warning(broker: BrokerProcess) -> None:
    (text,) = warnings(examine(properties_of(broker, metrics_listener="")), "metrics")
    assert text == "metrics.listener is not set"
    off = f"127.0.0.1:{free_port()}"
    (text,) = warnings(examine(properties_of(broker, metrics_listener=off)), "metrics")
    assert text.startswith(f"no metrics page at {off}: ")


def test_settings_that_wait_for_a_restart_are_a_warning(broker: BrokerProcess) -> None:
    listeners = f"PLAINTEXT://127.0.0.1:{broker.port}"
    waits = {"listeners": listeners, "advertised_listeners": "PLAINTEXT://127.0.0.2:1"}
    (text,) = warnings(examine(properties_of(broker, **waits)), "advertised")
    assert text == (
        f"PLAINTEXT is advertised as {broker.bootstrap}, but the settings say 127.0.0.2:1"
    )


def test_broker_that_took_the_port_is_a_failure(
    broker: BrokerProcess, other: BrokerProcess
) -> None:
    taken = {
        "listeners": f"PLAINTEXT://{other.bootstrap}",
        "advertised_listeners": f"PLAINTEXT://{other.bootstrap}",
    }
    (text,) = failures(examine(properties_of(broker, **taken)))
    assert f" answers at PLAINTEXT://{other.bootstrap} instead of broker 0 of cluster " in text


class OldPage(BaseHTTPRequestHandler):
    """A page of an older release, on a host whose clock is ahead."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'# TYPE plog_build_info gauge\nplog_build_info{version="0.0.1"} 1\n')

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(time.time() + AHEAD_S, usegmt=True)

    def log_message(self, *_: object) -> None:
        pass


def test_older_release_and_another_clock_are_warnings(broker: BrokerProcess) -> None:
    with HTTPServer(("127.0.0.1", 0), OldPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            page = f"127.0.0.1:{server.server_port}"
            found = examine(properties_of(broker, metrics_listener=page))
        finally:
            server.shutdown()
            thread.join()
    (text,) = warnings(found, "version")
    assert text == f"0.0.1 is running, {__version__} is installed here"
    text = warnings(found, "clock")[-1]
    assert text.startswith("the broker's clock is 3")
    assert text.endswith(" s ahead of this host's")


def test_page_states_its_time(broker: BrokerProcess) -> None:
    assert clock_difference(str(broker.overrides["metrics.listener"])) == 0


@pytest.mark.parametrize(("share", "verdict"), [(0.0, Verdict.WARNING), (0.8, Verdict.OK)])
def test_descriptors_of_the_process_are_counted(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, share: float, verdict: Verdict
) -> None:
    monkeypatch.setattr("plog.ops.doctor.running_broker.USED_SHARE", share)
    *_, finding = of(examine(properties_of(broker)), "limits")
    assert finding.verdict is verdict
    (open_fds, most) = re.findall(r"[\d,]+", finding.text)
    assert 10 < int(open_fds.replace(",", "")) < int(most.replace(",", ""))


def test_command_names_options_that_exclude_each_other() -> None:
    for arguments in (["-b", "h:1", "file"], ["-b", "h:1", "--env"], ["-b", "h:1", "--spark"]):
        done = CliRunner().invoke(command, arguments)
        assert done.exit_code == 2
        assert "use -b alone: it reads no settings of this host" in done.output
    done = CliRunner().invoke(command, ["--spark", "--env"])
    assert "omit PROPERTIES, --env and --override" in done.output


def test_command_reads_variables_like_the_server(broker: BrokerProcess) -> None:
    variables = {"PLOG_NUM_PARTITIONS": "few", "KAFKA_NODE_ID": "7"}
    for more, is_read in ((), False), (["--env"], True):
        done = CliRunner(env=variables).invoke(command, [properties_of(broker), *more, "--json"])
        assert ("PLOG_NUM_PARTITIONS: `num.partitions`: 'few' is not" in done.output) == is_read


def test_stopped_broker_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"log.dirs={tmp_path}/data\nlisteners=PLAINTEXT://127.0.0.1:{free_port()}\n")
    found = examine(str(path))
    (finding,) = of(found, "broker")
    assert finding.verdict is Verdict.OK
    assert finding.text.startswith("is not running")
    assert not of(found, "metrics") + of(found, "partitions")


@pytest.mark.parametrize(
    ("status", "reason", "verdict"),
    [
        (503, "starting: loading logs: 3 of 10", Verdict.WARNING),
        (503, "stopping", Verdict.WARNING),
        (503, "no log directory is online", Verdict.FAILURE),
        (200, "ready", Verdict.FAILURE),
        (404, "not found", Verdict.FAILURE),
    ],
)
def test_broker_that_starts_or_stops_is_no_failure(
    tmp_path: Path, closed_port: int, status: int, reason: str, verdict: Verdict
) -> None:
    """Its log directories are locked, and its listeners accept no connections."""
    (log_dir,) = lock_log_dirs(Filesystem(), [tmp_path / "data"])
    path = tmp_path / "server.properties"
    try:
        with page({READY: status}, reason) as address:
            path.write_text(
                f"log.dirs={log_dir.path}\nlisteners=PLAINTEXT://127.0.0.1:{closed_port}\n"
                f"metrics.listener=127.0.0.1:{address.port}\n"
            )
            (found,) = of(examine(str(path)), "broker")
            status_of_command = CliRunner().invoke(command, [str(path)]).exit_code
    finally:
        log_dir.unlock()
    assert found.verdict is verdict
    assert status_of_command == (verdict is Verdict.FAILURE)
    if verdict is Verdict.WARNING:
        assert found.text == f"the running broker is {reason}: its addresses are not checked"


def test_broker_that_does_not_answer_is_a_failure(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plog.ops.doctor.running_broker.WAIT_MS", 100)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        (text,) = failures(examine_client(address))
    assert text == f"{address} did not answer ApiVersions within 0.1 s"


def test_lost_disk_and_its_partitions_are_failures(tmp_path: Path) -> None:
    page = {"metrics.listener": f"127.0.0.1:{free_port()}"}
    with BrokerProcess(tmp_path, log_dirs=2, overrides=page) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=2)
        properties = properties_of(broker)
        lost, kept = broker.log_dirs
        lost.rename(tmp_path / "gone")
        until(lambda: len(failures(examine_client(broker.bootstrap))) == 2, "lost")
        from_elsewhere = failures(examine_client(broker.bootstrap))
        without = examine(properties)
        unnamed = examine(properties_of(broker, log_dirs=kept))
        lost.mkdir()
        with_another = examine(properties)
    assert f"{lost} is offline" in from_elsewhere
    text, _ = failures(without)
    assert text == f"the running broker has lost {lost}: it does not exist"
    text, _ = failures(with_another)
    assert text == f"the running broker has lost {lost}: another directory is in its place"
    _, text = failures(unnamed)
    assert text == f"{lost} is offline, and these settings do not name it"
    (advice,) = [one.advice for one in unnamed if one.text == text]
    assert advice.startswith("add it to log.dirs")
    for found in map(failures, (without, unnamed, with_another)):
        assert sum(str(lost) in one for one in found) == 1
    for found in from_elsewhere, *map(failures, (without, unnamed, with_another)):
        (text,) = [one for one in found if "leader" in one]
        assert text.startswith("partitions without a leader: 1 of 2 (t-")
    for one in without, with_another:
        assert [
            found.text for found in one if f"{lost} " in found.text and found.text[0] == "/"
        ] == []


def test_missing_log_directories_are_counted(tmp_path: Path) -> None:
    page = {"metrics.listener": f"127.0.0.1:{free_port()}"}
    broker = BrokerProcess(tmp_path, log_dirs=2, overrides=page)
    for count, verdict in (0, Verdict.OK), (1, Verdict.FAILURE):
        with broker:
            found = [one for one in examine(properties_of(broker)) if "were missing" in one.text]
        text = f"log directories that were missing when the broker started: {count}"
        assert [(one.what, one.verdict, one.text) for one in found] == [("disks", verdict, text)]
        broker.overrides["log.dirs"] = broker.log_dirs[1]


def test_directory_that_waits_for_a_restart_is_a_warning(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    found = examine(properties_of(broker, log_dirs=f"{broker.log_dirs[0]},{new}"))
    assert f"{new} is not a log directory of the running broker" in warnings(found, "log.dirs")
    used = f"{broker.log_dirs[0]} is in use by a running broker"
    assert used in [one.text for one in of(found, "log.dirs")]


def test_directory_of_a_broker_that_hangs_may_be_lost(tmp_path: Path, closed_port: int) -> None:
    (log_dir,) = lock_log_dirs(Filesystem(), [tmp_path / "data"])
    path, other = tmp_path / "server.properties", tmp_path / "other"
    path.write_text(
        f"log.dirs={log_dir.path},{other}\nlisteners=PLAINTEXT://127.0.0.1:{closed_port}\n"
    )
    try:
        found = examine(str(path))
    finally:
        log_dir.unlock()
    texts = warnings(found, "log.dirs")
    assert f"the running broker does not use {other}: it has lost it, or never had it" in texts


@pytest.mark.parametrize(
    ("state", "verdict", "text"),
    [
        (ClockState(True, 0.0123), Verdict.OK, "synchronised, within 0.012 s"),
        (ClockState(False, 16.0), Verdict.WARNING, "the kernel's clock is not synchronised"),
    ],
)
def test_clock_that_nothing_sets_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, state: ClockState, verdict: Verdict, text: str
) -> None:
    monkeypatch.setattr("plog.ops.doctor.host.kernel_clock", lambda: state)
    clock = of(examine_client("127.0.0.1:1"), "clock")[0]
    assert clock.verdict is verdict
    assert text in clock.text


def test_kernel_says_how_far_it_trusts_its_clock() -> None:
    state = kernel_clock()
    if state is not None:  # a sandbox may forbid the call
        assert 0 <= state.max_error_s < 1e6
        assert state.is_synchronised or state.max_error_s > 0
