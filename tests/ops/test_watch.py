"""What two readings come to, and what `plog top` says where there is no page to read."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from plog.cli import top
from plog.ops import watch
from plog.ops.pages.server import Page, PageServer
from plog.ops.watch import Reading, Watch
from tests.servers import free_port

TIMEOUT_S = 60
BUILD = 'plog_build_info{version="1"} 1\n'


@contextlib.contextmanager
def page(text: str) -> Iterator[str]:
    """Serve a text as the page; yield its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    server = PageServer(listening, {"/metrics": lambda _: Page(text.encode())})
    server.start()
    yield address
    server.stop()


@contextlib.contextmanager
def speaker(says: bytes) -> Iterator[str]:
    """Say something to whoever comes and close; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def speak() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connected, _ = listening.accept()
                    with connected:
                        connected.sendall(says)
                        connected.recv(1 << 16)

        thread = threading.Thread(target=speak)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def complaint(address: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `plog top` ends with: one line."""
    with pytest.raises(SystemExit) as ended:
        top.command.main(["--metrics", address, "--every", "0.1", "--count", "1"])
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "`metrics.listener` in the broker's properties" in line
    assert f"at {address}: " in line
    return line


def test_nobody_there_is_said_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert ": Connection refused (set " in complaint(f"127.0.0.1:{free_port()}", capsys)


@pytest.mark.parametrize("address", ["localhost:abc", "localhost:99999", "[::1", "a b:1", ""])
def test_address_that_is_none_is_said_in_a_line(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    complaint(address, capsys)


@pytest.mark.parametrize(
    "says",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe",
        b"HTTP/1.1 200 OK\r\n\r\n<html>",
        b"HTTP/1.1 404 Not Found\r\n\r\n",
    ],
)
def test_other_speakers_are_said_in_a_line(says: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with speaker(says) as address:
        complaint(address, capsys)


def test_page_of_another_program_is_no_page_of_zeros(capsys: pytest.CaptureFixture[str]) -> None:
    with page("go_goroutines 7\n") as address:
        assert "another program's" in complaint(address, capsys)


def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr("urllib.request._opener", None)  # which knows the proxies of before
    with page(BUILD + "plog_connections 3\n") as address:
        assert watch.read(address, 0).value("plog_connections") == 3


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_each_reading_is_printed_at_once_into_a_pipe(arguments: list[str]) -> None:
    with page(BUILD + "plog_connections 3\n") as address:
        running = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "plog",
                "top",
                "--metrics",
                address,
                "--every",
                "0.1",
                *arguments,
            ],
            stdout=subprocess.PIPE,
        )
        assert running.stdout is not None
        read = b""
        until = time.monotonic() + TIMEOUT_S
        while read.count(b"connections") < 3:
            readable, _, _ = select.select([running.stdout], [], [], until - time.monotonic())
            assert readable, read
            read += os.read(running.stdout.fileno(), 1 << 16)
        running.send_signal(signal.SIGINT)
        running.stdout.close()
        running.wait(TIMEOUT_S)
    assert b"\x1b" not in read
    assert b"3 connections" in read or b'"connections": 3' in read


def test_percentiles_lie_in_their_buckets() -> None:
    def page(counts: dict[str, int]) -> Reading:
        lines = [f'h_bucket{{le="{le}"}} {count}' for le, count in counts.items()]
        return watch.parse("# TYPE h histogram\n" + "\n".join(lines) + "\n", 0.0)

    nothing = page({"1.0": 5, "2.0": 5, "+Inf": 5})
    some = page({"1.0": 5, "2.0": 105, "+Inf": 105})
    assert Watch(nothing, nothing).percentiles("h") == (None, None, None)
    assert Watch(nothing, some).percentiles("h") == (1.5, 1.99, pytest.approx(1.999))
    late = page({"1.0": 5, "2.0": 5, "+Inf": 15})
    assert Watch(nothing, late).percentiles("h") == (2.0, 2.0, 2.0)


LAGS = """\
plog_group_lag_records{group="slow",topic="a"} 1200000
plog_group_lag_records{group="slow",topic="b"} 34
plog_group_lag_seconds{group="slow",topic="a"} 192.4
plog_group_lag_seconds{group="slow",topic="b"} 7200
plog_group_lag_records{group="fast",topic="a"} 0
plog_group_lag_seconds{group="fast",topic="a"} 0
plog_group_lag_records{group="new",topic="a"} 7
"""


def shown(text: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return what one reading of `plog top` prints."""
    with page(BUILD + text) as address:
        top.command.main(
            ["--metrics", address, "--every", "0.1", "--count", "1", *options],
            standalone_mode=False,
        )
    return capsys.readouterr().out


def test_groups_with_the_largest_lag_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(LAGS, capsys).splitlines()
    table = [line.split() for line in lines[-5:] if line]
    assert table == [
        ["GROUP", "LAG", "BEHIND"],
        ["slow", "1,200,034", "2h"],
        ["new", "7", "0"],
        ["fast", "0", "0"],
    ]
    figures = json.loads(shown(LAGS, capsys, "--json"))
    assert figures["groups"][0] == {
        "group": "slow",
        "lag_records": 1_200_034,
        "lag_seconds": 7200.0,
    }


def test_page_without_lags_has_no_table_of_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert "BEHIND" not in shown("", capsys)
    assert json.loads(shown("", capsys, "--json"))["groups"] == []


def test_groups_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    many = "".join(
        f'plog_group_lag_records{{group="g{number}",topic="t"}} {number}\n' for number in range(40)
    )
    figures = json.loads(shown(many, capsys, "--json"))
    assert [one["group"] for one in figures["groups"]] == [f"g{n}" for n in range(39, 29, -1)]


REPLICAS = """\
plog_led_partitions 12
plog_under_replicated_partitions 2
plog_under_min_isr_partitions 0
plog_follower_lag_records{broker="1"} 0
plog_follower_lag_seconds{broker="1"} 0
plog_follower_lag_records{broker="10"} 1200
plog_follower_lag_seconds{broker="10"} 61.5
"""


def test_replicas_and_the_slowest_follower_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(REPLICAS, capsys).splitlines()[1] == (
        "leads 12 partitions   2 UNDER-REPLICATED   0 below min.insync.replicas"
        "   slowest follower: broker 10, 1200 records and 1m 1s behind"
    )
    assert json.loads(shown(REPLICAS, capsys, "--json"))["replicas"] == {
        "led_partitions": 12,
        "under_replicated": 2,
        "under_min_isr": 0,
        "slowest_follower": {"broker": 10, "lag_records": 1200, "lag_seconds": 61.5},
    }


def test_broker_without_followers_names_none(capsys: pytest.CaptureFixture[str]) -> None:
    text = "plog_led_partitions 1\n"
    assert shown(text, capsys).splitlines()[1] == (
        "leads 1 partition   0 under-replicated   0 below min.insync.replicas"
    )


def test_broker_that_runs_alone_has_no_line_of_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    assert "leads" not in shown("", capsys)
    assert json.loads(shown("", capsys, "--json"))["replicas"] is None
