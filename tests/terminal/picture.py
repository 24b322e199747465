"""Draws docs/top.svg: `plog top` in a terminal, beside a broker under load.

python -m tests.terminal.picture
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.text import Text

from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.types import TopicPartition
from tests.conftest import ROOT
from tests.servers import BrokerProcess, free_port
from tests.terminal.terminal import Terminal

PICTURE = ROOT / "docs" / "top.svg"
COLUMNS, LINES = 118, 34
SECONDS = 12
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def draw(directory: Path) -> str:
    """Return the picture of a terminal that shows a busy broker."""
    page = f"127.0.0.1:{free_port()}"
    overrides = {"metrics.listener": page, "offsets.topic.num.partitions": 1}
    with BrokerProcess(directory, overrides=overrides) as broker, ExitStack() as stack:
        environment = {**os.environ, "PLOG_BOOTSTRAP_SERVER": broker.bootstrap}
        with Admin(broker.bootstrap) as admin:
            for topic in ("flights", "quakes"):
                admin.create_topic(topic, partitions=4)
        for command in (
            ["produce", "flights", "--in-flight", 1],
            ["produce", "quakes", "--in-flight", 1, "--batch-size", 1000],
            ["consume", "flights"],
        ):
            words = [sys.executable, "-m", "plog", "perf", *map(str, command)]
            words += ["--seconds", str(SECONDS)]
            load = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
            stack.callback(load.wait)
        time.sleep(SECONDS / 3)
        with GroupAdmin(broker.bootstrap) as groups:
            groups.commit("billing", {TopicPartition("flights", n): 5_000 for n in range(4)})
            groups.commit("alerts", {TopicPartition("quakes", n): 100 for n in range(4)})
        line = f"{sys.executable} -m plog top --metrics {page} --every 2"
        top = Terminal(line, directory, environment, columns=COLUMNS, lines=LINES)
        stack.callback(top.close)
        top.wait_for("billing")
        time.sleep(2.5)  # a reading while everything runs
        top.wait_for("billing")
        text = top.text.replace(page, "127.0.0.1:9095")
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(text), end="")
    # Without the fonts, which a reader would load from elsewhere.
    return FONT.sub("", console.export_svg(title="plog top"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PICTURE.write_text(draw(Path(made)))
