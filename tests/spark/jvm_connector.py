"""Spark's own Kafka connector, from Maven: the source that ours stands in for.

Its latest release there is older than the Spark that it is used in here; both go together.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.compat.made import made_once, not_made
from tests.compat.programs import BUILT, ENVIRONMENT

RELEASE = "4.2.0"
ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", RELEASE),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", RELEASE),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
TIMEOUT_S = 200
# What they depend on is in Spark, or among them. Maven is not to look for it: it would ask the
# mirrors that Spark's own pom names.
DEPENDENCY = """
    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
      <exclusions>
        <exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>"""
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>connector</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>{}
  </dependencies>
</project>
"""


def connector_jars() -> list[Path]:
    """Return the connector's jars; Maven brings them the first time."""
    wanted = hashlib.sha256(repr(ARTIFACTS).encode()).hexdigest()
    directory = made_once(BUILT / f"spark-kafka-{RELEASE}-{wanted[:12]}", _make, "mvn")
    return sorted((directory / "jars").glob("*.jar"))


def _make(made: Path) -> None:
    pom = POM.format("".join(DEPENDENCY.format(*one) for one in ARTIFACTS))
    (made / "pom.xml").write_text(pom, encoding="utf-8")
    goal = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
    try:
        done = subprocess.run(
            ["mvn", "-q", "-B", goal, "-DoutputDirectory=jars"],
            cwd=made, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
            env=ENVIRONMENT,
        )  # fmt: skip
    except FileNotFoundError as error:
        pytest.skip(f"Spark's Kafka connector is not to be had: {error}")
    if done.returncode:
        not_made("Spark's Kafka connector", done.stdout + done.stderr)
