"""Defines the rows of docs/COMPATIBILITY.md and their tests, and writes the page from the results.

`bin/test --compatibility` counts the tests of every row by outcome when the run ends. A row with
long forms (tests marked `long`) has a second line, which counts only them. A line keeps its last
result if not all of its tests ran: a run of one folder, or of the long forms, updates only its own
lines. The words of all lines come from this module: `python -m tests.compatibility` updates only
the words.
"""

from __future__ import annotations

import ast
import datetime
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMPAT = ROOT / "tests" / "compat"
PAGE = ROOT / "docs" / "COMPATIBILITY.md"
HEAD = """# What plog works with

Results of the tests with other projects' clients and tools, with bad input and on bad hosts.
`bin/test --compatibility` runs the tests and writes this page. <!-- checkout -->
A part of them (`bin/test --compatibility tests/compat`) updates its own rows. <!-- checkout -->
`tests/compatibility.py` names the tests of each row. <!-- checkout -->
`bin/test --compatibility --long -m long` runs the long forms. <!-- checkout -->
Long forms take hours and run less often; each row says when and on which commit it last ran.
[SKIPPED.md](SKIPPED.md) lists what plog does not support.

librdkafka 2.16 has been seen to lose its cached coordinator for good when its only broker restarts.
The cause is the client's re-bootstrap, not the broker. Restart the client;
`metadata.recovery.strategy=none` in it avoids the fault.
Eight trials with plog did not show it: the only broker was killed or stopped, and away for 5, 30 or
90 s. A producer of transactions and consumers of groups resumed within 4 s. After 90 s a consumer
of a classic group first waited for the end of its earlier session (45 s).

| area | what | release | what the tests show | tests | result | date and commit |
|---|---|---|---|---|---|---|
"""
COLUMNS = 7
LONG_FORM = ", long form"


class Shown(NamedTuple):
    """Tests of a path, or the test named behind `::`, whose parameters contain all the words."""

    path: str
    words: tuple[str, ...] = ()

    def has(self, test: str) -> bool:
        """Return whether a node id is one of them."""
        name, _, parameters = test.partition("[")
        if name != self.path and not name.startswith((f"{self.path}::", f"{self.path}/")):
            return False
        return all(
            re.search(rf"(?:^|-){re.escape(word)}(?:-|$)", parameters.removesuffix("]"))
            for word in self.words
        )


@cache
def parts_of(tests: Shown) -> list[Shown]:
    """Return the functions without long forms: a run is complete only if each of them ran.

    With words, the functions are not known here; then it returns `tests` alone.
    """
    path, _, name = tests.path.partition("::")
    if name or tests.words or not (ROOT / path).exists():
        return [tests]
    where = ROOT / path
    return [
        Shown(f"{module.relative_to(ROOT).as_posix()}::{one.name}")
        for module in (sorted(where.rglob("test_*.py")) if where.is_dir() else [where])
        for one in ast.parse(module.read_text()).body
        if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")
        if not any(ast.unparse(by).endswith("mark.long") for by in one.decorator_list)
    ]


class Row(NamedTuple):
    """A line of the table.

    `lacks` says why it has no test yet, `long` what its long forms show, in a line of their own.
    """

    area: str
    name: str
    shown: str
    tests: tuple[Shown, ...] = ()
    release: Callable[[], str] = str
    lacks: str = ""
    long: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.area, self.name

    @property
    def long_row(self) -> Row | None:
        """Return the row of its long forms, if it has any."""
        if not self.long:
            return None
        return self._replace(name=self.name + LONG_FORM, shown=self.long, long="")


def _of(path: str, *words: str) -> Shown:
    return Shown(f"tests/{path}", words)


def _distribution(name: str) -> Callable[[], str]:
    return lambda: version(name)


def _found(path: Path, pattern: str) -> Callable[[], str]:
    """Return a function that returns the releases that a file pins."""

    def release() -> str:
        found = re.search(pattern, path.read_text(), re.MULTILINE)
        assert found is not None, f"{path}: no {pattern}"
        return ", ".join(found.groups())

    return release


def _kcat() -> str:
    said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"^Version ([\d.]+) .*librdkafka ([\d.]+)", said, re.MULTILINE)
    return f"{found[1]} (librdkafka {found[2]})" if found else ""


