"""Old releases of clients: those that know no Fetch newer than v9 read zstd batches all the same.

They cannot be installed beside their successors, so each lives in a directory of its own in
.venv, made by pip when it is first wanted, and runs in an interpreter that looks there first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.compat.clients import Confluent, Sent
from tests.compat.made import made_once, not_made
from tests.conftest import ROOT
from tests.servers import BrokerProcess

OLD_CLIENTS = ROOT / ".venv" / "old-clients" / str(sys.implementation.cache_tag)
READ_VALUES = Path(__file__).with_name("read_values.py")
INSTALL_TIMEOUT_S = 200


class OldClient(NamedTuple):
    """A release, and what it needs to read zstd."""

    package: str
    distribution: str
    version: str
    decompressor: str

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


OLD = [
    # 2.0.2 does not load on Python 3.12; 2.0.6 is the same client with that mended.
    OldClient(
        "kafka", "kafka-python", "2.0.2" if sys.version_info < (3, 12) else "2.0.6", "zstandard"
    ),
    OldClient("aiokafka", "aiokafka", "0.12.0", "cramjam"),
]


def installed(client: OldClient) -> Path:
    """Return the directory that holds the client; install it there the first time."""

    def install(made: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-compile"]
        done = subprocess.run(
            [*pip, "--target", str(made), client.requirement, client.decompressor],
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
        )
        if done.returncode:
            not_made(client.requirement, done.stderr)

    return made_once(OLD_CLIENTS / client.requirement, install, "pip")


@pytest.mark.parametrize("client", OLD, ids=lambda client: client.requirement)
def test_old_clients_read_zstd(
    client: OldClient, broker: BrokerProcess, new_topic: Callable[..., str]
) -> None:
    directory = installed(client)
    topic = new_topic()
    sent = [Sent(None, b"%d" % n * 20) for n in range(100)]
    Confluent().produce(broker.bootstrap, topic, sent, codec="zstd")
    done = subprocess.run(
        [sys.executable, str(READ_VALUES), client.package, broker.bootstrap, topic, "100"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(directory)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == client.version
    assert [bytes.fromhex(value) for value in found["values"]] == [one.value for one in sent]
