"""A cluster on one machine: a ZooKeeper and the brokers of config/cluster-*.properties.

Everything is below `build/cluster`: the jars of ZooKeeper, the data, the logs, and the process ids.
The processes go on when this command ends, and are ended by their ids. They listen on 127.0.0.1.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import click

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "cluster"
CONFIGS = sorted((ROOT / "config").glob("cluster-*.properties"))
ZOOKEEPER = "zookeeper"
ZOOKEEPER_PORT = 2181
ZOOKEEPER_RELEASE = "3.8.4"
START_S = 60.0
STOP_S = 60.0
STOPS_OTHERS = "`bin/cluster stop` stops the others"

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>plog</groupId><artifactId>zookeeper-jars</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.zookeeper</groupId><artifactId>zookeeper</artifactId>
      <version>{release}</version></dependency>
    <dependency><groupId>io.dropwizard.metrics</groupId><artifactId>metrics-core</artifactId>
      <version>4.1.12.1</version></dependency>
    <dependency><groupId>org.xerial.snappy</groupId><artifactId>snappy-java</artifactId>
      <version>1.1.10.5</version></dependency>
  </dependencies>
</project>
"""
SERVER = """tickTime=2000
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
"""
GOAL = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"


def fail(text: str) -> NoReturn:
    """End with a line on stderr."""
    click.echo(f"bin/cluster: {text}", err=True)
    sys.exit(1)


def setting(config: Path, key: str) -> str:
    """Return a key of a properties file."""
    for line in config.read_text().splitlines():
        name, _, value = line.partition("=")
        if name.strip() == key:
            return value.strip()
    fail(f"{config} has no {key}")


def port_of(config: Path) -> int:
    """Return the port of a broker's listener."""
    return int(setting(config, "listeners").rpartition(":")[2])


# -- processes -------------------------------------------------------------------------------------


def pid_file(name: str) -> Path:
    """Return the file with the id and the start time of a process."""
    return PLACE / f"{name}.pid"


def running(name: str) -> int | None:
    """Return the id of a process that runs, None if it does not."""
    try:
        pid, started = map(int, pid_file(name).read_text().split())
    except (FileNotFoundError, ValueError):
        return None
    return pid if start_time(pid) == started else None


def start_time(pid: int) -> int | None:
    """Return when a process started; another process with its id has another time."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state == "Z" else int(fields[18])


def launch(name: str, command: list[str]) -> None:
    """Start a process that goes on when this one ends."""
    with (PLACE / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=PLACE,
            start_new_session=True,
        )
    pid_file(name).write_text(f"{process.pid} {start_time(process.pid)}\n")


def listens(port: int) -> bool:
    """Return whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(name: str, port: int) -> None:
    """Wait until a process listens."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if running(name) is None:
            fail(f"{name} has ended, see {PLACE / name}.log. {STOPS_OTHERS}")
        if listens(port):
            return
        time.sleep(0.1)
    fail(f"{name} does not listen on port {port}, see {PLACE / name}.log. {STOPS_OTHERS}")


def end(name: str) -> bool:
    """End a process; return whether it ran."""
    pid = running(name)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + STOP_S
        while running(name) is not None:
            if time.monotonic() > until:
                fail(f"{name} (process {pid}) does not end, see {PLACE / name}.log")
            time.sleep(0.1)
    pid_file(name).unlink(missing_ok=True)
    return pid is not None


# -- commands --------------------------------------------------------------------------------------


def jars() -> Path:
    """Return the directory of ZooKeeper's jars; Maven brings them the first time."""
    where = PLACE / f"zookeeper-{ZOOKEEPER_RELEASE}"
    if not (where / "complete").exists():
        click.echo("== bringing ZooKeeper (mvn)", err=True)
        where.mkdir(parents=True, exist_ok=True)
        (where / "pom.xml").write_text(POM.format(release=ZOOKEEPER_RELEASE))
        try:
            command = ["mvn", "-q", "-B", GOAL, "-DoutputDirectory=jars"]
            subprocess.run(command, cwd=where, check=True)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            fail(f"Maven cannot bring ZooKeeper: {error}")
        (where / "complete").touch()
    return where / "jars"