CLIENTS, GROUPS, TRANSACTIONS, TOOLS, FILES, ANSWERS, INPUT, HOSTS, HOST = (
    "clients",
    "groups",
    "transactions",
    "Kafka's tools",
    "files",
    "responses",
    "bad input",
    "bad hosts",
    "on a host",
)
BY_CLIENT = "every codec, headers, nulls, 1 byte to 10 MB, acks, idempotence, each other's records"
IN_GROUPS = (
    "together: share, leave, are killed, continue from committed offsets; static members; "
    "the text of commits"
)
MORE_IN_GROUPS = f"{IN_GROUPS}; cooperative-sticky"
AS_CONSUMERS = "expressions, a killed broker; groups change their protocol member by member"
BY_RANGES = "the range assignor, topics that match an expression later"
LONG_AS_CONSUMERS = {
    "confluent-kafka": "a group of its members alone changes its protocol",
    "Java kafka-clients 4.4": BY_RANGES,
    "franz-go": BY_RANGES,
}
EXACTLY_ONCE = "copies with its group's offsets, aborts, is killed: each record once, in order"
FUZZ_SECONDS = os.environ.get("PLOG_FUZZ_SECONDS", "300")
FRANZ_GO = _found(COMPAT / "go/go.mod", r"franz-go v(\S+)")
SARAMA = _found(COMPAT / "sarama/go.mod", r"sarama v(\S+)")
KAFKAJS = _found(COMPAT / "kafkajs/package.json", r'"kafkajs": "(\S+)"')
FILES_IN_TURNS = "compat/test_kafka_files.py::test_plog_goes_on_where_kafka"
TOOL_RELEASES = _found(COMPAT / "kafka_tools.py", r'^RELEASES = \("(.*)", "(.*)"\)')


def _python(name: str) -> Row:
    tests = (_of("compat/test_clients.py", name), _of("compat/test_replay.py", name))
    return Row(CLIENTS, name, BY_CLIENT, tests, _distribution(name))


def _program(name: str, parameter: str, release: Callable[[], str]) -> Row:
    return Row(
        CLIENTS,
        name,
        "every codec, many partitions, lingering or not, idempotent or not",
        (_of("compat/test_java_and_go.py", parameter), _of("compat/test_replay.py", parameter)),
        release,
    )


def _prometheus() -> str:
    from tests.ops.prometheus import release  # it imports conftest, which imports this module

    schema = version("grafana-foundation-sdk").rpartition("!")[2]
    return f"{release()}; Grafana's schema {schema}"


def _tool(name: str, shown: str, *tests: str, file: str = "test_kafka_tools.py") -> Row:
    found = tuple(_of(f"compat/{file}::{test}") for test in tests)
    return Row(TOOLS, name, shown, found, TOOL_RELEASES)


def _group_tool(name: str, shown: str, *tests: str) -> Row:
    return _tool(name, shown, *tests, file="test_kafka_group_tools.py")


def _transaction_tool(name: str, shown: str, *tests: str) -> Row:
    return _tool(name, shown, *tests, file="test_kafka_transaction_tools.py")


def _member(name: str, shown: str, parameter: str, release: Callable[[], str]) -> Row:
    """Return the row of one client's groups; the test of all clients together belongs to each."""
    of_all = _of("compat/test_consumer_groups.py::test_members_of_all_clients_share_a_group")
    return Row(
        GROUPS, name, shown, (_of("compat/test_consumer_groups.py", parameter), of_all), release
    )


CHANGES_PROTOCOL = "test_group_is_upgraded_and_downgraded_one_by_one"
TOGETHER = "test_members_keep_what_they_may"
OF_CONSUMERS = {
    "confluent-kafka": (
        CHANGES_PROTOCOL, TOGETHER, "test_topics_that_match_an_expression_are_read",
        "test_offsets_are_committed_with_a_transaction",
    ),
    "Java kafka-clients 4.4": (
        CHANGES_PROTOCOL, TOGETHER, "test_expression_that_is_none_is_refused",
    ),
    "franz-go": (CHANGES_PROTOCOL,),
}  # fmt: skip
"""The tests of a client that do not have its name as a parameter."""


