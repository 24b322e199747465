"""Both planes: a broker has that of its test's id, and tests that send records ask for both."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.compat.clients import Plog, Sent
from tests.conftest import PLAIN_IN_EVERY_RUN, ROOT
from tests.handlers.running import Running
from tests.handlers.wire import create_topic, fetch_one, make_batch, produce
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.test_layers import imports_of_python

TESTS = Path(__file__).parent

# Modules that start brokers, and why what they send is not sent both ways.
ONE_PLANE = {
    "broker/releases.py": "starts brokers of older releases, which have no oracle",
    "broker/test_missed_log_dirs.py": "of what a start finds, whichever path serves it then",
    "broker/test_settings_read_once.py": "sends no records",
    "cli/test_move_store.py": "of the coordination store",
    "cluster/processes.py": "of several brokers; the tests of one have both paths",
    "cluster/faults/network.py": "of several brokers; the tests of one have both paths",
    "cluster/faults/power.py": "of several brokers; the tests of one have both paths",
    "cluster/replication/test_bounced_leader.py": "of several brokers, as above",
    "cluster/test_broker_requests.py": "sends no records",
    "cluster/test_missing_disk.py": "of what a start finds, whichever path serves it then",
    "cluster/test_older_zookeeper.py": "of the ids that a start finds, whichever path gives them",
    "cluster/test_lost_membership.py": "sends no records",
    "cluster/test_second_process.py": "sends no records",
    "cluster/test_shared_store_mark.py": "of what a start finds, whichever path serves it then",
    "cli/test_zookeeper_host.py": "of a broker that is stopped",
    "ops/test_doctor_zookeeper.py": "of the coordination store",
    "broker/test_read_again.py": "of settings and features; sends no records",
    "cli/test_log_dirs.py": "of a broker that is stopped",
    "compat/programs.py": "of the classes that a client loads",
    "compat/record_requests.py": "of what clients send, not of what they are answered",
    "compat/test_fast_share.py": "of the fast path alone",
    "compat/test_kafka_group_configs.py": "of groups, and neither writes nor reads records",
    "compat/against_kafka_4/*": "of coordinators; against_kafka reads and writes records",
    "compat/test_kafka_checkpoints.py": "of files that neither path writes",
    "compat/test_kafka_cleaned_files.py": "of what the cleaner writes",
    "compat/test_mirror_maker.py": "of Java's clients, which test_java_and_go has write both ways",
    "compat/test_kafka_groups.py": "of groups; test_kafka_files reads and writes records",
    "coordinator/conftest.py": "commits offsets, and neither writes nor reads records",
    "handlers/test_acks_all.py": "sends by both paths of one broker in each run",
    "handlers/test_broker_loggers.py": "sends one record, to see that the fast path logs no line",
    "handlers/test_broken_requests.py": "of the table of requests, which both paths have",
    "handlers/test_api_versions.py": "sends no records to a broker of its own",
    "handlers/test_fast_*.py": "of the fast path alone",
    "coordinator/*": "commits offsets, and neither writes nor reads records",
    "handlers/test_large_answers.py": "sends no records",
    "handlers/test_store_away.py": "sends no records",
    "handlers/test_waiting_handlers.py": "sends no records",
    "module_trace.py": "of the fast path alone",
    "ops/test_adoption.py": "sends no records",
    "ops/test_coordinator_metrics.py": "counts what coordinators do",
    "ops/test_doctor.py": "sends no records",
    "ops/test_host_metrics.py": "of what hosts publish, which are ordinary Produces",
    "cli/test_produce.py": "of what the command reads, and of ordinary Produces",
    "client/test_unreachable.py": "of a client whose broker does not answer",
    "broker/test_quiet_log.py": "of the lines of starts, stops and coordinators",
    "ops/test_log_lines.py": "sends no records",
    "ops/test_metrics_*.py": "count what each path answers",
    "ops/test_broker_pages.py": "sends no records",
    "ops/test_lag_metrics.py": "of commits and of the ends of logs",
    "ops/test_bundle.py": "collects the state of a broker",
    "ops/test_cluster_facts.py": "sends no records",
    "ops/test_dashboard.py": "of the metrics page and its queries",
    "ops/test_health_client.py": "sends no records",
    "ops/test_doctor_running.py": "sends no records",
    "terminal/*": "of commands and their output",
    "test_load.py": "of what the load generator counts",
    "test_packages.py": "of what is in a package, whose broker is as it is by default",
}


def test_each_test_that_runs_on_the_plain_plane_every_time_is_there() -> None:
    for one in PLAIN_IN_EVERY_RUN:
        path, _, name = one.partition("::")
        source = (ROOT / path).read_text("utf-8")
        assert f"\ndef {name.partition('[')[0]}" in source, one


def test_broker_of_its_own_is_of_the_plane(tmp_path: Path, plane: Plane) -> None:
    sent = [Sent(None, b"%d" % n) for n in range(10)]
    with BrokerProcess(tmp_path) as broker:
        Plog().produce(broker.bootstrap, "t", sent, idempotent=False)
        assert Plog().consume(broker.bootstrap, "t", len(sent)) == sent
    assert "of them on the fast path" in broker.log  # or a count of 0 would say nothing
    assert (broker.fast_requests > 0) is (plane is Plane.FAST)


def test_broker_in_process_is_of_the_plane(tmp_path: Path, plane: Plane) -> None:
    one = Running(tmp_path)
    topic, _ = create_topic(one.wire)
    assert produce(one.wire, topic, make_batch([b"v"])).error_code == 0
    assert fetch_one(one.wire, topic, 0).records
    assert one.fast_requests == (2 if plane is Plane.FAST else 0)
    one.stop()


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("given", list(Plane))
def test_plane_that_the_test_gives_goes_before_that_of_its_id(tmp_path: Path, given: Plane) -> None:
    assert BrokerProcess(tmp_path, plane=given).plane is given


def test_broker_has_plogs_own_plane_by_default(tmp_path: Path) -> None:
    assert BrokerProcess(tmp_path).plane is Plane.FAST


def test_setting_of_older_releases_is_ignored_with_a_warning(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, overrides={"fast.path.enable": "false"}) as broker:
        Plog().produce(broker.bootstrap, "t", [Sent(None, b"v")], idempotent=False)
    assert "`fast.path.enable` has no effect in plog" in broker.log
    assert broker.fast_requests > 0


ORACLE_MAY_IMPORT = {"plog.handlers.context", "plog.handlers.registry"}


def test_oracle_shares_no_decision_with_callouts() -> None:
    """It uses logs and coordinators, and of the handlers only the frame around them."""
    for path in (TESTS / "oracle").glob("*.py"):
        found = set(imports_of_python(f"tests.oracle.{path.stem}", path.read_text("utf-8")))
        handlers = {one for one in found if one.startswith("plog.handlers")}
        assert handlers <= ORACLE_MAY_IMPORT, path
        assert not {one for one in found if "callout" in one}, path


def test_modules_that_start_brokers_ask_for_both_planes() -> None:
    silent = set()
    for path in TESTS.rglob("*.py"):
        source = path.read_text("utf-8")
        starts = re.search(r"\b(BrokerProcess|Running)\(\s*\w", source)
        if starts and not re.search(r"\b(planes?|served_by)\b", source):
            silent.add(str(path.relative_to(TESTS)))
    assert {one for one in silent if not any(fnmatch(one, known) for known in ONE_PLANE)} == set()
