"""One broker and one small Spark session for all tests of the data source."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from plog.client.admin import Admin
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.spark.jvm import ROOT, quick_jvm

if TYPE_CHECKING:
    from tests.spark.connector_queries import Connector

LARGEST_MESSAGE = 12 * 1024 * 1024


@pytest.fixture(scope="package")
def broker(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("spark")
    overrides = {"message.max.bytes": LARGEST_MESSAGE, "auto.create.topics.enable": "false"}
    with BrokerProcess(directory, overrides=overrides) as running:
        yield running


_numbers = itertools.count()


@pytest.fixture
def new_topic(broker: BrokerProcess) -> Callable[..., str]:
    def create(partitions: int = 1, prefix: str = "t", **configs: object) -> str:
        name = f"{prefix}{next(_numbers)}"
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(name, partitions=partitions, configs=settings)
        return name

    return create


@pytest.fixture(scope="package")
def workers_find_plog() -> Iterator[dict[str, str]]:
    """Let Spark's workers import this checkout, installed or not; yield the environment.

    Only while the tests of this package run: other processes that tests start inherit it.
    """
    wanted = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in wanted.items():
            patch.setenv(name, value)
        yield {**os.environ, **wanted}


@pytest.fixture(scope="package")
def spark(workers_find_plog: dict[str, str]) -> Iterator[Any]:
    from plog.spark.session import session

    running = session(
        "plog tests",
        spark_master="local[2]",
        spark_driver_memory="1g",
        spark_ui_enabled="false",
        spark_sql_shuffle_partitions="2",
        spark_sql_session_timeZone="UTC",
        spark_driver_extraJavaOptions=quick_jvm(),
    )
    running.sparkContext.setLogLevel("OFF")
    yield running
    running.stop()


@pytest.fixture(scope="package")
def connector(workers_find_plog: dict[str, str]) -> Iterator[Connector]:
    """The process whose Spark has its own Kafka connector, too."""
    from tests.spark.connector_queries import Connector

    running = Connector()
    yield running
    running.close()
