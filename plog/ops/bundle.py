"""Collects everything that helps to find a problem of a broker into one file, without secrets.

Owns the list of parts. A part that cannot be collected is named in the file, and the others are
collected. Never changes anything at the broker, and never overwrites a file.
"""

from __future__ import annotations

import io
import json
import os
import platform
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from plog import __version__
from plog.client.connection import address_of
from plog.client.metadata import Cluster, parse_bootstrap
from plog.errors import ConfigError, KafkaError, NetworkException, PlogError, RequestTimedOut
from plog.ops import cluster_facts, host_facts
from plog.ops.doctor.examination import examine, examine_client
from plog.ops.doctor.findings import Finding
from plog.ops.doctor.units import Unit, unit_of
from plog.ops.pages.address import PageAddress, find_page, metrics_listener, page_from
from plog.ops.pages.paths import METRICS
from plog.ops.secrets import Masker
from plog.printable import printable
from plog.settings.definitions import BrokerSettings
from plog.settings.listeners import EVERYWHERE
from plog.settings.properties import load_properties
from plog.settings.server_properties import read
from plog.storage.log_dir import is_locked

T = TypeVar("T")
MAX_LOG_BYTES = 32 << 20
MAX_PAGE_BYTES = 32 << 20
JOURNAL_TIMEOUT_S = 60
WAIT_S = 5.0
THIS_HOST = "127.0.0.1"


class BundleError(PlogError):
    """A bundle cannot be written."""


class Source(NamedTuple):
    """The arguments of a bundle.

    Attributes:
        environment: all variables that may set keys; None if none does.
        bootstrap: the broker's address; by default the first listener of the settings.
        log: a file with log lines; by default the journal of the broker's unit.
    """

    properties: str | None = None
    overrides: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    bootstrap: str | None = None
    log: str | None = None
    log_lines: int = 5000

    @property
    def is_elsewhere(self) -> bool:
        """Whether there is only an address: this host may not be the broker's."""
        has_settings = self.properties is not None or bool(self.overrides)
        return self.bootstrap is not None and not has_settings and self.environment is None


class Part(NamedTuple):
    """One file of a bundle."""

    name: str
    about: str
    size: int = 0
    error: str = ""
    """Why it was not collected; "" if it was."""


class NotCollected(PlogError):
    """A part that does not exist here; the text says why."""