def start() -> None:
    """Start what does not run."""
    PLACE.mkdir(parents=True, exist_ok=True)
    check_ports()
    if running(ZOOKEEPER) is None:
        properties = PLACE / "zookeeper.properties"
        properties.write_text(SERVER.format(data=PLACE / "zookeeper-data", port=ZOOKEEPER_PORT))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        launch(
            ZOOKEEPER,
            ["java", "-Xmx256m", "-cp", f"{jars()}/*", main, str(properties)],
        )
        wait_for(ZOOKEEPER, ZOOKEEPER_PORT)
    for config in CONFIGS:
        if running(config.stem) is None:
            start_broker(config)
    for config in CONFIGS:
        wait_for(config.stem, port_of(config))
    show()


def check_ports() -> None:
    """Check that no other program has a port, before anything is started."""
    ports = {ZOOKEEPER: ZOOKEEPER_PORT} | {one.stem: port_of(one) for one in CONFIGS}
    for name, port in ports.items():
        if running(name) is None and listens(port):
            fail(
                f"port {port} of 127.0.0.1, which {name} needs, is in use by another program."
                " Nothing is started"
            )


def show() -> None:
    """Show the processes, and the cluster as the brokers describe it."""
    for name in names():
        pid = running(name)
        click.echo(f"{name:12s} {'does not run' if pid is None else f'process {pid}'}")
    live = [f"127.0.0.1:{port_of(one)}" for one in CONFIGS if running(one.stem) is not None]
    if live:
        click.echo()
        plog = [sys.executable, "-m", "plog", "cluster", "-b", ",".join(live)]
        status = subprocess.run(plog, check=False).returncode
        if away := [name for name in names() if running(name) is None]:
            start = f"`bin/cluster start` starts what does not run: {', '.join(away)}"
            click.echo(f"bin/cluster: {start}", err=True)
        sys.exit(status)


def stop() -> None:
    """Stop the brokers, then ZooKeeper."""
    for name in reversed([*names()]):
        if end(name):
            click.echo(f"stopped {name}")


def restart(broker_id: int) -> None:
    """Stop a broker in order, and start it again."""
    for config in CONFIGS:
        if int(setting(config, "broker.id")) == broker_id:
            end(config.stem)
            start_broker(config)
            wait_for(config.stem, port_of(config))
            return
    fail(f"there is no broker {broker_id}")


def start_broker(config: Path) -> None:
    """Start a broker of a properties file."""
    data = f"log.dirs={PLACE / config.stem}"
    plog = [sys.executable, "-m", "plog", "server", str(config), "--override", data]
    launch(config.stem, plog)


def remove() -> None:
    """Stop everything and remove its data."""
    stop()
    for path in PLACE.iterdir() if PLACE.exists() else ():
        if path.name != f"zookeeper-{ZOOKEEPER_RELEASE}":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    click.echo(f"removed the data in {PLACE}")


def names() -> Iterator[str]:
    """Yield the names of all processes, ZooKeeper first."""
    yield ZOOKEEPER
    yield from (config.stem for config in CONFIGS)


COMMANDS: dict[str, Callable[[], None]] = {
    "start": start,
    "show": show,
    "stop": stop,
    "remove": remove,
}


@click.command()
@click.argument("command", type=click.Choice([*COMMANDS, "restart"]))
@click.argument("broker", type=int, required=False)
def main(command: str, broker: int | None) -> None:
    """Run a ZooKeeper and three brokers on this machine.

    \b
      start    start what does not run, and show it
      show     show the processes and the cluster
      stop     stop the brokers, then ZooKeeper; the data stays
      remove   stop everything and remove the data
      restart  stop BROKER, by its id, and start it again
    """
    if (broker is None) == (command == "restart"):
        raise click.UsageError("`restart` needs a broker's id, and no other command has one")
    if broker is None:
        COMMANDS[command]()
    else:
        restart(broker)


if __name__ == "__main__":
    main()
