"""Runs the checks of a host and of the broker on it: the whole examination of `plog doctor`.

Each check is independent, so that one run reports every problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from plog.errors import ConfigError
from plog.ops.doctor.findings import Finding, Verdict
from plog.ops.doctor.host import (
    examine_buffers,
    examine_clock,
    examine_host,
    examine_listeners,
    examine_memory,
)
from plog.ops.doctor.log_dirs import (
    examine_known_log_dirs,
    examine_log_dirs,
    examine_own_places,
    examine_unit,
)
from plog.ops.doctor.running_broker import ask_running, examine_address, examine_running
from plog.ops.doctor.units import unit_of
from plog.ops.doctor.zookeeper import examine_zookeeper
from plog.settings.server_properties import read


def examine(
    properties: str | None,
    overrides: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Run all checks for a broker with these settings."""
    try:
        settings, warnings = read(properties, overrides, environment)
    except ConfigError as error:
        found = [Finding("settings", Verdict.FAILURE, line) for line in str(error).splitlines()]
        found += [Finding("settings", Verdict.WARNING, line) for line in error.warnings]
        text = "log directories and listeners are not checked yet"
        advice = "correct the failures above and run this again"
        return [*found, Finding("settings", Verdict.WARNING, text, advice), *examine_host()]
    found = [Finding("settings", Verdict.WARNING, text) for text in warnings]
    if not warnings:
        place = properties or "default settings"
        found.append(Finding("settings", Verdict.OK, f"{place}: all keys are supported"))
    unit = None if properties is None else unit_of(properties)
    places = [Path(text).absolute() for text in settings.log_dirs]
    if unit is not None:
        places = [unit.on_host(path) for path in places]
    running = ask_running(settings, places)
    looked_at = list(examine_log_dirs(settings, places, running))
    found += looked_at
    coordination = list(examine_zookeeper(settings, places, running))
    if all(one.verdict is not Verdict.FAILURE for one in (*looked_at, *coordination)):
        found += examine_known_log_dirs(settings, places, properties)
    found += examine_listeners(settings, is_running=running is not None)
    found += coordination
    for check in (examine_buffers, examine_memory):
        found += check(settings)
    if unit is not None:
        found += examine_own_places(settings, unit)
    found += examine_unit(settings, properties, unit)
    return [*found, *examine_host(), *examine_running(settings, running, places)]


def examine_client(bootstrap: str) -> list[Finding]:
    """Check a broker from this host, on which its clients run."""
    return [*examine_address(bootstrap), *examine_clock()]
