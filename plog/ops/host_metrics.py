"""Measures a host at regular intervals, and publishes the figures to a topic.

Owns the names and the arithmetic of the figures, the format of the records, and how the agent
handles an unreachable cluster or metrics page. Figures are numbers under flat names, so that a
reader can aggregate unknown ones. Names end in their units; a share is between 0 and 1. A figure
that the host cannot measure is absent, never 0.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from plog.client.admin import Admin
from plog.client.producer import Producer, RecordMetadata
from plog.errors import KafkaError, PlogError, TopicAlreadyExists, UnknownTopicOrPartition
from plog.ops import watch
from plog.ops.watch import Watch
from plog.types import counted

SYSFS = Path("/sys")
LOOPBACK = "lo"
"""Traffic within the host, counted on both sides."""
STACKED = re.compile(r"lo\d*|(loop|ram|zram|dm-|md)\d+.*")
"""Devices in memory, or on top of devices that count the same bytes."""
RETRY_S = 1.0
ANSWER_S = 5.0
"""The cluster counts as unreachable after this time without an acknowledgement."""
PAGE_S = 2.0
"""Timeout for reading the broker's page, which happens between two records."""
KEEP_MS = 3_600_000
"""How long records wait for an unreachable cluster before they are dropped."""
DELETED_S = 5.0
"""A topic that is being deleted can be created again within this time."""
LOOK_S = 0.2
"""Between two attempts to create such a topic."""
CLOSE_S = 10.0
BLOCK_MS = ASK_MS = 5_000

Figures = dict[str, float]


# -- figures -----------------------------------------------------------------------------------


class FileSystem(NamedTuple):
    """A file system on a disk of this host."""

    mount: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class HostReading:
    """The kernel's counters at one time.

    Attributes:
        at_s: time of the monotonic clock.
        cpu_s: seconds of all processors since boot, by mode.
        disk_bytes, network_bytes: bytes read and written, received and sent; None if unknown.
        network_faults: packets with errors, and dropped packets.
    """

    at_s: float
    cpu_s: Mapping[str, float]
    load: float
    memory_bytes: int
    available_bytes: int
    swapped_bytes: int
    file_systems: tuple[FileSystem, ...]
    disk_bytes: tuple[int, int] | None
    network_bytes: tuple[int, int]
    network_faults: int


def read_host() -> HostReading:
    """Read the kernel's counters."""
    memory = psutil.virtual_memory()
    disks = _of_hardware("block", psutil.disk_io_counters(perdisk=True))
    links = _of_hardware("class/net", psutil.net_io_counters(pernic=True))
    return HostReading(
        at_s=time.monotonic(),
        cpu_s=psutil.cpu_times()._asdict(),
        load=os.getloadavg()[0],
        memory_bytes=memory.total,
        available_bytes=memory.available,
        swapped_bytes=psutil.swap_memory().used,
        file_systems=_file_systems(),
        disk_bytes=_sums(disks, "read_bytes", "write_bytes") if disks else None,
        network_bytes=_sums(links, "bytes_recv", "bytes_sent"),
        network_faults=sum(one.errin + one.errout + one.dropin + one.dropout for one in links),
    )


def _of_hardware(kind: str, counters: Mapping[str, Any]) -> list[Any]:
    """Return the counters of hardware devices; of all devices if there are none (in a container).

    A device on top of others (a bond, a bridge, LVM, RAID) counts their bytes again, and so does a
    disk's partition.

    Args:
        kind: directory of the devices in sysfs.
    """
    there = SYSFS / kind
    hardware = [one for name, one in counters.items() if (there / name / "device").exists()]
    if hardware:
        return hardware
    # sysfs has partitions in their disk's directory. Without sysfs only the names help.
    whole = {name: one for name, one in counters.items() if (there / name).exists()} or counters
    lowest = [one for name, one in whole.items() if STACKED.fullmatch(name) is None]
    return lowest or [one for name, one in whole.items() if name != LOOPBACK]


def _sums(counters: Sequence[Any], *names: str) -> tuple[int, int]:
    first, second = (sum(getattr(one, name) for one in counters) for name in names)
    return first, second