def _consumer(name: str, parameter: str, release: Callable[[], str]) -> Row:
    """Return the row of a client's KIP-848 groups, whose partitions the broker assigns."""
    file = "compat/test_consumer_protocol.py"
    named = tuple(_of(f"{file}::{test}") for test in OF_CONSUMERS[name])
    tests = (_of(file, parameter), *named)
    in_every_run = "both assignors" if name == "confluent-kafka" else "the uniform assignor"
    return Row(
        GROUPS,
        f"{name}, group.protocol=consumer",
        f"{in_every_run}, {AS_CONSUMERS}",
        tests,
        release,
        long=LONG_AS_CONSUMERS[name],
    )


def _program_in_group(name: str, release: Callable[[], str]) -> Row:
    test = "test_program_goes_on_where_its_group_left_off"
    return Row(
        GROUPS,
        name,
        "consumes, commits, leaves, and continues from there",
        (_of(f"compat/test_consumer_groups.py::{test}", name),),
        release,
    )


def _worker(name: str, parameter: str, release: Callable[[], str]) -> Row:
    tests = (
        _of("compat/test_transactional_workers.py", parameter),
        _of("compat/test_transactional_workers.py::test_workers_of_all_clients_share_the_work"),
    )
    return Row(TRANSACTIONS, name, EXACTLY_ONCE, tests, release)


def _shown(area: str, name: str, shown: str, *paths: str, long: str = "") -> Row:
    return Row(area, name, shown, tuple(map(_of, paths)), long=long)


