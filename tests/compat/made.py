"""What tests have made when it is first wanted, and keep in .venv: programs, and old releases."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
"""Of all processes of a run of tests."""
STATUS = r"(?:401|403|407|429|5\d\d)"
"""What answers nobody, or nobody for now."""
NOT_OURS = re.compile(
    r"[Cc]onnection (?:refused|reset|timed out|closed)|Connect timed out|Read timed out|i/o timeout"
    r"|TLS handshake timeout|[Uu]nreachable|No route to host|no such host|[Uu]nknown ?[Hh]ost"
    r"|Name or service not known|name resolution|x509:|certificate"
    r"|\bE(?:CONNREFUSED|CONNRESET|NOTFOUND|TIMEDOUT|AI_AGAIN|NETUNREACH|HOSTUNREACH)\b"
    r"|Could not transfer|failed to transfer"
    rf"|code E{STATUS}\b|: {STATUS} [A-Z]|HTTP error {STATUS}|too many {STATUS} error"
    # Or what this machine has is too old.
    r"|requires go >=|requires Maven version|UnsupportedClassVersionError"
)
"""What go, npm, Maven and pip say when a registry is out of reach, or answers nobody.

That it does not know a name (404) is no such thing: the name is ours."""


def not_made(what: str, said: str) -> NoReturn:
    """Skip for a registry that cannot be reached, with the line that says so; else fail."""
    for line in said.splitlines():
        if NOT_OURS.search(line):
            pytest.skip(f"{what} is not to be had: {line.strip()[:1000]}")
    raise AssertionError(f"{what}: {said}")


def made_once(directory: Path, make: Callable[[Path], None], registry: str = "") -> Path:
    """Return a directory; it is filled by `make` the first time, and has its name once it is whole.

    Of several that want it at once one makes it. Those of one parent directory and one registry,
    named by the tool that asks it, are made one after another: what makes them may share a cache
    that bears no more.

    Where the tool takes too long (TimeoutExpired), its registry hangs: a reason to skip, for this
    and whatever else a run wants of it. Who has waited for the lock until then has no time left to
    find that out again.
    """
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f"lock{registry and '-'}{registry}").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.is_dir():
            return directory
        lock.seek(0)
        run, _, hung = lock.read().partition("\n")
        if run == RUN:
            pytest.skip(f"{directory.name} is not to be had: {hung}")
        made = Path(tempfile.mkdtemp(dir=directory.parent))
        try:
            make(made)
            made.rename(directory)
        except subprocess.TimeoutExpired as error:
            if not registry:
                raise
            lock.truncate(0)
            lock.write(f"{RUN}\n{error}")
            pytest.skip(f"{directory.name} is not to be had: {error}")
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return directory
