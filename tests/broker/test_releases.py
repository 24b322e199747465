"""Another release of plog on the same data: it is served, and the way back is open."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.broker.releases import (
    BUILD_TIMEOUT_S,
    HELD,
    OLDER,
    begin,
    built,
    older_broker,
    verify,
    write,
)
from tests.compat.clients import CODECS
from tests.planes import Plane
from tests.servers import BrokerProcess

WRITTEN = 10 * len(CODECS)


@pytest.mark.parametrize("ended", ["stopped", "killed"])
def test_what_an_older_release_left_is_served_and_goes_on(
    plane: Plane, tmp_path: Path, ended: str
) -> None:
    with tarfile.open(HELD / f"{OLDER}-{ended}.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    broker = BrokerProcess(tmp_path)
    with broker:
        verify(broker.bootstrap, WRITTEN)
        end = write(broker.bootstrap, WRITTEN)
    assert " ERROR " not in broker.log
    with broker:
        verify(broker.bootstrap, end)


@pytest.mark.long
@pytest.mark.timeout(BUILD_TIMEOUT_S)
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_upgrade_and_way_back_keep_every_record(plane: Plane, tmp_path: Path, kill: bool) -> None:
    newer = BrokerProcess(tmp_path)
    older = older_broker(tmp_path, built(OLDER))
    end = 0
    for broker in (older, newer, older, newer):
        try:
            broker.start()
            if end:
                verify(broker.bootstrap, end)
                end = write(broker.bootstrap, end)
            else:
                end = begin(broker.bootstrap)
            if not kill:
                broker.stop()
        finally:
            broker.kill()
    with newer:
        verify(newer.bootstrap, end)
