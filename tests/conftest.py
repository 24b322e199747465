"""Options and rules of every test run: the long forms, both planes, and no skipping in silence.

`--long` adds the tests marked `long`, `--compatibility` writes a page of what they found,
`--brokers 3` runs the tests of clients on three brokers (tests/several_brokers.py). With
PLOG_NO_SKIP=1 in the environment, as in CI, a skip is a failure: what does not run there runs
nowhere. `plane` is explained in tests/planes.py.
"""

from __future__ import annotations

import gc
import os
import platform
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from plog.protocol.api_keys import ApiKey
from tests import compatibility, planes, several_brokers
from tests.planes import Plane

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "plog" / "_native"
BUILD_STAMP = ROOT / ".venv" / "plog-build.stamp"
FIRST = (
    *("tests/test_packages.py", "tests/test_coordinator_benchmarks.py"),
    *("tests/spark/", "tests/compat/"),
)
"""These take longest; begun last they would run alone at the end."""

ONE_PROCESS = ("tests/compat/against_kafka/", "tests/compat/against_kafka_4/", "tests/spark/")
"""The files of such a folder share a live Kafka or a Spark session: one process runs them all."""

WITHOUT_SPARKS_SESSION = tuple(
    f"tests/spark/test_{name}.py"
    for name in (
        *("attempts", "copies_through_moves", "decisions", "exactly_once", "filters"),
        *("foreach_batch_writer", "interleavings", "options"),
        *("range_reader", "source", "standalone", "stream_offsets", "stream_source", "two_phases"),
    )
)
"""These start a JVM of their own, or none."""

BY_TEST = (
    "tests/cluster/replication/test_whole_space.py",
    *(
        f"tests/cluster/simulation/test_{name}.py"
        for name in ("histories", "planted_faults", "planted_replica_faults")
    ),
)
"""Each process may run any test of these files: the tests are long, and share nothing."""

PLAIN_IN_EVERY_RUN = (
    "tests/test_planes.py",
    "tests/crash/test_kill.py",
    *(
        f"tests/handlers/test_{name}.py"
        for name in (
            *("fast_followers", "fetch", "fetch_sessions", "gone_clients"),
            *("held_logs", "produce", "slow_disks"),
        )
    ),
    "tests/handlers/test_cluster.py::test_fetch_that_waits_is_woken_after_a_move",
    "tests/handlers/test_cluster.py::test_replica_moves_while_it_is_written_and_nothing_is_lost",
    "tests/handlers/test_configs.py::test_topic_s_settings_are_in_force_without_a_restart",
    *(
        f"tests/handlers/test_every_version.py::test_request_that_{outcome}[plain-{api:d}-"
        for outcome in ("can_be_granted_is", "can_not_be_granted_is_refused_by_its_code")
        for api in (ApiKey.PRODUCE, ApiKey.FETCH)
    ),
    "tests/handlers/test_topics.py::test_records_",
    *(
        f"tests/hosts/test_{name}"
        for name in (
            *("clock_steps.py", "descriptors.py", "lost_disks.py"),
            *("full_disk.py::test_disk_that_others_fill", "full_disk.py::test_producers_go_on"),
        )
    ),
    *(
        f"tests/hostile/test_{name}.py"
        for name in ("answers", "batches", "clients", "fetches", "frames", "limits", "names")
    ),
    "tests/transactions/test_transactions.py",
)
"""Here Produce and Fetch themselves are tested, so the plain plane belongs to every run. Elsewhere
it takes `--long`: `tests/handlers/test_fast_*.py` compare the responses of both byte for byte."""