ROWS = [
    _python("confluent-kafka"),
    _python("kafka-python"),
    _python("aiokafka"),
    _program("Java kafka-clients 3.9", "kafka-clients-3.9.1", lambda: "3.9.1"),
    _program("Java kafka-clients 4.4", "kafka-clients-4.4.0", lambda: "4.4.0"),
    _program("franz-go", "franz-go", FRANZ_GO),
    Row(
        CLIENTS,
        "sarama",
        "creates a topic with settings, writes and reads, every codec",
        (_of("compat/test_other_clients.py::test_sarama_makes_a_topic_writes_and_reads"),),
        SARAMA,
    ),
    Row(
        CLIENTS,
        "kafkajs",
        "creates a topic, writes, deletes records",
        (_of("compat/test_other_clients.py::test_kafkajs_makes_a_topic_and_writes"),),
        KAFKAJS,
    ),
    Row(
        CLIENTS,
        "kcat",
        "every codec, from offsets and tails, in a group; headers, tombstones; lists, times",
        (
            _of("compat/test_other_clients.py::test_kcat_writes_and_reads"),
            _of("compat/test_other_clients.py::test_kcat_lists_and_queries"),
            _of("compat/test_other_clients.py::test_kcat_writes_nulls_and_headers_and_joins_a_group"),
        ),
        _kcat,
    ),
    Row(
        CLIENTS,
        "old releases",
        "clients without Fetch newer than v9 read zstd",
        (_of("compat/test_old_clients.py"),),
        lambda: "kafka-python 2.0.2, aiokafka 0.12.0",
    ),
    Row(
        CLIENTS,
        "admin clients",
        "topics, partitions, settings, records, offsets by time, log directories",
        (_of("compat/test_admin.py"),),
    ),
    _member("confluent-kafka", MORE_IN_GROUPS, "confluent-kafka", _distribution("confluent-kafka")),
    _member("kafka-python", IN_GROUPS, "kafka-python", _distribution("kafka-python")),
    _member("aiokafka", IN_GROUPS, "aiokafka", _distribution("aiokafka")),
    _member("Java kafka-clients 3.9", MORE_IN_GROUPS, "kafka-clients-3.9.1", lambda: "3.9.1"),
    _member("Java kafka-clients 4.4", MORE_IN_GROUPS, "kafka-clients-4.4.0", lambda: "4.4.0"),
    _program_in_group("franz-go", FRANZ_GO),
    _program_in_group("sarama", SARAMA),
    _program_in_group("kafkajs", KAFKAJS),
    _consumer("confluent-kafka", "confluent-kafka", _distribution("confluent-kafka")),
    _consumer("Java kafka-clients 4.4", "kafka-clients-4.4.0", lambda: "4.4.0"),
    _consumer("franz-go", "franz-go", FRANZ_GO),
    Row(
        GROUPS,
        "Kafka's tools, group.protocol=consumer",
        "members described, records dumped",
        (
            _of("compat/test_consumer_protocol.py::test_kafkas_tool_describes_a_group"),
            _of("compat/test_consumer_protocol.py::test_kafkas_dump_tool_reads_the_records"),
        ),
    ),
    _worker("confluent-kafka", "confluent-kafka", _distribution("confluent-kafka")),
    _worker("kafka-python", "kafka-python", _distribution("kafka-python")),
    _worker("aiokafka", "aiokafka", _distribution("aiokafka")),
    _worker("Java kafka-clients 3.9", "kafka-clients-3.9.1", lambda: "3.9.1"),
    _worker("Java kafka-clients 4.4", "kafka-clients-4.4.0", lambda: "4.4.0"),
    Row(
        GROUPS,
        "under fire",
        "kill -9 of the broker and of members: no record missed, no commit lost",
        (_of("compat/test_groups_under_fire.py"),),
        long="six rounds in each of the protocols, and in both at once",
    ),
    Row(
        TRANSACTIONS,
        "under fire",
        "kill -9 of the broker and of workers, librdkafka's and Java's: each record once",
        (_of("compat/test_under_fire.py"),),
        long="twenty rounds with librdkafka, and with each of Java's clients",
    ),
    Row(
        TRANSACTIONS,
        "Java's, whose transaction took too long",
        "continue with version 2; with version 1 another replaces them: as with Kafka 4.1",
        (_of("compat/against_kafka_4/test_late_producers.py"),),
        lambda: "3.9.1, 4.4.0",
    ),
    Row(
        TRANSACTIONS,
        "plog's own producer",
        "on a live Kafka: commits, aborts, is fenced, commits a group's offsets",
        (_of("compat/test_own_transactions.py"),),
        lambda: "3.9.1",
    ),
    Row(
        TRANSACTIONS,
        "the fast path",
        "answers 99 of 100 Produces and Fetches of Java's transactions and groups; by version 2"
        " all Produces but a transaction's first to each partition",
        (_of("compat/test_fast_share.py"),),
        lambda: "3.9.1, 4.4.0",
        long="the same with more loads",
    ),
    Row(
        TRANSACTIONS,
        "delayed and replayed requests",
        "version 1, by a proxy: nothing late touches a later transaction",
        (_of("compat/test_late_requests.py"),),
    ),
    Row(
        TRANSACTIONS,
        "Kafka Streams",
        "exactly_once_v2: copies and counts once, killed in between",
        (_of("compat/test_streams.py"),),
        lambda: "3.9.1, 4.1.1",
        long="the same with the older release",
    ),
    _transaction_tool("kafka-transactions",
                      "list, describe, describe-producers, abort, find-hanging",
                      "test_transactions_are_listed_and_described",
                      "test_transaction_that_hangs_is_found_and_aborted"),
    _transaction_tool("TransactionalMessageCopier", "copies, with random aborts",
                      "test_message_copier_copies_what_is_committed"),
    _transaction_tool("kafka-features", "describe, upgrade, downgrade",
                      "test_features_are_described_and_changed"),
    _tool("kafka-topics", "create, list, describe, alter, delete; refusals in Kafka's words",
          "test_topics_are_made_described_changed_and_deleted",
          "test_what_cannot_be_is_refused_with_kafkas_words"),
    _tool("kafka-configs", "topics, a broker, all brokers, log levels: add, delete, describe",
          "test_settings_are_shown_and_changed", "test_log_levels_are_shown_and_changed"),
    Row(TOOLS, "kafka-configs of groups", "add, delete, describe",
        (_of("compat/test_kafka_group_configs.py"),), lambda: "4.1.1"),
    _tool("console producer and consumer", "keys, every codec; other clients read the same",
          "test_console_writes_and_reads"),
    _tool("kafka-get-offsets", "earliest, latest, by time, of all topics", "test_offsets_are_told"),
    _tool("kafka-delete-records", "up to an offset, and all", "test_records_are_deleted"),
    _tool("kafka-log-dirs", "describe: paths, sizes of the files",
          "test_log_directories_are_described"),
    _tool("kafka-reassign-partitions", "moves replicas between log directories; verify",
          "test_replicas_are_moved_between_log_directories"),
    _tool("kafka-producer-perf-test", "measures; each record exists",
          "test_performance_tool_of_producers_measures"),
    _tool("VerifiableProducer", "every record acknowledged",
          "test_producer_of_the_system_tests_is_acknowledged"),
    _tool("ClientCompatibilityTest",
          "finds the features that plog has, and does not find those it lacks",
          "test_compatibility_test_finds_what_there_is"),
    _tool("EndToEndLatency", "measures; each record exists",
          "test_latency_from_end_to_end_is_measured"),
    _group_tool("kafka-consumer-perf-test", "reads and commits everything",
                "test_performance_tool_of_consumers_reads_everything"),
    _group_tool("console consumer in a group", "resumes at its offset",
                "test_console_consumer_goes_on_where_its_group_left_off"),
    _group_tool("VerifiableConsumer", "commits what it reads",
                "test_consumer_of_the_system_tests_commits_what_it_reads"),
    _group_tool("kafka-consumer-groups",
                "list, describe (members, state), reset and delete offsets, delete",
                "test_groups_are_listed_and_described", "test_offsets_are_reset",
                "test_offsets_and_groups_are_deleted"),
    Row(
        TOOLS,
        "plog's kafka-*.sh beside Kafka's",
        "the same command lines print the same; [MIGRATION](MIGRATION.md) lists the differences",
        (_of("compat/test_kafka_scripts.py"),),
        lambda: "3.9.1",
        long="more command lines",
    ),
    Row(
        TOOLS,
        "the tools on three brokers",
        "each asks one broker; another shows what it changed: topics, settings, groups,"
        " transactions, log directories, leaders",
        (_of("compat/test_kafka_tools_on_three_brokers.py"),),
        lambda: "3.9.1",
        long="the same with the tools of 4.1.1",
    ),
    Row(
        TOOLS,
        "zookeeper-shell",
        "reads the nodes of three brokers, which are those of Kafka 3.9",
        (_of("compat/test_zookeeper_shell.py"),),
        lambda: "3.9.1",
    ),
    Row(
        TOOLS,
        "MirrorMaker 2",
        "copies a KRaft cluster: topics, settings, records, groups; stopped between, plog killed",
        (_of("compat/test_mirror_maker.py"),),
        lambda: "4.1.1",
    ),
    Row(
        FILES,
        "kafka-dump-log",
        "segments of every codec, cleaned ones, indexes, snapshots, groups, transactions",
        (
            _of("compat/test_kafka_files.py::test_dump_tool_reads_what_plog_writes"),
            _of("compat/test_kafka_files.py::test_dump_tool_reads_what_transactions_leave"),
            _of("compat/test_kafka_files.py::test_wrong_entry_would_be_seen"),
            _of("compat/test_kafka_cleaned_files.py::test_dump_tool_reads_what_the_cleaner_leaves"),
            _of("compat/test_kafka_group_tools.py::test_dump_tool_reads_the_offsets_topic"),
            _of("compat/test_kafka_transaction_tools.py::test_internal_topics_are_dumped"),
        ),
        TOOL_RELEASES,
    ),
    Row(
        FILES,
        "checkpoints",
        "kafka-dump-log cannot read them; a live Kafka 3.9.1 uses the numbers in each of plog's",
        (_of("compat/test_kafka_checkpoints.py"),),
        TOOL_RELEASES,
    ),
    Row(
        FILES,
        "a data directory from Kafka to plog and back",
        "records, topic settings (`plog adopt`), producers' state; Kafka complains of nothing",
        (
            _of(f"{FILES_IN_TURNS}_stopped_and_kafka_where_plog_did"),
            _of(f"{FILES_IN_TURNS}_was_killed_and_kafka_where_plog_was"),
            _of("compat/test_kafka_files.py::test_kafka_serves_what_began_with_plog"),
            _of("compat/test_kafka_files.py::test_plog_serves_markers_that_kafkas_cleaner_has_emptied"),
            _of("compat/test_kafka_cleaned_files.py::test_kafka_goes_on_with_what_the_cleaner_leaves"),
            _of("compat/test_kafka_groups.py"),
            _of("compat/test_kafka_log.py"),
        ),
        lambda: "3.9.1",
    ),
    Row(
        FILES,
        "coordinators' records from Kafka 4 to plog and back",
        "groups (KIP-848), offsets, transactions: members and producers continue",
        (_of("compat/against_kafka_4/test_coordinator_files.py"),),
        lambda: "4.1.1",
    ),
    Row(
        FILES,
        "`plog adopt`",
        "refusals; interrupted, repeated, given back",
        (_of("ops/test_adoption.py"),),
    ),
    Row(
        ANSWERS,
        "beside a live Kafka",
        "every API and version, errors, defaults, configs; differences are in SKIPPED.md",
        (_of("compat/against_kafka"),),
        lambda: "3.9.1",
    ),
    Row(
        ANSWERS,
        "beside a live Kafka 4",
        "consumer groups, transactions of version 2, features; differences are in SKIPPED.md",
        (
            _of("compat/against_kafka_4/test_broker_keys.py"),
            _of("compat/against_kafka_4/test_consumer_groups.py"),
            _of("compat/against_kafka_4/test_differences.py"),
            _of("compat/against_kafka_4/test_ends_amid_markers.py"),
            _of("compat/against_kafka_4/test_features.py"),
            _of("compat/against_kafka_4/test_group_configs.py"),
            _of("compat/against_kafka_4/test_transactions.py"),
        ),
        lambda: "4.1.1",
    ),
    Row(
        ANSWERS,
        "beside a live Kafka 4.4",
        "versions of requests that are newer than 3.9; differences are in SKIPPED.md",
        (_of("compat/against_kafka_4_4"),),
        lambda: "4.4.0",
    ),
    _shown(INPUT, "truncated, oversized, random and damaged frames",
           "closed with one line, or answered; others served; memory bounded",
           "hostile/test_frames.py", "network/test_reactor.py", "handlers/test_hostile_frames.py"),
    _shown(INPUT, "slow clients, idle ones, floods",
           "5,000 idle connections, one byte at a time, half requests, unread responses",
           "hostile/test_clients.py"),
    _shown(INPUT, "malformed batches and decompression bombs",
           "CRCs, lengths, counts, varints, timestamps; each codec's bomb: Kafka's error code",
           "hostile/test_batches.py"),
    _shown(INPUT, "absurd fetches", "sizes, waits, sessions beyond the slots",
           "hostile/test_fetches.py"),
    _shown(INPUT, "small requests with large responses",
           "bounded, or described once; so are members with large metadata",
           "hostile/test_answers.py", "hostile/test_groups.py"),
    _shown(INPUT, "names that climb directories", "refused in every request with a name",
           "hostile/test_names.py"),
    _shown(INPUT, "control characters in every text",
           "no client forges a log line, a metric or what commands print",
           "hostile/test_forgery.py"),
    _shown(INPUT, "max.connections, caps per address, descriptors",
           "refused, logged once a second; the broker recovers", "hostile/test_limits.py"),
    _shown(INPUT, "a flood of hostile frames",
           "50,000, and 10,000 broken streams: same process, descriptors, memory, records",
           "hostile/test_flood.py", long="a million, and 300,000 broken streams"),
    _shown(INPUT, "fuzzing of the parsers",
           "guided by the kernels' branches, under AddressSanitizer; a planted mistake is found",
           "fuzz/test_fuzz.py", long=f"each target for {FUZZ_SECONDS} seconds"),
    _shown(HOSTS, "a full disk", "a reserve; refused early, fetched, deleted, accepted again",
           "hosts/test_full_disk.py", long="the same on an ext4, which frees space with delay"),
    _shown(HOSTS, "log directories that fail, vanish or are read-only",
           "their partitions go offline, others are served, nothing acknowledged is lost",
           "hosts/test_lost_disks.py", "broker/test_failed_disk.py",
           "broker/test_lost_replicas.py",
           long="an ext4 that finds an error, and one on a disk smaller than it said"),
    _shown(HOSTS, "files that are damaged or cut",
           "a damaged log takes its partition offline; indexes and other derived files are rebuilt",
           "crash/test_damage.py"),
    _shown(HOSTS, "derived files that are damaged after a clean stop",
           "500 cuts, deletions and flipped bits: the responses are the same, or refusals",
           "storage/test_derived_files.py", long="10,000 of them, and every flipped base offset"),
    _shown(HOSTS, "kill -9 and power cuts", "nothing acknowledged is lost",
           "crash/test_kill.py", "crash/test_failed_sync.py", "crash/test_store_power_cut.py",
           long="fifty kills and fifty power cuts, one after another"),
    _shown(HOSTS, "two brokers on one directory, a port in use",
           "one line, and status 1; the running broker is not affected",
           "hosts/test_second_broker.py"),
    _shown(HOSTS, "clock steps", "timestamps change and nothing else", "hosts/test_clock_steps.py"),
    _shown(HOSTS, "no file descriptors left", "refused, one line, and recovers",
           "hosts/test_descriptors.py", long="a broker under each limit from 18 to 300"),
    Row(
        HOST,
        "systemd's checks",
        "units, sysusers, tmpfiles verified; exposure; no call is made that the unit forbids",
        (_of("test_systemd.py"),),
    ),
    Row(
        HOST,
        "service manager",
        "READY, STATUS, STOPPING, WATCHDOG over a socket; a hung thread is not alive",
        (_of("ops/test_service_manager.py"),),
    ),
    Row(
        HOST,
        "wheel",
        "carries its codec libraries, works alone",
        (_of("test_packages.py::test_wheel_carries_its_libraries_and_works_alone"),),
    ),
    Row(
        HOST,
        "Debian package",
        "in a chroot: installed, upgraded and back with its data, removed, purged",
        (
            _of("test_packages.py::test_package_is_installed_upgraded_and_removed"),
            _of("test_packages.py::test_package_is_of_roots_modes_whatever_builds_it"),
            _of("test_packages.py::test_pages_in_the_package_name_files_that_it_has"),
            _of("test_packages.py::test_pages_of_the_package_name_files_that_it_has"),
            _of("test_packages.py::test_files_that_a_package_lacks_are_found"),
            _of("test_packages.py::test_systemd_finds_nothing_wrong_with_the_packages_units"),
            _of("test_packages.py::test_every_file_of_settings_in_the_package_is_the_administrators"),
            _of("test_packages.py::test_completion_and_manual_pages_are_where_shells_and_man_look"),
        ),
    ),
    Row(
        HOST,
        "container image",
        "built by buildah on a root file system: healthy, serves clients, stops; compose's file",
        (
            _of("test_packages.py::test_container_starts_is_healthy_serves_clients_and_stops"),
            _of("test_packages.py::test_image_names_what_it_cannot_be_built_from"),
            _of("test_packages.py::test_compose_file_is_one_that_compose_accepts"),
        ),
    ),
    Row(
        HOST,
        "another release of plog",
        "serves what an older release wrote, stopped or killed; an upgrade, a downgrade",
        (_of("broker/test_releases.py"),),
        long="upgrade, downgrade, upgrade, with the data in place: each release, stopped or killed",
    ),
    Row(
        HOST,
        "`plog doctor`",
        "properties, directories, listeners, limits, kernel settings; a running broker",
        (
            _of("ops/test_doctor.py"),
            _of("ops/test_doctor_running.py"),
            _of("ops/test_doctor_zookeeper.py"),
        ),
    ),
    Row(
        HOST,
        "metrics page, `plog top`",
        "rates, times, errors, traffic, lag, flushes, memory; health checks; silent readers",
        (
            _of("ops/test_metrics_page.py"),
            _of("ops/test_broker_pages.py"),
            _of("ops/test_lag_metrics.py"),
            _of("ops/test_traffic_metrics.py"),
            _of("ops/test_coordinator_metrics.py"),
            _of("ops/test_replication_metrics.py"),
            _of("ops/test_metrics_sources.py"),
            _of("ops/test_page_server.py"),
            _of("ops/test_health_client.py"),
            _of("ops/test_watch.py"),
        ),
    ),
    Row(
        HOST,
        "Prometheus and Grafana",
        "each alert fires by a real fault; each query of the dashboard finds series",
        (
            _of("ops/test_alerts.py"),
            _of("ops/test_cluster_alerts.py"),
            _of("ops/test_replica_alerts.py"),
            _of("ops/test_dashboard.py"),
        ),
        _prometheus,
    ),
    Row(
        HOST,
        "`plog bundle`",
        "of a broker that runs, hangs or is stopped; no secret is in it",
        tuple(_of(f"ops/test_{name}.py") for name in ("bundle", "cluster_facts", "host_facts")),
    ),
]  # fmt: skip


