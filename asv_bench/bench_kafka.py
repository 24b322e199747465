"""Apache Kafka as a contestant: its jars by Maven, one broker in KRaft mode, its own settings.

The JVM gets the flags of Kafka's start script. The heap is the JVM's own choice (a
quarter of the machine's memory), or the 1 GB of that script.
"""

from __future__ import annotations

import base64
import subprocess
import uuid
from pathlib import Path

import bench_load
from bench_servers import ProcessServer, free_port

from plog.ops import load

VERSIONS = {"Kafka 3.9": "3.9.1", "Kafka 4.1": "4.1.1"}
HEAPS = {"": (), ", 1 GB": ("-Xms1G", "-Xmx1G")}
JVM_FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
WARMUP_S = 8.0
"""The JVM compiles what is hot while it runs: before that it is not the Kafka that people have."""
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""
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
"""


def _succeed(command: list[str], where: Path) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode:
        raise load.LoadError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def jars(version: str) -> Path:
    """Return the directory with a release's jars; Maven brings them the first time."""
    where = bench_load.ROOT / "build" / f"kafka-{version}"
    if not (where / "complete").exists():
        where.mkdir(parents=True, exist_ok=True)
        (where / "pom.xml").write_text(POM.format(version=version))
        copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
        _succeed(copy, where)
        (where / "complete").touch()
    return where / "jars"


class Kafka(ProcessServer):
    def __init__(self, directory: Path, version: str, heap: tuple[str, ...]) -> None:
        port = free_port()
        settings = directory / "kafka.properties"
        settings.write_text(
            SETTINGS.format(port=port, controller_port=free_port(), directory=directory / "data")
        )
        run = ["java", *heap, *JVM_FLAGS, "-cp", f"{jars(version)}/*"]
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatting = ["kafka.tools.StorageTool", "format", "-c", str(settings), "-t", cluster_id]
        _succeed([*run, *formatting], directory)
        super().__init__([*run, "kafka.Kafka", str(settings)], directory / "kafka.log", port)
