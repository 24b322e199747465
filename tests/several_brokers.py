"""How many brokers a test of clients has: one, or with `--brokers 3` three on a real ZooKeeper.

With the option the same tests run with the same ids: every `BrokerProcess` that a test of `SUITES`
makes starts its peers too (tests/servers.py). `tests/one_broker.py` lists the tests that need a
single broker, and why. A few tests run on three brokers in every run as well (`IN_EVERY_RUN`).
"""

from __future__ import annotations

import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.one_broker import is_of, reason_of
from tests.planes import Plane, plane_of
from tests.waiting import until

if TYPE_CHECKING:
    from plog.client.admin import Admin
    from tests.servers import BrokerProcess

IN_EVERY_RUN = (
    "tests/compat/test_admin.py::test_topic_created_described_and_deleted",
    "tests/compat/test_consumer_groups.py::test_members_of_all_clients_share_a_group",
    "tests/compat/test_consumer_groups.py::test_program_goes_on_where_its_group_left_off",
    "tests/compat/test_consumer_protocol.py::test_members_keep_what_they_may",
    "tests/compat/test_transactional_workers.py::test_worker_copies_once_whatever_it_aborts",
    "tests/transactions/test_offsets.py::test_offset_stands_once_its_transaction_does",
)
"""Groups and transactions of every library, over topics on all brokers."""
SUITES = ("tests/client/", "tests/compat/", "tests/spark/", "tests/transactions/")
PARAMETER, PROPERTY = "broker_count", "brokers"
CONNECT = "zookeeper.connect"
SESSION_MS = 6_000
OWN = ("listeners", "advertised.listeners", "metrics.listener", "log.dirs", "broker.id")
"""The settings that each broker has for itself, if it has them at all."""

_count = 1
_starts = _starts_before = 0
"""How many clusters this process has made, now and when the test began."""
_ports: dict[int, list[int]] = {}
"""The ports of all brokers of a cluster, by that of each."""
_zookeeper = ExitStack()
_servers = ""


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a test the number of its brokers; one of `IN_EVERY_RUN` runs on three too."""
    test = metafunc.definition.nodeid
    if PARAMETER not in metafunc.fixturenames or not test.startswith(SUITES):
        return
    given = metafunc.config.getoption("--brokers")
    counts, ids = [given], [pytest.HIDDEN_PARAM]
    if given == 1 and any(is_of(test, one) for one in IN_EVERY_RUN):
        counts, ids = [1, 3], [pytest.HIDDEN_PARAM, "three_brokers"]
    metafunc.parametrize(PARAMETER, counts, indirect=True, ids=ids, scope="package")


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With the option, leave out other tests than those of clients, and skip `ONE_BROKER`.

    Without it, leave out the plain plane on three brokers.
    """
    if config.getoption("--brokers") == 1:
        left = {item for item in items if count_of(item) > 1 and plane_of(item) is Plane.PLAIN}
    else:
        left = {item for item in items if not item.nodeid.startswith(SUITES)}
        for item in items:
            if why := reason_of(item.nodeid):
                item.add_marker(pytest.mark.skip(reason=f"needs one broker: {why}"))
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


def count_of(item: pytest.Item) -> int:
    """Return how many brokers a test has."""
    if not item.nodeid.startswith(SUITES):
        return 1
    callspec = getattr(item, "callspec", None)
    given: int = item.config.getoption("--brokers")
    return callspec.params.get(PARAMETER, given) if callspec is not None else given


def enter_test(item: pytest.Item) -> None:
    """Have brokers started as a test asks, from its first fixture on."""
    global _count, _starts_before
    _count, _starts_before = count_of(item), _starts


def note_use(item: pytest.Item, report: pytest.TestReport) -> None:
    """Have a report tell on how many brokers a test ran, if it asked any."""
    fixtures = getattr(item, "fixturenames", ())
    if report.when == "call" and _count > 1 and ("broker" in fixtures or _starts > _starts_before):
        report.user_properties.append((PROPERTY, _count))


def summary(reporter: pytest.TerminalReporter) -> None:
    """Tell how many of the tests that passed ran on several brokers."""
    counts = Counter(
        value
        for report in reporter.stats.get("passed", ())
        for name, value in report.user_properties
        if name == PROPERTY and report.when == "call"
    )
    for brokers, tests in sorted(counts.items()):
        reporter.write_line(f"on {brokers} brokers: {tests} passed; others started none, or one")


def count_of_this_test() -> int:
    """Return how many brokers `BrokerProcess` starts."""
    return _count


def note_ports(ports: list[int]) -> None:
    """Keep the ports of a cluster."""
    _ports.update(dict.fromkeys(ports, ports))


def ports_of(port: int) -> list[int]:
    """Return the ports of the cluster with this one, in the order of the brokers' ids."""
    return _ports.get(port, [port])


def settings() -> dict[str, object]:
    """Return the settings by which brokers of a new cluster find each other."""
    global _starts
    _starts += 1
    return {
        CONNECT: f"{_zookeeper_servers()}/{uuid.uuid4()}",
        "zookeeper.session.timeout.ms": SESSION_MS,
        # Some tests read and write the logs of these topics themselves.
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
    }


def settings_of_peer(
    of_first: Mapping[str, object], own: Mapping[str, object]
) -> dict[str, object]:
    """Return the settings of another broker of a cluster: those of the first, and its own."""
    shared = {key: value for key, value in of_first.items() if key not in OWN}
    return shared | {key: value for key, value in own.items() if key in OWN}


def _zookeeper_servers() -> str:
    """Return this process's ZooKeeper; start it if none runs."""
    global _servers
    if not _servers:
        from tests.compat.live_kafka import ZooKeeper  # it imports tests/servers.py

        directory = _zookeeper.enter_context(tempfile.TemporaryDirectory())
        running = ZooKeeper(Path(directory), stops=False)
        _zookeeper.callback(running.kill)
        _servers = running.bootstrap
    return _servers


def close() -> None:
    """End the ZooKeeper."""
    global _servers
    _servers = ""
    _zookeeper.close()


def until_topic_is_known(bootstrap: str, name: str) -> None:
    """Wait until every broker knows the leaders of a new topic, as on one broker each does."""
    if "," in bootstrap:
        until_each(bootstrap, lambda admin: is_led(admin, name))


def until_each_knows_all(brokers: Sequence[BrokerProcess]) -> None:
    """Wait until every broker knows all, and their controller."""
    bootstrap = ",".join(f"127.0.0.1:{one.port}" for one in brokers)
    until_each(bootstrap, lambda admin: len(admin.nodes()) == len(brokers))
    until_each(bootstrap, lambda admin: admin.controller_id() >= 0)


def until_each(bootstrap: str, is_so: Callable[[Admin], bool]) -> None:
    """Wait until something is so as every broker says: a client may ask any of them."""
    from plog.client.admin import Admin

    for address in bootstrap.split(","):
        with Admin(address) as admin:
            until(lambda admin=admin: is_so(admin), f"so, as {address} says")


def is_led(admin: Admin, topic: str, partitions: int | None = None) -> bool:
    """Return whether a broker knows the leaders of all partitions, and that there are so many."""
    if topic not in admin.topics():
        return False
    found = admin.topic(topic).partitions
    has_all = partitions is None or len(found) == partitions
    return has_all and all(one.leader_id >= 0 for one in found.values())