# No timing decides a test: a busy machine is late, not wrong.
hypothesis.settings.register_profile(
    "plog", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("plog")

NO_SKIP = os.environ.get("PLOG_NO_SKIP", "") not in ("", "0")
MANY_DESCRIPTORS = 100
"""For a process of tests to have open when it begins a file."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long forms of tests too")
    parser.addoption(
        "--compatibility", action="store_true", help="write docs/COMPATIBILITY.md from the results"
    )
    parser.addoption(
        "--brokers", type=int, default=1, help="run the tests of clients on so many brokers"
    )
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="record what scenarios reply and what transcripts show now",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts commands in the background with SIGINT ignored. The processes that the tests
    # start would inherit that, and never end at Ctrl-C.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    is_controller = not hasattr(config, "workerinput")
    if config.getoption("--compatibility") and config.getoption("--brokers") != 1:
        raise pytest.UsageError("--compatibility is for one broker: run it without --brokers")
    if config.getoption("--compatibility") and is_controller:
        config.pluginmanager.register(compatibility.Plugin())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process a file of tests at a time, or a folder whose files share something."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            if file in BY_TEST:
                return nodeid
            if file in WITHOUT_SPARKS_SESSION:
                return file
            return next((folder for folder in ONE_PROCESS if file.startswith(folder)), file)

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_report_header() -> list[str]:
    sources = {path.stem for path in NATIVE.glob("*.pyx")}
    built = {path.name.partition(".")[0] for path in NATIVE.glob("*.so")}
    missing = ", ".join(sorted(sources - built))
    try:
        from plog._native import crc32c

        checksum = crc32c.implementation()
    except ImportError as error:
        checksum = f"not importable ({error})"
    stamp = BUILD_STAMP.read_text().strip() if BUILD_STAMP.exists() else "of unknown kind"
    return [
        f"plog: {platform.python_implementation()} {platform.python_version()} "
        f"on {platform.machine()}, {os.cpu_count()} processors",
        f"plog kernels: {len(sources & built)} built, {stamp}"
        + (f", missing {missing}" if missing else "")
        + f"; crc32c by {checksum}"
        + ("; a skip is a failure" if NO_SKIP else ""),
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    several_brokers.parametrize(metafunc)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # Collected tests stay until the end. A search for garbage among them takes an eighth of the
    # time now, and more at each later search.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))
    several_brokers.select(config, items)
    for item in items:
        if planes.plane_of(item) is Plane.PLAIN and not item.nodeid.startswith(PLAIN_IN_EVERY_RUN):
            item.add_marker(pytest.mark.long)
    if config.getoption("--long"):
        return
    # Left out, not skipped: they are no part of this run.
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_sessionfinish() -> None:
    several_brokers.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell the figures that tests measured (`record_property("figures", text)`), passed or not."""
    several_brokers.summary(terminalreporter)
    told = [
        str(text)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "teardown"  # with what fixtures found, too
        for name, text in report.user_properties
        if name == "figures"
    ]
    if told:
        terminalreporter.section("figures")
        for text in told:
            terminalreporter.write_line(text)


@pytest.fixture(scope="package")
def broker_count(request: pytest.FixtureRequest) -> int:
    """How many brokers `BrokerProcess` starts."""
    return getattr(request, "param", 1)


# Of a package, so that brokers may be: a folder's tests run on the one, then all on the other.
@pytest.fixture(scope="package", params=list(Plane), ids=lambda plane: plane.name.lower())
def plane(request: pytest.FixtureRequest, broker_count: int) -> Plane:
    return request.param


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    planes.enter_test(item)
    several_brokers.enter_test(item)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After a file's last test, close what its tests have left to the collector, if it is much.

    Programs that wait by select() take no descriptor above 1,023.
    """
    is_last = nextitem is None or nextitem.path != item.path
    if is_last and len(os.listdir("/proc/self/fd")) > MANY_DESCRIPTORS:
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # Its keywords do not tell: parameters called so are among them, too.
    report.is_long = item.get_closest_marker("long") is not None  # type: ignore[attr-defined]
    several_brokers.note_use(item, report)
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    refuse_skip(report)
    return report


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a skip a failure where nothing may be skipped; an expected failure is no skip."""
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be skipped (PLOG_NO_SKIP): {reason}"
