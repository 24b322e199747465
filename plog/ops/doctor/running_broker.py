"""Checks a running broker as its clients see it: addresses, partitions, disks, versions, clock.

Owns the checks and their advice. Every check only reads. A broker that does not run is no fault
here: `plog doctor` checks a host before the first start, too.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

import psutil

from plog import __version__
from plog.client.admin import BROKER
from plog.client.connection import Connection, address_of
from plog.client.metadata import parse_bootstrap
from plog.errors import ErrorCode, KafkaError, PlogError
from plog.ops import watch
from plog.ops.doctor.findings import Finding, Findings, Verdict, graded, graded_space
from plog.ops.health_client import Unhealthy, ask_page
from plog.ops.host_facts import broker_process
from plog.ops.pages.address import NO_PAGE, find_page
from plog.ops.pages.paths import READY
from plog.ops.pages.probes import Phase
from plog.printable import printable
from plog.protocol.messages.cluster import DescribeLogDirsRequest, DescribeLogDirsResponse
from plog.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from plog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from plog.settings.definitions import BrokerSettings
from plog.settings.listeners import EVERYWHERE, Listener
from plog.storage.log_dir import META_PROPERTIES, decode_properties, is_locked

WAIT_MS = 3_000
"""How long a check waits for a connection or a response."""
USED_SHARE = 0.8
NAMES_SHOWN = 3
MAX_REASON = 200
CLOCK_DIFFERENCE_S = 2.0
OFFLINE_ADVICE = "repair or mount its disk and restart: the broker's log has the reason"


class Identity(NamedTuple):
    """A broker and its cluster. The id is None if the broker does not report it."""

    cluster_id: str | None
    broker_id: int | None

    def __str__(self) -> str:
        who = "a broker" if self.broker_id is None else f"broker {self.broker_id}"
        return f"{who} of cluster {self.cluster_id}"


class Answer(NamedTuple):
    """A broker's description of its cluster, and the broker that gave it."""

    identity: Identity
    metadata: MetadataResponse


class RunningBroker(NamedTuple):
    """The answers of the broker that uses this host's log directories now.

    Attributes:
        phase: why it accepts no clients: it starts, or stops; "" if it accepts them.
        own: its identity; None if neither its log directories nor an answer has it.
        listeners: the answer at each listener, or why there is none.
        through: the address of the last listener at which it answered; None if there is none.
        log_dirs: its log directories, or why it does not report them; None if it never answered.
    """

    phase: str
    own: Identity | None = None
    listeners: Sequence[tuple[Listener, Answer | PlogError]] = ()
    through: tuple[str, int] | None = None
    log_dirs: DescribeLogDirsResponse | PlogError | None = None

    def online(self) -> dict[Path, bool] | None:
        """Return whether each log directory is online; None if the broker does not report that."""
        if not isinstance(self.log_dirs, DescribeLogDirsResponse):
            return None
        return {Path(one.log_dir): not one.error_code for one in self.log_dirs.results}


def ask_running(settings: BrokerSettings, log_dirs: Sequence[Path]) -> RunningBroker | None:
    """Ask the broker that uses these log directories now; None if there is none."""
    if not any(map(is_locked, log_dirs)):
        return None
    if phase := _phase(settings):
        return RunningBroker(phase)
    own = _recorded_identity(log_dirs)
    through = None
    answers: list[tuple[Listener, Answer | PlogError]] = []
    for listener in settings.parsed_listeners():
        try:
            answer = _ask(*_at(listener), own)
        except PlogError as error:
            answers.append((listener, error))
            continue
        own = own or answer.identity
        if answer.identity == own:
            through = _at(listener)
        answers.append((listener, answer))
    return RunningBroker("", own, answers, through, through and _ask_log_dirs(through))


def _at(listener: Listener) -> tuple[str, int]:
    return EVERYWHERE.get(listener.host, listener.host), listener.port


