"""The source and the sink through Spark Connect: found by name where the server is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plog.client.admin import Admin
from tests.servers import BrokerProcess
from tests.spark.marks import DEAR
from tests.spark.test_exactly_once import RECORDS, check, fill
from tests.spark.test_sink import numbered, values

pytestmark = DEAR
PATIENCE_S = 200


@pytest.fixture
def server(spark: Any) -> str:
    """Return the URL of a server in the JVM of the tests' session; it has sessions of its own."""
    package = spark._jvm.org.apache.spark.sql.connect.service
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")
    service.start(spark._jsc.sc())
    return f"sc://127.0.0.1:{service.localPort()}"


@pytest.mark.usefixtures("plane")
def test_topics_are_read_and_written_in_batch_queries_and_streams(
    server: str, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path) as broker:
        fill(broker.bootstrap)
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("written")
        checkpoint = str(tmp_path / "checkpoint")
        command = "-m", "tests.spark.connect_query", server, broker.bootstrap
        done = subprocess.run(
            [sys.executable, *command, "source", "written", "sink", checkpoint],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert "pyspark.sql.connect.session\n" in done.stdout
        assert f"{RECORDS} rows, topics source, sum {sum(range(RECORDS))}\n" in done.stdout
        assert values(broker, "written") == numbered(100)
        check(broker.bootstrap)
        assert (tmp_path / "checkpoint" / "commits").is_dir()
