"""A history is the same when it is played again: a failure can be looked at."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cluster.simulation.test_histories import Kind

PLAY = """
import hashlib, logging, sys
from tests.cluster.simulation.test_histories import Kind, play
logging.disable(logging.CRITICAL)
for seed in range(3):
    print(hashlib.sha256("\\n".join(play(seed, Kind[sys.argv[1]])).encode()).hexdigest())
"""


def played(kind: Kind, hash_seed: str) -> str:
    """Return what happened in some histories, played by a process of their own."""
    return subprocess.run(
        [sys.executable, "-c", PLAY, kind.name],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


@pytest.mark.parametrize("kind", list(Kind))
def test_history_is_the_same_again(kind: Kind) -> None:
    assert played(kind, "1") == played(kind, "2")
