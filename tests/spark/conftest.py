"""The broker and the Spark sessions that all tests of the data source share.

A run in several processes gives these tests to one of them (tests/conftest.py), so that each
session starts once.
"""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from plog.client.admin import Admin
from tests.conftest import ROOT
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.several_brokers import until_topic_is_known
from tests.spark.jvm import QUICK_JVM, QUICK_STREAMS, SHORT_RUN, make_spark_home
from tests.spark.submitted import submit

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
        until_topic_is_known(broker.bootstrap, name)
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
        "SPARK_HOME": str(make_spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LAUNCHER_OPTS": SHORT_RUN,  # of the JVM that composes the command of another
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
        spark_sql_shuffle_partitions="1",
        spark_sql_session_timeZone="UTC",
        spark_driver_extraJavaOptions=QUICK_JVM,
        **QUICK_STREAMS,
        spark_connect_grpc_binding_port="0",  # any free one, for `test_connect.py`
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


def _in_session(
    spark: Any, patch: pytest.MonkeyPatch, script: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    from tests.spark.activity_jobs import share

    share(spark, patch)
    patch.syspath_prepend(ROOT / "spark")  # as spark-submit has it
    main = importlib.import_module(script.removesuffix(".py")).main
    done = CliRunner().invoke(main, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.output, "")


@pytest.fixture(params=["session", pytest.param("spark-submit", marks=pytest.mark.long)])
def run_script(
    request: pytest.FixtureRequest,
    workers_find_plog: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a script of spark/, in the shared session or by spark-submit.

    spark-submit starts a JVM for each run, in the same way for all scripts. So every run of the
    tests submits one job, `plain_job.py`; `--long` submits the scripts. `stdout` has all that a
    script prints, as spark-submit has it, and `stderr` what Spark itself logs.
    """
    if request.param == "spark-submit":
        return partial(submit, workers_find_plog)
    return partial(_in_session, request.getfixturevalue("spark"), monkeypatch)