def examine_running(
    settings: BrokerSettings, running: RunningBroker | None, log_dirs: Sequence[Path]
) -> Findings:
    """Check the answers of a running broker, except that the named log directories are online."""
    if running is None:
        text = "is not running: start it, then run this again to check its addresses"
        yield Finding("broker", Verdict.OK, text)
        return
    if running.phase:
        text = f"the running broker is {running.phase}: its addresses are not checked"
        advice = "run this again when it is running; its log has the progress"
        yield Finding("broker", Verdict.WARNING, text, advice)
        return
    own = running.own
    described: MetadataResponse | None = None
    for listener, answer in running.listeners:
        place = f"{listener.name}://{address_of(*_at(listener))}"
        if isinstance(answer, PlogError):
            text = f"the running broker does not answer at {place}: {answer}"
            advice = "it is starting, stopping or hanging, or its settings changed: see its log"
            yield Finding("broker", Verdict.FAILURE, text, advice)
            continue
        assert own is not None
        if answer.identity != own:
            yield _other_broker(f"at {place}", answer.identity, own)
            continue
        described = answer.metadata
        yield from _advertised(listener, described, own)
    if described is None:
        return
    yield Finding("broker", Verdict.OK, f"{own} is running")
    yield from _descriptors(log_dirs)
    yield from _partitions(described)
    assert running.log_dirs is not None
    named = frozenset(Path(text).absolute() for text in settings.log_dirs)
    yield from _offline(running.log_dirs, named)
    yield from _disks(running.log_dirs)
    if (page := settings.metrics_listener) is None:
        advice = "set metrics.listener=127.0.0.1:9095 to watch the broker"
        yield Finding("metrics", Verdict.WARNING, "metrics.listener is not set", advice)
    else:
        host = EVERYWHERE.get(page.host, page.host)
        yield from _page(address_of(host, page.port))


def examine_address(bootstrap: str) -> Findings:
    """Check a broker from this host, as a client that has only its address."""
    answer: Answer | None = None
    for host, port in parse_bootstrap(bootstrap):
        try:
            answer = _ask(host, port)
        except PlogError as error:
            advice = "start the broker, or correct the address; a firewall may be in between"
            yield Finding("broker", Verdict.FAILURE, str(error), advice)
            continue
        break
    if answer is None:
        return
    found = answer.identity
    yield Finding("broker", Verdict.OK, f"{found} answers at {address_of(host, port)}")
    for node in answer.metadata.brokers:
        name, wanted = f"broker {node.node_id}", Identity(found.cluster_id, node.node_id)
        yield _reachable(name, node.host, node.port, wanted, Verdict.FAILURE)
    yield from _partitions(answer.metadata)
    log_dirs = _ask_log_dirs((host, port))
    yield from _offline(log_dirs)
    yield from _disks(log_dirs)
    try:
        page = find_page(host, port, WAIT_MS)
    except KafkaError as error:
        text = f"the broker does not report its metrics.listener: {error}"
        yield Finding("metrics", Verdict.WARNING, text, "see its log")
        return
    if page.address:
        yield from _page(page.address)
        return
    advice = "set metrics.listener in the broker's settings to watch it"
    yield graded("metrics", page.reason != NO_PAGE, page.reason, advice)


def _ask(host: str, port: int, expected: Identity | None = None) -> Answer:
    """Ask the broker at an address who it is, and for its cluster.

    Args:
        expected: the broker that should answer.
    """
    connection = Connection(host, port, timeout_ms=WAIT_MS)
    try:
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        metadata = connection.call(request, MetadataResponse)
        ids = dict.fromkeys(node.node_id for node in metadata.brokers)
        if expected is not None and expected.broker_id is not None:
            # First: it is right as a rule, and a broker that is not registered is not listed.
            ids = {expected.broker_id: None, **ids}
        own = next((one for one in ids if _has_id(connection, one)), None)
        return Answer(Identity(metadata.cluster_id, own), metadata)
    finally:
        connection.close()


def _has_id(connection: Connection, broker_id: int) -> bool:
    """Return whether a broker describes the settings of this id: each describes its own."""
    asked = DescribeConfigsResource(
        resource_type=BROKER, resource_name=str(broker_id), configuration_keys=[]
    )
    request = DescribeConfigsRequest(resources=[asked], include_synonyms=False)
    answer = connection.call(request, DescribeConfigsResponse)
    return all(one.error_code == ErrorCode.NONE for one in answer.results)


