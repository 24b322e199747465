"""The demo: a broker, 336,776 flights through a real client, and a Spark report on them.

Started by bin/demo. Leaves its data in demo-data/ of the checkout, and no process running.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import flights_events
import flights_report
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 30
PARTITIONS = 6

HINTS = """
Next steps, from the checkout:
  bin/demo --keep                                   the same, and keep the broker running
  .venv/bin/plog --help                             topics, produce, consume, configs, perf
  .venv/bin/python spark/flights_report.py --help   only the report, for any broker and time range
  README.md                                         install a broker, connect clients\
"""

KEPT_HINTS = """
The broker keeps running at {bootstrap} (process {pid}). Try:
  .venv/bin/plog topics list --bootstrap-server {bootstrap}
  .venv/bin/plog consume flights --bootstrap-server {bootstrap} --max 3
  .venv/bin/python spark/flights_report.py --bootstrap-server {bootstrap} --from 2013-12-01
  kill {pid}                                        stops it\
"""


def free_port() -> int:
    """Return an unused port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_broker(data: Path, port: int) -> subprocess.Popen[bytes]:
    """Start `plog server` with config/server.properties and wait until it listens."""
    log_path = data / "broker.log"
    if (kept := running_broker(data)) is not None:
        raise click.ClickException(
            f"the broker of an earlier `bin/demo --keep` is still running: stop it with "
            f"`kill {kept}`"
        )
    with log_path.open("wb") as log:
        broker = subprocess.Popen(
            [
                *(sys.executable, "-m", "plog", "server"),
                str(ROOT / "config" / "server.properties"),
                *("--override", f"listeners=PLAINTEXT://127.0.0.1:{port}"),
                *("--override", f"log.dirs={data / 'log'}"),
                *("--override", "metrics.listener="),  # a broker of this host may have it
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C is meant for the demo, which then stops the broker.
            start_new_session=True,
        )
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return broker
        except OSError:
            if broker.poll() is not None or time.monotonic() > deadline:
                stop_broker(broker)
                raise click.ClickException(
                    f"the broker did not start. Its log:\n{log_path.read_text()}"
                ) from None
            time.sleep(0.02)


def running_broker(data: Path) -> int | None:
    """Return the process that holds the demo's log directory, or None."""
    lock = data / "log" / ".lock"
    if not lock.exists():
        return None
    inode = lock.stat().st_ino
    # "1: FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF"; its other lock there belongs to no process.
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].split(":")[-1] == str(inode):
            return int(fields[4])
    return None


def stop_broker(broker: subprocess.Popen[bytes]) -> None:
    """Stop the broker cleanly, or kill it if it does not stop."""
    broker.terminate()
    try:
        broker.wait(PATIENCE_S)
    finally:
        broker.kill()
        broker.wait()


def create_topic(bootstrap: str) -> None:
    """Recreate the topic; an earlier run, perhaps an interrupted one, may have left it."""
    from plog.client.admin import Admin
    from plog.errors import TopicAlreadyExists, UnknownTopicOrPartition

    # The timestamps are of 2013: time-based retention would delete the records.
    configs = {"retention.ms": "-1"}
    deadline = time.monotonic() + PATIENCE_S
    with Admin(bootstrap) as admin:
        with contextlib.suppress(UnknownTopicOrPartition):
            admin.delete_topic(flights_events.TOPIC)
        while True:
            try:
                admin.create_topic(flights_events.TOPIC, partitions=PARTITIONS, configs=configs)
                return
            except TopicAlreadyExists:  # its deletion is not finished yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def run_report(bootstrap: str, spark_log: Path) -> list[flights_report.CarrierReport]:
    """Read the topic with Spark; Spark's output goes to a file."""
    from plog.spark.session import session

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark's workers find plog as this process does, installed or not.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    with errors_to(spark_log):
        spark = session(
            "plog demo",
            spark_ui_enabled="false",
            spark_sql_shuffle_partitions="2",
            # In a job of seconds the JVM's optimising compiler does not pay off.
            spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        )
        try:
            return flights_report.report(spark, bootstrap, flights_events.TOPIC)
        finally:
            spark.stop()


@contextlib.contextmanager
def errors_to(path: Path) -> Iterator[None]:
    """Redirect stderr of this process and its children into a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def check(rows: list[flights_report.CarrierReport]) -> None:
    """Compare the report with the CSV.

    Raises:
        click.ClickException: they differ; the message has the difference.
    """
    expected = flights_events.expected_report()
    found = {row.carrier: row for row in rows}
    if found.keys() != expected.keys():
        raise click.ClickException(f"carriers {sorted(found)}, the CSV has {sorted(expected)}")
    for carrier, wanted in expected.items():
        row = tuple(found[carrier][1:])
        if not all(
            value is not None and math.isclose(value, right, rel_tol=1e-9)
            for value, right in zip(row, wanted, strict=True)
        ):
            raise click.ClickException(f"{carrier}: the report says {row}, the CSV {wanted}")


def plot(rows: list[flights_report.CarrierReport], path: Path, names: Mapping[str, str]) -> str:
    """Plot the report if matplotlib is installed; return a line about the result."""
    if not flights_report.can_plot():
        return f"No plot: {flights_report.NO_MATPLOTLIB}"
    flights_report.save_plot(rows, str(path), names)
    return f"Plot: {path}"


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=ROOT / "demo-data",
    show_default="demo-data in the checkout",
    help="Directory for the broker's data, the plot and logs.",
)
@click.option("--keep", is_flag=True, help="Keep the broker running, and print its address.")
def main(data: Path, keep: bool) -> None:
    """Load the flights of 2013 into a plog broker and report on them with Spark."""
    # Like Ctrl-C: stop the broker.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A pipe has no width of its own.
    console = Console(highlight=False, soft_wrap=True)
    data = data.resolve()
    data.mkdir(parents=True, exist_ok=True)
    port = free_port()
    bootstrap = f"127.0.0.1:{port}"
    begun = time.monotonic()
    broker = start_broker(data, port)
    kept = False
    try:
        console.print(f"Broker listening on {bootstrap} after {time.monotonic() - begun:.2f} s")
        create_topic(bootstrap)
        begun = time.monotonic()
        count = flights_events.load_with_progress(bootstrap, flights_events.TOPIC)
        seconds = time.monotonic() - begun
        console.print(f"{count:,} flights acknowledged (acks=all, on disk) in {seconds:.1f} s")

        begun = time.monotonic()
        with console.status("Starting Spark and reading the topic"):
            rows = run_report(bootstrap, data / "spark.log")
        console.print(
            f"Spark started, read them and reported in {time.monotonic() - begun:.1f} s\n"
        )
        names = flights_events.airlines()
        flights_report.print_table(rows, names)
        check(rows)
        console.print("The report agrees with the CSV the flights came from.")
        console.print(plot(rows, data / "flights.png", names))
        console.print(f"Logs: {data / 'broker.log'}, {data / 'spark.log'}")
        kept = keep
    finally:
        if not kept:
            stop_broker(broker)
    console.print(KEPT_HINTS.format(bootstrap=bootstrap, pid=broker.pid) if keep else HINTS)


if __name__ == "__main__":
    try:
        main(standalone_mode=False, prog_name="bin/demo")
    except click.ClickException as fault:
        fault.show()
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt):
        sys.exit("interrupted; the broker is stopped")