def _file_systems() -> tuple[FileSystem, ...]:
    found: dict[int, FileSystem] = {}
    # Only local disks, because a network file system may hang. Count each one once, even if it is
    # mounted twice. Skip read-only ones: they cannot fill up, and images (squashfs, ISO) are full.
    parts = psutil.disk_partitions()
    mounts = [part.mountpoint for part in parts if "ro" not in part.opts.split(",")]
    for mount in ["/", *mounts]:
        with suppress(OSError):  # unmounted meanwhile, or access denied
            status, usage = os.stat(mount), psutil.disk_usage(mount)
            found.setdefault(status.st_dev, FileSystem(mount, usage.used + usage.free, usage.free))
    return tuple(found.values())


def host_figures(before: HostReading, after: HostReading) -> Figures:
    """Return a host's rates between two readings, and its figures at the second one."""
    seconds = after.at_s - before.at_s
    found: Figures = {
        "load_1m": after.load,
        "memory_used_share": 1 - after.available_bytes / after.memory_bytes,
        "memory_available_bytes": after.available_bytes,
        "swap_used_bytes": after.swapped_bytes,
    }
    spent = {
        name: max(value - before.cpu_s.get(name, 0.0), 0.0)
        for name, value in after.cpu_s.items()
        if not name.startswith("guest")  # which are in `user` and `nice` as well
    }
    if total := sum(spent.values()):
        waited = spent.get("iowait", 0.0)
        found["cpu_used_share"] = 1 - (spent["idle"] + waited) / total
        found["cpu_iowait_share"] = waited / total
        found["cpu_steal_share"] = spent.get("steal", 0.0) / total
    sized = [one for one in after.file_systems if one.total_bytes]
    if sized:
        fullest = min(sized, key=lambda one: one.free_bytes / one.total_bytes)
        found["disk_used_share"] = 1 - fullest.free_bytes / fullest.total_bytes
        found["disk_free_bytes"] = fullest.free_bytes
    pairs = [("network_received_bytes_per_s", "network_sent_bytes_per_s")]
    counts = [(before.network_bytes, after.network_bytes)]
    if before.disk_bytes is not None and after.disk_bytes is not None:
        pairs.append(("disk_read_bytes_per_s", "disk_written_bytes_per_s"))
        counts.append((before.disk_bytes, after.disk_bytes))
    for names, (old, new) in zip(pairs, counts, strict=True):
        for name, earlier, later in zip(names, old, new, strict=True):
            # A counter is lower if a device was removed.
            found[name] = max(later - earlier, 0) / seconds
    faults = max(after.network_faults - before.network_faults, 0)
    found["network_faults_per_s"] = faults / seconds
    return found


BROKER_GAUGES = {
    "broker_connections": "plog_connections",
    "broker_offline_partitions": "plog_offline_partitions",
    "broker_missing_log_dirs": "plog_missing_log_dirs",
    "broker_resident_memory_bytes": "process_resident_memory_bytes",
    "broker_open_descriptors": "process_open_fds",
    "broker_log_bytes": "plog_log_bytes",
}
BROKER_RATES = {
    "broker_received_bytes_per_s": "plog_received_bytes_total",
    "broker_sent_bytes_per_s": "plog_sent_bytes_total",
    "broker_appended_records_per_s": "plog_appended_records_total",
    "broker_appended_bytes_per_s": "plog_appended_bytes_total",
    "broker_cpu_seconds_per_s": "process_cpu_seconds_total",
}
BROKER_TIMES = {
    "broker_flush_p99_s": ("plog_flush_duration_seconds", {}),
    "broker_produce_p99_s": ("plog_request_duration_seconds", {"api": "Produce"}),
    "broker_fetch_p99_s": ("plog_request_duration_seconds", {"api": "Fetch"}),
}
"""Histograms of the page, with labels to select."""


