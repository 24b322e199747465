"""Other releases of plog on the same data: it is served, and the way back is open."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.broker.releases import (
    BUILD_TIMEOUT_S,
    COORDINATING,
    HELD,
    RELEASES,
    Release,
    begin,
    coordinate,
    older_broker,
    use_what_is_newer,
    verify,
    verify_coordinated,
    verify_what_is_newer,
    write,
)
from tests.compat.clients import CODECS
from tests.planes import Plane
from tests.servers import BrokerProcess

WRITTEN = 10 * len(CODECS)


@pytest.mark.parametrize("ended", ["stopped", "killed"])
@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.commit)
def test_what_an_older_release_left_is_served_and_goes_on(
    plane: Plane, tmp_path: Path, release: Release, ended: str
) -> None:
    with tarfile.open(HELD / f"{release.commit}-{ended}.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    broker = BrokerProcess(tmp_path, overrides=release.settings)
    ends = [WRITTEN] if release.coordinates else []
    with broker:
        verify(broker.bootstrap, WRITTEN)
        if ends:
            verify_coordinated(broker.bootstrap, ends)
        ends.append(write(broker.bootstrap, WRITTEN))
        coordinate(broker.bootstrap, ends[-1])
    assert " ERROR " not in broker.log
    with broker:
        verify(broker.bootstrap, ends[-1])
        verify_coordinated(broker.bootstrap, ends)


@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_upgrade_and_way_back_keep_every_record(tmp_path: Path) -> None:
    upgrade_and_go_back(tmp_path, COORDINATING, kill=False)


@pytest.mark.long
@pytest.mark.timeout(BUILD_TIMEOUT_S)
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.commit)
def test_upgrade_and_way_back_keep_every_record_of_each_release(
    plane: Plane, tmp_path: Path, release: Release, kill: bool
) -> None:
    upgrade_and_go_back(tmp_path, release, kill=kill)


def upgrade_and_go_back(tmp_path: Path, release: Release, *, kill: bool) -> None:
    often = {"log.cleaner.backoff.ms": 100}
    newer = BrokerProcess(tmp_path, overrides={**release.settings, **often})
    older = older_broker(tmp_path, release)
    older.overrides |= often
    ends: list[int] = []
    end_of_newer = 0
    for broker in (older, newer, older, newer):
        try:
            broker.start()
            if ends:
                verify(broker.bootstrap, ends[-1])
                if release.coordinates:
                    verify_coordinated(broker.bootstrap, ends)
                if end_of_newer:
                    knows = release.coordinates or broker is newer
                    verify_what_is_newer(broker.bootstrap, end_of_newer, coordinates=knows)
                ends.append(write(broker.bootstrap, ends[-1]))
                if release.coordinates or broker is newer:
                    end_of_newer = ends[-1]
                    use_what_is_newer(broker, end_of_newer)
            else:
                ends.append(begin(broker.bootstrap))
            if release.coordinates:
                coordinate(broker.bootstrap, ends[-1])
            if not kill:
                broker.stop()
        finally:
            broker.kill()
    with newer:
        verify(newer.bootstrap, ends[-1])
        verify_what_is_newer(newer.bootstrap, end_of_newer, coordinates=True)
        if release.coordinates:
            verify_coordinated(newer.bootstrap, ends)
