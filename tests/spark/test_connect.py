"""The source and the sink through Spark Connect: found by name where the server is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plog.client.admin import Admin
from tests.servers import BrokerProcess
from tests.spark.marks import DEAR
from tests.spark.test_exactly_once import RECORDS, check, fill
from tests.spark.test_sink import numbered, values

pytestmark = DEAR
PATIENCE_S = 200


@pytest.mark.usefixtures("plane")
def test_topics_are_read_and_written_in_batch_queries_and_streams(
    tmp_path: Path, workers_find_plog: dict[str, str]
) -> None:
    # Its server has a free port then, and not the one that is the same for all.
    environment = {**workers_find_plog, "SPARK_TESTING": "1"}
    with BrokerProcess(tmp_path) as broker:
        fill(broker)
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("written")
        checkpoint = str(tmp_path / "checkpoint")
        command = "-m", "tests.spark.connect_query", broker.bootstrap
        done = subprocess.run(
            [sys.executable, *command, "source", "written", "sink", checkpoint],
            env=environment,
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
        check(broker)
        assert (tmp_path / "checkpoint" / "commits").is_dir()
