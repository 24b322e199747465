"""A real Prometheus for the tests: it reads brokers' pages and evaluates rules each half second."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.compat.made import made_once, not_made
from tests.conftest import ROOT
from tests.servers import free_port
from tests.waiting import until

INTERVAL = "500ms"
BRING_TIMEOUT_S = 240
TIMEOUT_S = 60
PACKAGE = "prometheus"


def binaries() -> Path:
    """Return the directory of `prometheus` and `promtool`, from Debian's package.

    The package is unpacked and not installed, because its installation starts a server.
    """

    def bring(made: Path) -> None:
        done = subprocess.run(
            ["apt-get", "download", PACKAGE],
            cwd=made,
            capture_output=True,
            text=True,
            timeout=BRING_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            not_made(PACKAGE, done.stderr)
        (package,) = made.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, made], check=True)
        package.unlink()

    return made_once(ROOT / ".venv" / PACKAGE, bring, "apt") / "usr" / "bin"


def release() -> str:
    """Return the version of the server."""
    done = subprocess.run(
        [binaries() / "prometheus", "--version"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()[2]


class Prometheus:
    """A server that reads the pages at some addresses as the job `plog`.

    Args:
        directory: holds its settings and its data.
        pages: addresses of pages by the names of their instances.
        rules: text of a file of rules, if there are any.
    """

    def __init__(self, directory: Path, pages: Mapping[str, str], rules: str = "") -> None:
        directory.mkdir()
        self._log = directory / "log"
        self._address = f"127.0.0.1:{free_port()}"
        (directory / "rules.yml").write_text(rules or "groups: []\n")
        targets = [
            {"targets": [address], "labels": {"instance": name}} for name, address in pages.items()
        ]
        settings = {
            "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "plog", "static_configs": targets}],
        }
        (directory / "prometheus.yml").write_text(json.dumps(settings))  # YAML contains JSON
        self._command = [
            str(binaries() / "prometheus"),
            f"--config.file={directory}/prometheus.yml",
            f"--storage.tsdb.path={directory}/data",
            f"--web.listen-address={self._address}",
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until(self._is_ready, "Prometheus is ready", timeout_s=TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(TIMEOUT_S)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=TIMEOUT_S):
                return True
        except OSError:
            return False

    def _ask(self, path: str, **parameters: str) -> Any:
        asked = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression now: `metric` has the labels, `value` the number."""
        series: list[dict[str, Any]] = self._ask("query", query=expression)["result"]
        return series

    def firing(self) -> set[tuple[str, str]]:
        """Return the firing alerts, each with its instance; "" for one of a whole cluster."""
        return {
            (found["labels"]["alertname"], found["labels"].get("instance", ""))
            for found in self._ask("alerts")["alerts"]
            if found["state"] == "firing"
        }

    def texts(self) -> list[str]:
        """Return summary and description of each alert that is pending or fires."""
        return [
            text
            for found in self._ask("alerts")["alerts"]
            for text in found["annotations"].values()
        ]