def broker_figures(before: watch.Reading | None, after: watch.Reading | None) -> Figures:
    """Return a broker's figures from two readings of its page; None is a failed reading."""
    found: Figures = {"broker_up": float(after is not None)}
    if after is None:
        return found
    found |= {name: after.value(page) for name, page in BROKER_GAUGES.items()}
    if before is None:
        return found
    seen = Watch(before, after)
    found |= {name: seen.rate(page) for name, page in BROKER_RATES.items()}
    for name, (page, labels) in BROKER_TIMES.items():
        _, p99, _ = seen.percentiles(page, **labels)
        if p99 is not None:
            found[name] = p99
    return found


def encode(host: str, at_ms: int, seconds: float, figures: Figures, disks: Any) -> bytes:
    """Return a record's value."""
    when = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    value = {
        "host": host,
        "time": when.replace("+00:00", "Z"),
        "seconds": round(seconds, 3),
        "figures": {name: round(value, 6) for name, value in figures.items()},
        "disks": disks,
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


# -- the agent ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentSettings:
    """What to publish, and where.

    Attributes:
        metrics: host:port of a broker's metrics page; None for no broker.
        count: number of records to publish; None to continue until stopped.
        partitions: number of partitions to create the topic with; None not to create it.
    """

    bootstrap: str
    topic: str
    host: str
    every_s: float = 10.0
    metrics: str | None = None
    count: int | None = None
    partitions: int | None = 1


class Outage:
    """An outage of the cluster or the page; reports each change once."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self.is_on = False

    def begins(self, text: str) -> None:
        """Report the start, unless the outage has already begun."""
        if not self.is_on:
            self._report(text)
        self.is_on = True

    def ends(self, text: str) -> None:
        """Report the end, if there was an outage."""
        if self.is_on:
            self._report(text)
        self.is_on = False


class Unanswered:
    """Counts records in flight, acknowledged and lost. The producer's thread reports them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent_at: dict[int, float] = {}
        self._faults: list[PlogError] = []
        self.acknowledged = 0
        self.lost = 0

    def add(self, number: int) -> Callable[[RecordMetadata | None, PlogError | None], None]:
        """Return the callback of a record."""
        with self._lock:
            self._sent_at[number] = time.monotonic()

        def delivered(_metadata: RecordMetadata | None, fault: PlogError | None) -> None:
            with self._lock:
                self._sent_at.pop(number, None)
                if fault is None:
                    self.acknowledged += 1
                else:
                    self.lost += 1
                    self._faults.append(fault)

        return delivered

    def waiting(self) -> tuple[int, float]:
        """Return the number of records in flight, and the age of the oldest in seconds."""
        with self._lock:
            oldest = min(self._sent_at.values(), default=time.monotonic())
            return len(self._sent_at), time.monotonic() - oldest

    def faults(self) -> list[PlogError]:
        """Return the failures since the last call."""
        with self._lock:
            found, self._faults = self._faults, []
        return found


class Agent:
    """Publishes a host's figures, from `run` until `stop` is set.

    Args:
        stop: ends the agent; it still sends the records measured before.
        report: called with each message for the user.
    """

    def __init__(
        self, settings: AgentSettings, stop: threading.Event, report: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._stop = stop
        self._page_outage, self._cluster_outage = Outage(report), Outage(report)
        self._unanswered = Unanswered()
        self._acknowledged = 0
        self._mend_at = 0.0

    @property
    def waiting(self) -> int:
        """Number of records in flight."""
        count, _ = self._unanswered.waiting()
        return count

    def run(self) -> int:
        """Publish until stopped; return the number of lost records.

        Raises:
            KafkaError: the topic does not exist and was not created.
        """
        asked = self._settings
        if not self._wait_for_topic():
            return 0
        producer = Producer(
            asked.bootstrap,
            client_id="plog-host-metrics",
            delivery_timeout_ms=KEEP_MS,
            max_block_ms=BLOCK_MS,
            linger_ms=0,
        )
        try:
            host, page = read_host(), self._read_page()
            published, due = 0, host.at_s
            while asked.count is None or published < asked.count:
                # After a sleep of the host, write one record for the whole time, not many.
                due = max(due + asked.every_s, time.monotonic())
                if self._stop.wait(max(due - time.monotonic(), 0.0)):
                    break
                self._report_cluster()
                before, host = host, read_host()
                page_before, page = page, self._read_page()
                figures = host_figures(before, host)
                if asked.metrics is not None:
                    figures |= broker_figures(page_before, page)
                self._publish(producer, published, host, host.at_s - before.at_s, figures)
                published += 1
        finally:
            producer.close(CLOSE_S)
        self._report_faults()
        return self._unanswered.lost

    def _publish(
        self,
        producer: Producer,
        number: int,
        reading: HostReading,
        seconds: float,
        figures: Figures,
    ) -> None:
        asked, at_ms = self._settings, time.time_ns() // 1_000_000
        disks = [one._asdict() for one in reading.file_systems]
        value = encode(asked.host, at_ms, seconds, figures, disks)
        delivered = self._unanswered.add(number)

        def send() -> None:
            producer.send(
                asked.topic,
                value,
                key=asked.host.encode(),
                timestamp_ms=at_ms,
                on_delivery=delivered,
            )

        # `send` itself waits for BLOCK_MS until a topic is there.
        deadline = time.monotonic() + BLOCK_MS / 1000 + DELETED_S
        try:
            while True:
                try:
                    send()
                    break
                except UnknownTopicOrPartition:  # the topic was deleted, or is being deleted
                    if time.monotonic() > deadline:
                        raise
                self._create_topic()
                time.sleep(LOOK_S)
        except PlogError as fault:
            delivered(None, fault)

    # -- outages ---------------------------------------------------------------------------

    def _wait_for_topic(self) -> bool:
        """Wait for the cluster, and create the topic; return False if stopped before."""
        asked = self._settings
        while not self._stop.is_set():
            try:
                self._create_topic()
            except KafkaError as fault:
                if not fault.retriable or isinstance(fault, UnknownTopicOrPartition):
                    raise
                self._cluster_outage.begins(f"{fault}; waiting for {asked.bootstrap}")
                self._stop.wait(RETRY_S)
            else:
                self._cluster_outage.ends(f"connected to {asked.bootstrap}")
                return True
        return False

    def _create_topic(self) -> None:
        asked = self._settings
        with Admin(asked.bootstrap, request_timeout_ms=ASK_MS) as admin:
            try:
                admin.topic(asked.topic)
            except UnknownTopicOrPartition:
                if asked.partitions is None:
                    raise
                with suppress(TopicAlreadyExists):  # by another host's agent
                    admin.create_topic(asked.topic, partitions=asked.partitions)

    def _report_cluster(self) -> None:
        """Report, between two records, whether the earlier ones were acknowledged."""
        has_faults = self._report_faults()
        count, seconds = self._unanswered.waiting()
        acknowledged = self._unanswered.acknowledged
        where = self._settings.bootstrap
        if count and seconds > ANSWER_S:
            why = self._mend_topic()
            self._cluster_outage.begins(
                f"no acknowledgements from {where}{why}; records wait for up to an hour"
            )
        elif acknowledged > self._acknowledged and not has_faults:
            self._cluster_outage.ends(f"{where} acknowledges records again")
        self._acknowledged = acknowledged

    def _mend_topic(self) -> str:
        """Create the topic again if it was deleted; return the failure as text, or ""."""
        if time.monotonic() < self._mend_at:
            return ""
        try:
            self._create_topic()
        except PlogError as fault:
            return f" ({fault})"
        finally:
            self._mend_at = time.monotonic() + ANSWER_S
        return ""

    def _report_faults(self) -> bool:
        """Report lost records; return whether there are new ones."""
        faults = self._unanswered.faults()
        if faults:
            lost = counted(self._unanswered.lost, "record")
            self._cluster_outage.begins(f"{lost} not written: {faults[0]}")
        return bool(faults)

    def _read_page(self) -> watch.Reading | None:
        address = self._settings.metrics
        if address is None:
            return None
        try:
            page = watch.read(address, time.monotonic(), PAGE_S)
        except (OSError, ValueError) as error:
            self._page_outage.begins(
                f"no metrics page at {address}: {error}; publishing only the host's metrics"
            )
            return None
        self._page_outage.ends(f"the metrics page at {address} is available again")
        return page
