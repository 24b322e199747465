"""Declaring handlers: one for each API, of versions that there are."""

from __future__ import annotations

import pytest

from plog.handlers import registry
from plog.handlers.registry import FAMILIES, handles, load
from plog.protocol.messages.metadata import MetadataRequest
from plog.protocol.messages.replication import StopReplicaRequest


@pytest.fixture(autouse=True)
def own_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    others = {key: one for key, one in registry.HANDLERS.items() if key != 5}
    monkeypatch.setattr(registry, "HANDLERS", others)  # 5: StopReplica


def test_declared_handler_is_known_with_its_versions() -> None:
    @handles(StopReplicaRequest, versions="1-3")
    def stop_replica(ctx: object, request: object) -> None: ...

    assert registry.HANDLERS[5][:5] == (StopReplicaRequest, 1, 3, 1, stop_replica)


def test_lowest_version_may_be_advertised_otherwise() -> None:
    @handles(StopReplicaRequest, versions="1-3", advertised_min=0)
    def stop_replica(ctx: object, request: object) -> None: ...

    assert registry.HANDLERS[5].advertised_min == 0


def test_second_handler_is_refused() -> None:
    with pytest.raises(TypeError, match="two handlers"):
        handles(MetadataRequest, versions="0-12")(lambda ctx, request: None)


@pytest.mark.parametrize("versions", ["0-99", "7-5", "3-1"])
def test_versions_that_are_not_declared_are_refused(versions: str) -> None:
    with pytest.raises(TypeError, match="declares no versions"):
        handles(StopReplicaRequest, versions=versions)(lambda ctx, request: None)


def test_every_family_declares_something() -> None:
    modules = {
        (handler.function or handler.decide).__module__.rpartition(".")[2]
        for handler in load().values()
    }
    assert modules == set(FAMILIES)