@dataclass
class Bundle:
    """The parts of a bundle, and their contents by name."""

    created: str
    parts: list[Part] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the archive to a new file that only this user can read.

        Raises:
            BundleError: the file exists, or cannot be written.
        """
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            refuse_existing(path)
            raise
        except OSError as error:
            raise BundleError(f"cannot write {path}: {error.strerror}") from error
        directory = path.name.removesuffix(".tar.gz")
        try:
            with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                for name, data in self.contents.items():
                    entry = tarfile.TarInfo(f"{directory}/{name}")
                    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                    archive.addfile(entry, io.BytesIO(data))
        except OSError as error:
            path.unlink(missing_ok=True)
            raise BundleError(f"cannot write {path}: {error.strerror}") from error


def refuse_existing(path: Path) -> None:
    """Check that no file has the name of the bundle.

    Raises:
        BundleError: one has.
    """
    if os.path.lexists(path):
        raise BundleError(f"{path} exists: name another file with --output")


def default_name() -> str:
    """Return the name of a bundle: the host and the time (UTC)."""
    host = "".join(c if c.isalnum() or c in ".-" else "-" for c in platform.node()) or "host"
    return f"plog-bundle-{host}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz"


def unused_path(directory: Path) -> Path:
    """Return the path of a new bundle; a number follows the time if another bundle has it."""
    name = default_name()
    stem, number, path = name.removesuffix(".tar.gz"), 1, directory / name
    while os.path.lexists(path):
        number += 1
        path = directory / f"{stem}-{number}.tar.gz"
    return path


def collect(source: Source) -> Bundle:
    """Collect all parts; secrets are masked in each."""
    masker = Masker()
    _learn_secrets(source, masker)
    settings: BrokerSettings | None = None
    with suppress(ConfigError):  # the doctor's part has the reasons
        settings, _ = read(source.properties, source.overrides, source.environment)
    bundle = Bundle(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    places = _places(source, settings)
    with suppress(OSError):  # no broker runs, or this user does not see it
        for name, value in host_facts.variables(host_facts.broker_process(places)).items():
            masker.learn(name, value)
    for name, about, make in _parts(source, settings, places):
        try:
            made = make()
            if isinstance(made, str):
                text = masker.text(made)
            else:
                text = json.dumps(masker.json(made), indent=1, ensure_ascii=False)
            data = (text.rstrip("\n") + "\n").encode(errors="replace")
        except Exception as error:  # noqa: BLE001 - a bug in one part must not hide the others
            reason = masker.text(str(error) or repr(error))
            bundle.parts.append(Part(name, about, error=printable(reason.replace("\n", "; "))))
            continue
        bundle.contents[name] = data
        bundle.parts.append(Part(name, about, len(data)))
    bundle.contents = {"README.txt": _table_of_contents(bundle).encode(), **bundle.contents}
    return bundle


def _learn_secrets(source: Source, masker: Masker) -> None:
    for name, value in {**os.environ, **(source.environment or {})}.items():
        masker.learn(name, value)
    for override in source.overrides:
        masker.learn(*override.partition("=")[::2])
    if source.properties is not None:
        try:
            entries = load_properties(source.properties)
        except ConfigError:
            return  # without the file's entries, the bundle has nothing of the file
        for entry in entries:
            masker.learn(entry.key, entry.value)


def _table_of_contents(bundle: Bundle) -> str:
    lines = [
        f"A bundle, collected by plog {__version__} at {bundle.created}."
        " Secrets are masked as [hidden].",
        "",
    ]
    for part in bundle.parts:
        lines.append(f"{part.name:22} {part.about}")
        if part.error:
            lines.append(f"{'':22} NOT COLLECTED: {part.error}")
    return "\n".join([*lines, ""])


# -- the parts ---------------------------------------------------------------------------------

Parts = list[tuple[str, str, Callable[[], Any]]]


def _places(source: Source, settings: BrokerSettings | None) -> list[Path]:
    """Return the log directories, as this host sees them."""
    places = [Path(text).absolute() for text in settings.log_dirs] if settings else []
    unit = _unit(source)
    return places if unit is None else [unit.on_host(path) for path in places]


def _unit(source: Source) -> Unit | None:
    return None if source.properties is None else unit_of(source.properties)


def _parts(source: Source, settings: BrokerSettings | None, places: Sequence[Path]) -> Parts:
    address = source.bootstrap or _address(settings)

    unreachable: list[PlogError] = []

    def asked(ask: Callable[[], T]) -> T:
        if source.bootstrap is None:
            _check_running(settings, places)
        if unreachable:  # a broker that hangs is waited for once
            raise unreachable[0]
        try:
            return ask()
        except (NetworkException, RequestTimedOut) as error:
            unreachable.append(error)
            raise

    def of_cluster(describe: Callable[[Cluster], Any]) -> Any:
        with asked(partial(cluster_facts.reach, address)) as reached:
            return describe(reached)

    def of_process() -> Any:
        _check_running(settings, places)
        return host_facts.process(host_facts.broker_process(places))

    def page() -> str:
        return _page(address, settings if source.bootstrap is None else None)

    def of_host(make: Callable[[], Any]) -> Callable[[], Any]:
        return _elsewhere if source.is_elsewhere else make

    return [
        ("doctor.txt", "findings of plog doctor", partial(_doctor, source)),
        ("settings-file.txt", "keys in the file, as they are read",
         of_host(partial(_file, source))),
        ("settings.json", "settings as they were given, and all that result",
         of_host(partial(_settings, source, settings))),
        ("versions.json", "plog, Python, kernel, libraries", of_host(host_facts.versions)),
        ("host.json", "processors, memory, limits, mounts, kernel settings",
         of_host(host_facts.host)),
        ("variables.json", "variables of this command",
         of_host(lambda: host_facts.shown_variables(os.environ))),
        ("disks.json", "space, files and partitions in the log directories",
         of_host(lambda: host_facts.disks(places))),
        ("process.json", "the broker's process and its threads", of_host(of_process)),
        ("metrics.txt", "metrics page", lambda: asked(page)),
        ("cluster.json", "brokers and features", lambda: of_cluster(cluster_facts.cluster)),
        ("broker-settings.json", "settings that the broker uses now",
         lambda: of_cluster(cluster_facts.broker_settings)),
        ("topics.json", "topics and partitions", lambda: of_cluster(cluster_facts.topics)),
        ("groups.json", "consumer groups", lambda: of_cluster(cluster_facts.groups)),
        ("transactions.json", "transactional ids", lambda: of_cluster(cluster_facts.transactions)),
        ("log.txt", f"last {source.log_lines:,} log lines",
         of_host(partial(_log, source)) if source.log is None else partial(_log, source)),
    ]  # fmt: skip


def _address(settings: BrokerSettings | None) -> str:
    if settings is None:
        return ""
    one = settings.parsed_listeners()[0]
    return address_of(EVERYWHERE.get(one.host, one.host), one.port)


def _check_running(settings: BrokerSettings | None, places: Sequence[Path]) -> None:
    if settings is None:
        raise NotCollected("the settings are wrong: doctor.txt has the reasons")
    if not any(map(is_locked, places)):
        raise NotCollected("no broker with these settings runs here")


def _elsewhere() -> Any:
    raise NotCollected("they are on the broker's host: run plog bundle PROPERTIES there")


def _doctor(source: Source) -> str:
    found: list[Finding] = []
    if not source.is_elsewhere:
        found += examine(source.properties, source.overrides, source.environment)
    if source.bootstrap is not None:
        found += examine_client(source.bootstrap)
    return "\n".join(
        f"{one.verdict.value:8} {one.what:15} {one.text}" + (f" -- {one.advice}" * bool(one.advice))
        for one in found
    )


def _file(source: Source) -> str:
    if source.properties is None:
        raise NotCollected("no file of settings was named")
    masker = Masker()
    entries = load_properties(source.properties)
    lines = [f"{one.line}: {one.key}={masker.value(one.key, one.value)}" for one in entries]
    return "\n".join([f"# {source.properties}, without its comments", *lines])


def _settings(source: Source, settings: BrokerSettings | None) -> dict[str, Any]:
    if settings is None:
        raise NotCollected("the settings are wrong: doctor.txt has the reasons")
    return {
        "overrides": dict(one.partition("=")[::2] for one in source.overrides),
        "given": dict(settings.given),
        "effective": {
            name: key.format(settings.value(name)) for name, key in settings.KEYS.items()
        },
    }


def _page(address: str, settings: BrokerSettings | None) -> str:
    """Return the metrics page of the broker at an address.

    Args:
        settings: those of this host's broker; None if the broker may be on another host.
    """
    wait_ms = int(WAIT_S * 1000)
    if settings is None:
        page = _first_page(address, wait_ms)
    elif settings.metrics_listener is not None:
        page = page_from(address_of(*settings.metrics_listener), THIS_HOST)
    else:  # the broker's command line may set it
        page = page_from(metrics_listener(*parse_bootstrap(address)[0], wait_ms), THIS_HOST)
    if not page.address:
        raise NotCollected(page.reason)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{page.address}{METRICS}", timeout=WAIT_S) as response:
        data: bytes = response.read(MAX_PAGE_BYTES)
    return data.decode(errors="replace")


def _first_page(bootstrap: str, wait_ms: int) -> PageAddress:
    """Return the page of the first broker that answers."""
    *others, last = parse_bootstrap(bootstrap)
    for host, port in others:
        with suppress(KafkaError):
            return find_page(host, port, wait_ms)
    return find_page(*last, wait_ms)


def _log(source: Source) -> str:
    if source.log is not None:
        with open(source.log, "rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - MAX_LOG_BYTES, 0))
            lines = file.read(MAX_LOG_BYTES).decode(errors="replace").splitlines()
        return "\n".join(lines[-source.log_lines :])
    if (unit := _unit(source)) is None:
        raise NotCollected("no systemd unit uses these settings: name the log with --log FILE")
    command = ["journalctl", "--unit", unit.name, "--lines", str(source.log_lines)]
    done = subprocess.run(
        [*command, "--no-pager", "--output", "short-iso-precise"],
        capture_output=True,
        timeout=JOURNAL_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        raise NotCollected(f"journalctl ended with status {done.returncode}: {reason}")
    return done.stdout[-MAX_LOG_BYTES:].decode(errors="replace")
