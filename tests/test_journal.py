"""What systemd's journal keeps of a broker's log lines: a real journald, in a namespace of its own.

The namespace has an empty /run, so journald and its sockets concern no other process. This needs
root. `systemd-cat` connects stderr as systemd does, and the shell names it in JOURNAL_STREAM.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

JOURNALD = Path("/lib/systemd/systemd-journald")
SCRIPT = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/log/journal /run/systemd/journald.conf.d
printf '[Journal]\\nReadKMsg=no\\nAudit=no\\n' > /run/systemd/journald.conf.d/quiet.conf
"$JOURNALD" 2>/dev/null &
until [ -S /run/systemd/journal/stdout ]; do sleep 0.01; done
systemd-cat -t events sh -c 'export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2)
  "$PYTHON" -c "$EVENTS" text; "$PYTHON" -c "$EVENTS" json
  "$PYTHON" -m plog server --override log.level=LOUD; test $? = 1'
journalctl --sync
journalctl -D /run/log/journal -t events -o json > "$1/all"
journalctl -D /run/log/journal -t events -o json -p warning > "$1/warnings"
kill $!
"""
EVENTS = """
import logging, sys, threading, warnings
from plog.ops.stderr_log import start_log
start_log(sys.argv[1])
log = logging.getLogger("plog.some.module")
log.setLevel(logging.DEBUG)
for level in (10, 20, 30, 40, 50):
    log.log(level, "event")
try:
    raise OSError("first\\nsecond")
except OSError:
    log.exception("failed")
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
warnings.warn("old")
class Broken:
    def __del__(self):
        raise KeyError("lost")
Broken()
raise ValueError("uncaught")
"""
FAILURE = (
    "CRITICAL plog: --override: `log.level`: 'LOUD' is not a log level: "
    "use one of FATAL, ERROR, WARN, INFO, DEBUG, TRACE"
)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the entries that a journal has: `all`, and `warnings` and above."""
    tools = all(map(shutil.which, ("unshare", "systemd-cat", "journalctl")))
    if os.geteuid() != 0 or not tools or not JOURNALD.exists():
        pytest.skip("there is no journald, or no right to start it")
    if not Path("/etc/machine-id").exists():
        pytest.skip("the host has no machine id")
    kept = tmp_path_factory.mktemp("journal")
    environment = {
        **os.environ,
        "JOURNALD": str(JOURNALD),
        "PYTHON": sys.executable,
        "EVENTS": EVENTS,
        "PYTHONPATH": str(ROOT),
    }
    command = ["unshare", "--mount", "bash", "-c", SCRIPT, "bash", str(kept)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if "mount: /run" in done.stderr:
        pytest.skip("mounts are forbidden here")
    assert done.returncode == 0, done.stdout + done.stderr
    return kept


def entries(path: Path) -> list[tuple[int, str]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [(int(one["PRIORITY"]), one["MESSAGE"]) for one in found]


def test_each_line_has_the_priority_of_its_event(journal: Path) -> None:
    found = [one for one in entries(journal / "all") if not one[1].startswith("{")]
    assert found[:6] == [
        (7, "DEBUG plog.some.module: event"),
        (6, "INFO plog.some.module: event"),
        (4, "WARNING plog.some.module: event"),
        (3, "ERROR plog.some.module: event"),
        (2, "CRITICAL plog.some.module: event"),
        (3, "ERROR plog.some.module: failed"),
    ]
    end = found.index((3, r"OSError: first\nsecond"))
    assert found[6] == (3, "Traceback (most recent call last):")
    assert {priority for priority, _ in found[6 : end + 1]} == {3}
    rest = found[end + 1 :]
    assert rest[0] == (3, "ERROR plog: thread 'worker' ended by an internal error")
    assert (3, "ZeroDivisionError: division by zero") in rest
    (warned,) = [number for number, text in rest if "UserWarning: old" in text]
    assert warned == 4
    assert (3, "KeyError: 'lost'") in rest
    assert (2, "CRITICAL plog: ended by an internal error") in rest
    assert (2, "ValueError: uncaught") in rest
    assert found[-1] == (2, FAILURE)


def test_json_lines_have_it_too(journal: Path) -> None:
    found = [(n, json.loads(text)) for n, text in entries(journal / "all") if text[0] == "{"]
    uncaught = [event for _, event in found if event["logger"] == "plog"]
    assert [event["level"] for event in uncaught] == ["ERROR", "ERROR", "CRITICAL"]
    assert uncaught[-1]["exception"].endswith("\nValueError: uncaught")
    usual = [one for one in found if one[1]["logger"] == "plog.some.module"]
    assert [(n, event["level"], event["message"]) for n, event in usual] == [
        (7, "DEBUG", "event"),
        (6, "INFO", "event"),
        (4, "WARNING", "event"),
        (3, "ERROR", "event"),
        (2, "CRITICAL", "event"),
        (3, "ERROR", "failed"),
    ]
    assert usual[-1][1]["exception"].endswith("\nOSError: first\\nsecond")


def test_journalctl_selects_by_priority(journal: Path) -> None:
    everything = entries(journal / "all")
    warnings = entries(journal / "warnings")
    assert warnings == [one for one in everything if one[0] <= 4]
    assert 0 < len(warnings) < len(everything)


@pytest.mark.parametrize("unit", sorted((ROOT / "systemd").glob("*.service")), ids=lambda p: p.name)
def test_units_let_journald_read_the_priorities(unit: Path) -> None:
    """The default of SyslogLevelPrefix= is yes."""
    text = unit.read_text()
    assert "SyslogLevelPrefix" not in text
    assert "StandardError" not in text
