"""What systemd says of units that lie in a tree of files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

INSTALLED = Path("usr/lib/systemd/system")
"""Where packages put their units."""
EXPOSURE = 2.0
"""Of ten, by systemd's own count; what is left is that it has a network and writes files."""


def say(*command: object) -> str:
    """Return all that a command writes; it must end well."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return (done.stdout + done.stderr).strip()


def add_units_of_every_host(root: Path) -> None:
    """Put the targets and slices of this machine into a tree."""
    into = root / INSTALLED
    into.mkdir(parents=True, exist_ok=True)
    for unit in (
        *(Path("/") / INSTALLED).glob("*.target"),
        *(Path("/") / INSTALLED).glob("*.slice"),
    ):
        (into / unit.name).write_bytes(unit.read_bytes())


def complaints(root: Path, unit: str) -> str:
    """Return what systemd finds wrong with a unit of a tree, and with what it starts there."""
    command = ["systemd-analyze", "verify", "--man=no", f"--root={root}", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = (done.stdout + done.stderr).strip()
    assert told or done.returncode == 0
    return told


def exposure(unit: Path) -> float:
    """Return how exposed systemd takes a unit's processes to be, from 0 to 10."""
    told = say("systemd-analyze", "security", "--offline=true", "--no-pager", unit)
    (level,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", told)
    return float(level)
