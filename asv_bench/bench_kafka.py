"""Apache Kafka as a contestant: its jars by Maven, one broker in KRaft mode, its own settings.

The JVM gets the flags of Kafka's start script. The heap is the JVM's own choice (a
quarter of the machine's memory), or the 1 GB of that script. A JVM takes seconds to
start and more until it has compiled what is hot, so that one broker serves many
measurements, each with a topic that is deleted behind it.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import bench_load
from bench_servers import TOPIC, Counted, ProcessServer, Topic, free_port, most_rss_mb

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.errors import PlogError
from plog.ops import load
from plog.types import TopicPartition


class Kind(NamedTuple):
    """A release with a heap.

    Attributes:
        name: among the contestants.
        heap: flags of the JVM.
    """

    name: str
    release: str
    heap: tuple[str, ...]


SCRIPT_HEAP = ("-Xms1G", "-Xmx1G")
KINDS = {
    "3.9": Kind("Kafka 3.9", "3.9.1", ()),
    "3.9-1g": Kind("Kafka 3.9, 1 GB", "3.9.1", SCRIPT_HEAP),
    "4.1": Kind("Kafka 4.1", "4.1.1", ()),
    "4.1-1g": Kind("Kafka 4.1, 1 GB", "4.1.1", SCRIPT_HEAP),
}
CLUSTER_ID = "plogbenchmarkplogbencQ"
"""The same for each, as they know nothing of each other; one by chance may look like an option."""
NAMES = tuple(kind.name for kind in KINDS.values())
JVM_FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
# Maven runs for seconds: the best code does not pay.
MAVEN_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
WARM_UP_ROWS = (
    "small/4c/6p/java",
    "produce/16K/4c/6p/java",
    "produce/64K/4c/6p/java-lz4",
    "fetch/64K/4c/6p/session",
)
"""Run at the start, in turns. The JVM compiles what is hot while it runs, and before that it is not
the Kafka that people have: a request of one record costs ten times what it does a minute later."""
WARM_UP_STEP_S = 3.0
WARM_UP_TURNS = 12
"""At most."""
WARMUP_S = 3.0
"""Of each measurement, by its own load."""
LEADERS_TIMEOUT_MS = 300_000
DELETION_TIMEOUT_MS = 90_000
"""For the request to delete a topic, and again for its files to go."""
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""
DEPENDENCY = """
    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>"""
SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={directory}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.segment.delete.delay.ms=1000
log.initial.task.delay.ms=1000
"""
"""Its defaults, but for what one broker alone needs, and that a deleted topic's files go soon:
a minute after the deletion, and not before half a minute after the start, they would otherwise."""


def _succeed(command: list[str], where: Path, timeout_s: float | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env={**os.environ, "MAVEN_OPTS": f"{MAVEN_FLAGS} {os.environ.get('MAVEN_OPTS', '')}"},
    )
    if done.returncode:
        raise load.LoadError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def bring_jars(
    release: str, where: Path, *others: tuple[str, str, str], timeout_s: float | None = None
) -> None:
    """Have Maven put the jars of a release's broker into `where`/jars.

    Args:
        others: more to bring: group, artifact and version.
        timeout_s: for all of it.

    Raises:
        LoadError: Maven cannot.
        TimeoutExpired: It takes longer.
    """
    where.mkdir(parents=True, exist_ok=True)
    wanted = [("org.apache.kafka", "kafka_2.13", release), *others]
    dependencies = "".join(DEPENDENCY.format(*one) for one in wanted)
    (where / "pom.xml").write_text(POM.format(dependencies=dependencies))
    # By its whole name: who asks for a plugin by its prefix is not told why it is not to be had.
    goal = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
    copy = ["mvn", "-q", "-B", goal, "-DoutputDirectory=jars"]
    # Where others bring a logger, the tools' own would be a second one.
    _succeed([*copy, "-DexcludeArtifactIds=slf4j-reload4j"], where, timeout_s)


def jars(version: str) -> Path:
    """Return the directory with a release's jars; Maven brings them the first time.

    $PLOG_KAFKA_JARS may name a directory that has them already.
    """
    named = Path(os.environ.get("PLOG_KAFKA_JARS") or os.devnull)
    if any(named.glob(f"kafka_*-{version}.jar")):
        return named
    where = bench_load.ROOT / "build" / f"kafka-{version}"
    if not (where / "complete").exists():
        bring_jars(version, where)
        (where / "complete").touch()
    return where / "jars"


class Kafka(ProcessServer):
    def __init__(self, directory: Path, kind: Kind) -> None:
        port = free_port()
        self._log_dir = directory / "data"
        self._topics = 0
        settings = directory / "kafka.properties"
        settings.write_text(
            SETTINGS.format(port=port, controller_port=free_port(), directory=self._log_dir)
        )
        run = ["java", *kind.heap, *JVM_FLAGS, "-cp", f"{jars(kind.release)}/*"]
        formatting = ["kafka.tools.StorageTool", "format", "-c", str(settings), "-t", CLUSTER_ID]
        _succeed([*run, *formatting], directory)
        super().__init__([*run, "kafka.Kafka", str(settings)], directory / "kafka.log", port)

    def create_topic(self, partitions: int) -> Topic:
        """Make a topic that no measurement before had; count memory from now on."""
        self._topics += 1
        self.topic_name = f"{TOPIC}{self._topics}"
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        topic = super().create_topic(partitions)
        # Its metadata names leaders that do not know of it yet: a client tries until they do.
        with Consumer(f"127.0.0.1:{self.port}", request_timeout_ms=LEADERS_TIMEOUT_MS) as consumer:
            consumer.end_offsets([TopicPartition(topic.name, at) for at in range(partitions)])
        return topic

    def delete_topic(self) -> Counted:
        """Delete that topic and wait a bounded time until its files are gone; return the counts.

        KRaft deletes asynchronously: the answer means that the controller has committed the
        deletion. The broker renames the directories when it replays that record, and removes the
        files after log.segment.delete.delay.ms. Both take longer on a busy host. Files that remain
        may disturb the next measurement; they never fail a finished one.
        """
        counted = Counted(most_rss_mb(self.pid))
        try:
            with Admin(f"127.0.0.1:{self.port}", request_timeout_ms=DELETION_TIMEOUT_MS) as admin:
                admin.delete_topic(self.topic_name)
        except PlogError as fault:
            bench_load.warn(f"{self.topic_name} may not be deleted: {fault}")
        deadline = time.monotonic() + DELETION_TIMEOUT_MS / 1000
        while self.is_running and any(self._log_dir.glob(f"{self.topic_name}-*")):
            if time.monotonic() > deadline:
                bench_load.warn(f"the files of {self.topic_name} are not deleted yet")
                break
            time.sleep(0.1)
        return counted
