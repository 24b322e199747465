"""The way of a request through the kernels: its modules, its comebacks, and its drawing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from tests import stepping
from tests.module_trace import ARCHITECTURE, HELPERS, TracedClient, Way, drawn, traced_client

MAX_MODULES = {"produce": 12, "fetch": 9}
MAX_COMEBACKS = {"produce": 3, "fetch": 1}
"""To one module. Both may only fall."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TracedClient]:
    with traced_client(tmp_path_factory.mktemp("traced")) as connected:
        yield connected


@pytest.fixture(scope="module")
def ways(client: TracedClient) -> dict[str, Way]:
    return {"produce": client.produce(), "fetch": client.fetch()}


@pytest.mark.parametrize("name", MAX_MODULES)
def test_way_passes_few_modules(ways: dict[str, Way], name: str) -> None:
    assert len(ways[name].modules) <= MAX_MODULES[name], ways[name].drawing()


@pytest.mark.parametrize("name", MAX_COMEBACKS)
def test_way_comes_back_to_a_module_few_times(ways: dict[str, Way], name: str) -> None:
    assert max(ways[name].comebacks().values()) <= MAX_COMEBACKS[name], ways[name].comebacks()


@pytest.mark.parametrize("name", MAX_MODULES)
def test_drawing_in_the_page_is_the_trace(ways: dict[str, Way], name: str) -> None:
    rows = drawn(ARCHITECTURE.read_text(encoding="utf-8"), name)
    assert list(rows) == ways[name].drawing(), "python -m tests.module_trace --rewrite"
    assert all(rows.values()), "a module has no comment"


def test_way_begins_at_the_socket_and_ends_with_the_response(ways: dict[str, Way]) -> None:
    """The trace holds what each request cannot do without, in its order."""
    produce, fetch = ways["produce"].modules, ways["fetch"].modules
    for way, acts in (
        (produce, ["connection", "produce_path", "log_append", "segment_append", "log_flush"]),
        (fetch, ["connection", "fetch_path", "log_read", "fetch_answer"]),
    ):
        assert sorted(acts, key=way.index) == acts
    for way in ways.values():
        assert way.passes("connection")[0]
        assert way.passes("connection")[-1]


def test_every_helper_is_on_the_way_of_a_request(ways: dict[str, Way]) -> None:
    passed = {call.stack[-1] for way in ways.values() for call in way.calls}
    assert set(HELPERS) <= passed


def test_machine_that_refuses_to_trace_fails_the_test(
    client: TracedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(stepping, "_ptrace", refuse)
        with pytest.raises(stepping.TraceRefused, match="SYS_PTRACE"):
            client.fetch()
    assert client.fetch().modules  # the broker goes on
