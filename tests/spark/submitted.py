"""A job as its users run it: by spark-submit, in a JVM of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.spark.jvm import QUICK_JVM

JOBS = ROOT / "spark"
TIMEOUT_S = 120


def submit(
    environment: dict[str, str], script: str, *arguments: str, master: str = "local[2]"
) -> subprocess.CompletedProcess[str]:
    """Run a script of spark/ to its end; nobody is there to answer what it asks."""
    command = shutil.which("spark-submit", path=str(Path(sys.executable).parent))
    assert command is not None
    return subprocess.run(
        [command, "--master", master, "--driver-memory", "1g",
         "--conf", "spark.ui.enabled=false",
         "--driver-java-options", QUICK_JVM,
         str(JOBS / script), *arguments],
        env=os.environ | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def configured(name: str, directory: Path, **settings: str) -> Path:
    """Return a copy of an example of config/, in which these lines have other values (as TOML).

    Lines that the example has as comments count.
    """
    lines = (ROOT / "config" / name).read_text("utf-8").splitlines()
    for key, value in settings.items():
        word = key.replace("_", "-")
        (at,) = (
            n for n, line in enumerate(lines) if line.removeprefix("# ").split(" = ")[0] == word
        )
        lines[at] = f"{word} = {value}"
    path = directory / name
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path