def rows_of(page: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the key and the line of every row of a page."""
    for line in page.splitlines():
        cells = cells_of(line)
        if len(cells) == COLUMNS and not set(cells[0]) <= {"-"} and cells[0] != "area":
            yield (cells[0], cells[1]), line


def cells_of(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return [cell.strip() for cell in line.split("|")[1:-1]]


def _result(outcomes: Counter[str]) -> str:
    if not set(outcomes) - {"passed"}:
        return "passed"
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))


def _line(row: Row, outcomes: Counter[str], when: str, last: str | None) -> str:
    if row.lacks:
        cells = ["", row.shown, "0", f"not yet: {row.lacks}", ""]
    elif outcomes:
        release = row.release()
        cells = [release, row.shown, str(outcomes.total()), _result(outcomes), when]
    elif last is not None:
        return reworded(last, row)
    else:
        cells = ["", row.shown, "0", "not run", ""]
    return f"| {' | '.join([*row.key, *cells])} |"


def is_worded(line: str, row: Row) -> bool:
    """Return whether a line has a row's words, except the seconds, which belong to its run."""
    said, shown = (re.sub(r"\d+ seconds", "", text) for text in (cells_of(line)[3], row.shown))
    return said == shown


def reworded(line: str, row: Row) -> str:
    """Return a line of a page with a row's words and its old result."""
    cells = cells_of(line)
    if not is_worded(line, row):
        cells[3] = row.shown
    return f"| {' | '.join(cells)} |"


def lines_of(rows: list[Row]) -> list[Row]:
    """Return the rows, each followed by that of its long forms."""
    return [line for row in rows for line in (row, row.long_row) if line is not None]


def page_of(
    outcomes: Mapping[str, str], last_page: str, when: str, long: Set[str] = frozenset()
) -> str:
    """Return the page after a run.

    Args:
        outcomes: the outcome of every test that ran.
        long: those of the tests that are long forms.
    """
    last = dict(rows_of(last_page))
    lines = []
    for row in ROWS:
        mine = [test for test in outcomes if any(tests.has(test) for tests in row.tests)]
        some = {test for test in mine if test not in long}
        is_whole = all(
            any(one.has(test) for test in some) for tests in row.tests for one in parts_of(tests)
        )
        for line, ran in (
            (row, some if is_whole else ()),
            (row.long_row, [test for test in mine if test in long]),
        ):
            if line is not None:
                found = Counter(outcomes[test] for test in ran)
                lines.append(_line(line, found, when, last.get(line.key)))
    return HEAD + "\n".join(lines) + "\n"


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def _commit() -> str:
    """Return the tested commit; changes of the page itself do not count."""
    commit = _git("rev-parse", "--short", "HEAD").stdout.strip()
    if not commit:
        return "no commit"
    changed = _git("diff", "--quiet", "HEAD", "--", ".", f":!{PAGE.relative_to(ROOT)}").returncode
    return f"{commit} and changes" if changed else commit


class Plugin:
    """Gathers outcomes in the process that receives all reports, and writes the page at the end."""

    def __init__(self) -> None:
        self._outcomes: dict[str, str] = {}
        self._long: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a result; a test has failed if its setup, call or teardown has."""
        if report.when == "call" or not report.passed:
            known = self._outcomes.get(report.nodeid, report.outcome)
            self._outcomes[report.nodeid] = known if known == "failed" else report.outcome
            if getattr(report, "is_long", False):
                self._long.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the page."""
        last = PAGE.read_text() if PAGE.exists() else ""
        today = datetime.datetime.now(datetime.UTC).date()
        page = page_of(self._outcomes, last, f"{today}, {_commit()}", self._long)
        PAGE.write_text(page)


if __name__ == "__main__":
    PAGE.write_text(page_of({}, PAGE.read_text(), ""))