def _recorded_identity(log_dirs: Sequence[Path]) -> Identity | None:
    """Return the identity in a log directory; None if no directory can be read."""
    for path in log_dirs:
        try:
            found = decode_properties((path / META_PROPERTIES).read_text())
            return Identity(found["cluster.id"], int(found["broker.id"]))
        except (OSError, ValueError, KeyError):
            continue
    return None


def _other_broker(place: str, found: Identity, own: Identity) -> Finding:
    text = f"{found} answers {place} instead of {own}"
    advice = "clients would use the other broker's records: correct the address, or its port"
    return Finding("broker", Verdict.FAILURE, text, advice)


# -- addresses ---------------------------------------------------------------------------------


def _advertised(listener: Listener, answer: MetadataResponse, own: Identity) -> Findings:
    for node in answer.brokers:
        if node.node_id != own.broker_id:
            continue
        wanted = listener.advertised_host or node.host, listener.advertised_port or node.port
        if wanted != (node.host, node.port):
            text = f"{listener.name} is advertised as {address_of(node.host, node.port)}, but the"
            text += f" settings say {address_of(*wanted)}"
            yield Finding("advertised", Verdict.WARNING, text, "restart the broker to use them")
        yield _reachable(listener.name, node.host, node.port, own, Verdict.WARNING)


def _reachable(name: str, host: str, port: int, own: Identity, verdict: Verdict) -> Finding:
    """Check an advertised address from here: its name, its port, and the broker that answers."""
    place = f"{name} at {address_of(host, port)}"
    try:
        found = _ask(host, port, own).identity
    except PlogError as error:
        text = f"{name} cannot be reached from here: {error}"
        advice = "clients connect to this address: correct advertised.listeners, the name service"
        advice += " or the firewall"
        if verdict is Verdict.WARNING:
            advice += "; if only other hosts use it, run plog doctor -b there"
        return Finding("advertised", verdict, text, advice)
    if found != own:
        return _other_broker(f"at the advertised address of {place}", found, own)
    return Finding("advertised", Verdict.OK, f"{place} is reachable, and this broker answers")


# -- partitions and disks ----------------------------------------------------------------------


def _partitions(answer: MetadataResponse) -> Findings:
    offline = [
        f"{topic.name}-{partition.partition_index}"
        for topic in answer.topics
        for partition in topic.partitions
        if partition.leader_id < 0
    ]
    count = sum(len(topic.partitions) for topic in answer.topics)
    text = f"partitions without a leader: {len(offline):,} of {count:,}"
    if offline:
        more = f" and {len(offline) - NAMES_SHOWN:,} more" if len(offline) > NAMES_SHOWN else ""
        text += f" ({', '.join(sorted(offline)[:NAMES_SHOWN])}{more})"
    advice = "their records cannot be read or written: the broker's log has the reason"
    yield graded("partitions", not offline, text, advice, Verdict.FAILURE)


def _ask_log_dirs(at: tuple[str, int]) -> DescribeLogDirsResponse | PlogError:
    try:
        connection = Connection(*at, timeout_ms=WAIT_MS)
        try:
            request = DescribeLogDirsRequest(topics=[])
            return connection.call(request, DescribeLogDirsResponse)
        finally:
            connection.close()
    except PlogError as error:
        return error


def _offline(
    answer: DescribeLogDirsResponse | PlogError, named: frozenset[Path] = frozenset()
) -> Findings:
    """Report offline log directories, except those that the settings on this host name."""
    text, advice = "is offline", OFFLINE_ADVICE
    if named:
        text += ", and these settings do not name it"
        advice = f"add it to log.dirs; {advice}"
    for one in answer.results if isinstance(answer, DescribeLogDirsResponse) else ():
        if one.error_code and Path(one.log_dir) not in named:
            yield Finding("disks", Verdict.FAILURE, f"{one.log_dir} {text}", advice)


def _disks(answer: DescribeLogDirsResponse | PlogError) -> Findings:
    """Check the space of the log directories that are online."""
    if isinstance(answer, PlogError):
        text = f"the broker does not report its log directories: {answer}"
        yield Finding("disks", Verdict.WARNING, text, "see its log")
        return
    for one in answer.results:
        if not one.error_code and one.total_bytes > 0:
            which = f"{one.log_dir} is online,"
            yield graded_space("disks", which, one.usable_bytes, one.total_bytes)


def _descriptors(log_dirs: Sequence[Path]) -> Findings:
    """Check the limit of the process; another user may not see it."""
    try:
        process = psutil.Process(broker_process(log_dirs))
        most, used = process.rlimit(psutil.RLIMIT_NOFILE)[0], process.num_fds()
    except (ProcessLookupError, psutil.Error):
        return
    text = f"the running broker has {used:,} of {most:,} file descriptors open"
    advice = "raise LimitNOFILE= of its unit and restart it: without free ones it refuses clients"
    is_enough = most == psutil.RLIM_INFINITY or used <= USED_SHARE * most
    yield graded("limits", is_enough, text, advice)


# -- the metrics page --------------------------------------------------------------------------


def _page(address: str) -> Findings:
    try:
        reading = watch.read(address, time.monotonic(), WAIT_MS / 1000)
        difference = clock_difference(address)
    except (OSError, ValueError) as error:
        text = f"no metrics page at {address}: {error}"
        advice = "set metrics.listener, and restart the broker if it was not set at its start"
        yield Finding("metrics", Verdict.WARNING, text, advice)
        return
    yield Finding("metrics", Verdict.OK, f"the page at {address} answers")
    for version in reading.labels("plog_build_info", "version"):
        text = f"{version} is running, {__version__} is installed here"
        advice = "restart the broker to run the installed version, or upgrade this host"
        yield graded("version", version == __version__, text, advice)
    for missing in reading.samples.get("plog_missing_log_dirs", {}).values():
        text = f"log directories that were missing when the broker started: {missing:.0f}"
        advice = "mount them, or add them to log.dirs, and restart the broker; its log names them"
        yield graded("disks", not missing, text, advice, Verdict.FAILURE)
    for path in reading.having("plog_log_dir_refusing", "log_dir"):
        text = f"{path} is full: the broker refuses records"
        yield Finding("disks", Verdict.FAILURE, text, "free space; no restart is necessary")
    if difference is not None:
        is_same = abs(difference) <= CLOCK_DIFFERENCE_S
        text = f"the broker's clock and this host's agree within {CLOCK_DIFFERENCE_S:.0f} s"
        if not is_same:
            ahead = "ahead of" if difference > 0 else "behind"
            text = f"the broker's clock is {abs(difference):.0f} s {ahead} this host's"
        yield graded(
            "clock",
            is_same,
            text,
            "run an NTP client on both hosts: retention and timestamps depend on their clocks",
        )


def _phase(settings: BrokerSettings) -> str:
    """Return the reason why the broker accepts no clients: it starts, or stops; "" otherwise."""
    if (page := settings.metrics_listener) is None:
        return ""
    try:
        ask_page(page, READY, WAIT_MS / 1000)
    except Unhealthy as error:
        reason = printable(error.reason.partition("\n")[0])[:MAX_REASON]
        is_passing = reason.startswith((Phase.STARTING.value, Phase.STOPPING.value))
        return reason if is_passing else ""
    return ""


def clock_difference(address: str) -> float | None:
    """Return by how many seconds the clock of a page's host is ahead of this one; 0 if it may fit.

    The page states its time in whole seconds. None if it does not state one.

    Raises:
        OSError: the address does not respond.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    before_s = time.time()
    try:
        with opener.open(f"http://{address}/", timeout=WAIT_MS / 1000) as response:
            date = response.headers["Date"]
    except urllib.error.HTTPError as error:  # any page states the time
        date = error.headers["Date"]
    except HTTPException:
        return None
    after_s = time.time()
    if date is None:
        return None
    stated_s = parsedate_to_datetime(date).timestamp()
    if stated_s > after_s:
        return stated_s - after_s
    return min(stated_s + 1 - before_s, 0.0)
