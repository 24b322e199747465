"""The wheel, the image and the Debian package: built by their commands, installed on bare hosts.

The wheel goes into an environment of its own, the package into a chroot of the distribution's
smallest kind, with Python and nothing else of what plog is built with; brokers are started there as
the package's user, upgraded and removed. Neither needs the Java runtime that the demo is given, but
for Spark, which is to find the format by its name where the wheel is installed.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from plog._native import batch
from plog.cli import COMMANDS
from plog.cli.completion import SHELLS
from plog.client.admin import Admin
from plog.client.producer import Producer
from plog.protocol import record_batch
from plog.settings.server_properties import read
from tests.compat.clients import CODECS, Confluent, Sent
from tests.compat.made import STATUS
from tests.conftest import ROOT
from tests.containers import Container, Images
from tests.servers import BrokerProcess, free_port
from tests.spark.jvm import QUICK_JVM, make_spark_home
from tests.test_pages import BLOCK, anchors, links
from tests.units import EXPOSURE, INSTALLED, add_units_of_every_host, complaints, exposure

BUILD_TIMEOUT_S = 900
SPARK_TIMEOUT_S = 600
BUILT_VERSION = r"\d+\.\d+\.\d+\+\d{14}\.g[0-9a-f]{10,}(\.changed\d{14})?"
LATER_VERSION = "99.0+20990131000000.g0123456789"
LATER_LINE = "# Of a later release.\n"
SYSTEMCTL = """#!/bin/sh
# A systemd that restarts nothing; it remembers what it was asked for.
echo "$*" >>/asked
case "$*" in *try-restart*) exit 1 ;; esac
"""
MIRROR_TIMEOUT_S = 600
QUICK_PACKAGE = {"DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
"""The default is xz: it is a third smaller, but takes ten times the processor time."""
QUICK_DPKG = {"DPKG_FORCE": "security-mac,downgrade,unsafe-io"}
"""Its defaults, and that it does not wait for the disk after each file: no power fails here."""
HOST_NEEDS = ("mmdebstrap", "chroot")
MIRROR: tuple[str, ...] = ()
"""mmdebstrap's own for the distribution."""
SMALLEST = (
    *("--mode=root", "--variant=apt", "--include=python3"),
    # Else it would install Perl, to merge directories that need not be merged.
    "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
    # Another user may not write below pytest's directories.
    '--aptopt=APT::Sandbox::User "root"',
)
NOT_GOT = re.compile(r"\bE: Failed to fetch \S+  (.+)")
OUT_OF_REACH = re.compile(rf"[Cc]onnect|resolv|timed out|Error reading|\b{STATUS} ")
"""What apt says of a file that it lacks; which of it is of a mirror out of reach."""
MATCH = (
    "from plog.coordinator.topic_regex import Pattern; print(*Pattern('a+').matching(['aa', 'b']))"
)
"""Loads RE2, which comes as a package of its own, when it is first asked."""
IMPORTS = """
import importlib, pkgutil, plog
named = [module.name for module in pkgutil.walk_packages(plog.__path__, "plog.")]
for name in named:
    if not name.startswith(("plog._reference.", "plog.spark.", "plog.__main__")):
        importlib.import_module(name)
print(len(named))
"""
SPARK = """
import sys
import plog
from pyspark.sql import SparkSession
print(plog.__file__)
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "512m").getOrCreate()
def format(of):
    return of.format("plog").option("kafka.bootstrap.servers", sys.argv[1])
rows = spark.range(1000).selectExpr("cast(cast(id AS string) AS binary) AS value")
format(rows.write).option("topic", "t").mode("append").save()
found = format(spark.read).option("subscribe", "t").load()
print(found.selectExpr("sum(cast(value AS string))").first())
stream = format(spark.readStream).option("subscribe", "t").option("startingOffsets", "earliest")
copy = format(stream.load().select("value").writeStream).option("topic", "u")
copy.option("checkpointLocation", "kept").trigger(availableNow=True).start().awaitTermination()
print(format(spark.read).option("subscribe", "u").load().count())
spark.stop()
"""
PATHS = "/usr/sbin:/usr/bin:/sbin:/bin"
INSIDE = """
set -e
host=$1 user=$2
shift 2
mount --bind /proc "$host/proc"
exec chroot --userspec="$user" "$host" "$@"
"""


def run(*command: object, timeout: float = 120, **more: object) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **more,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def needs(*commands: str) -> None:
    for command in commands:
        if shutil.which(command) is None:
            pytest.skip(f"there is no {command}")


def executable(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def without_java(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a machine that has no Java runtime, and must not be given one."""
    place = tmp_path_factory.mktemp("without-java")
    executable(place / "java", "exit 127")
    if apt := shutil.which("apt-get"):
        executable(
            place / "apt-get",
            'case "$*" in *jre*) echo "for a Java runtime?" >&2; exit 1 ;; esac',
            f'exec {apt} "$@"',
        )
    return {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}


# -- what tells builds apart


def of_library(call: str, *arguments: object, cwd: Path) -> str:
    """Return what a function of bin/lib says."""
    script = f"""
        set -euo pipefail
        . {ROOT}/bin/lib/setup.sh
        . {ROOT}/bin/lib/packages.sh
        {call} "$@"
    """
    return run("bash", "-c", script, "bash", *arguments, cwd=cwd).strip()


def version_of(checkout: Path) -> str:
    return of_library("version_of_checkout", cwd=checkout)


def commit(checkout: Path, when: str) -> str:
    """Commit everything at a time; return the hash as versions have it."""
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    dated = {**os.environ, "GIT_COMMITTER_DATE": when}
    run("git", "add", "--all", cwd=checkout)
    run("git", *who, "commit", "--quiet", "--message=m", cwd=checkout, env=dated)
    return run("git", "rev-parse", "--short=10", "HEAD", cwd=checkout).strip()


def assert_rising(*versions: str) -> None:
    for before, after in itertools.pairwise(versions):
        assert Version(before) < Version(after)
        if shutil.which("dpkg"):
            run("dpkg", "--compare-versions", before, "lt", after)


def test_version_of_a_build_tells_its_commit_and_rises(tmp_path: Path) -> None:
    needs("git")
    source = tmp_path / "plog" / "__init__.py"
    source.parent.mkdir()
    source.write_text('"""Of a test."""\n\n__version__ = "1.2.3"\n')
    plain = version_of(tmp_path)
    assert plain == "1.2.3"  # no git tells more

    run("git", "init", "--quiet", cwd=tmp_path)
    assert version_of(tmp_path) == plain  # nor with nothing committed
    first_hash = commit(tmp_path, "2026-01-02T05:04:05+02:00")
    first = version_of(tmp_path)
    assert first == f"1.2.3+20260102030405.g{first_hash}"
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, -1)  # root builds another user's checkout
        assert version_of(tmp_path) == first
        os.chown(tmp_path, 0, -1)

    (source.parent / "module.py").touch()
    changed = version_of(tmp_path)
    assert re.fullmatch(re.escape(first) + r"\.changed\d{14}", changed)
    second_hash = commit(tmp_path, "2026-01-02T03:04:06Z")
    second = version_of(tmp_path)
    assert second == f"1.2.3+20260102030406.g{second_hash}"
    assert_rising(plain, first, changed, second, "1.2.4")


def test_wheel_is_taken_again_where_it_is_of_the_same(tmp_path: Path) -> None:
    """By who builds the package; for any other it would be of other sources, or run nowhere."""
    version, python = "1.2.3+20260102030405.g0123456789", sys.executable
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
    plain = tag.removesuffix(sys.abiflags)

    def wheel(version: str, tag: str) -> Path:
        made = tmp_path / f"plog-{version}-{plain}-{tag}-manylinux_2_35_x86_64.whl"
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr("plog/__init__.py", "")
        return made

    def taken(version: str) -> str:
        return of_library("wheel_of", version, python, tmp_path, cwd=tmp_path)

    assert taken(version) == ""
    wheel(version, "abi3")
    wheel(f"{version}0", tag)
    for untold in ("1.2.3", f"{version}.changed20260102030406"):
        wheel(untold, tag)
        assert taken(untold) == ""
    assert taken(version) == ""
    same = wheel(version, tag)
    assert taken(version) == str(same)
    same.write_bytes(same.read_bytes()[:-1])  # whoever built it was ended
    assert taken(version) == ""


def test_what_is_asked_for_is_of_the_python_that_builds(tmp_path: Path) -> None:
    python = executable(
        tmp_path / "python9.9", 'case "$*" in *ensurepip* | *Python.h*) exit 1 ;; esac'
    )
    executable(tmp_path / "java", "exit 127")
    executable(tmp_path / "sudo", 'exec "$@"')
    executable(tmp_path / "apt-get", 'case "$*" in *install*) echo "asked: $*"; exit 1 ;; esac')
    done = subprocess.run(
        [ROOT / "bin" / "wheel", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            **os.environ,
            "PYTHON": str(python),
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
        },
    )
    assert done.returncode == 1, done.stderr
    (asked,) = re.findall("^asked: .*", done.stderr, re.MULTILINE)
    assert {"python9.9-venv", "python9.9-dev"} <= set(asked.split())
    assert "jre" not in asked


# -- the wheel


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both are put, as they are by default: the package may take the wheel that is there."""
    return tmp_path_factory.mktemp("dist")


@pytest.fixture(scope="module")
def wheel(dist: Path, without_java: dict[str, str]) -> Path:
    # As some do build.
    run(ROOT / "bin" / "wheel", dist, timeout=BUILD_TIMEOUT_S, umask=0o077, env=without_java)
    (made,) = dist.glob("*.whl")
    return made


def make_environment(venv: Path, *wanted: object, beside: Sequence[str] = ()) -> None:
    """Make an environment that has nothing, and have the pip that runs here install this into it.

    Args:
        beside: packages that are there already: links to those that are installed here.
    """
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    (packages,) = venv.glob("lib/*/site-packages")
    for name in beside:
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {".."}:
            (packages / top).symlink_to(distribution(name).locate_file(top))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    pip = sys.executable, "-m", "pip", "--python", venv / "bin" / "python"
    quick = "--disable-pip-version-check", "--no-compile"
    # pip would upgrade a package through its link. Pinned, one that does not do is an error.
    pins = venv / "pins.txt"
    pins.write_text("".join(f"{name}=={distribution(name).version}\n" for name in beside))
    run(*pip, "install", *quick, "-c", pins, *wanted, timeout=300, env=environment)


@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_wheel_carries_its_libraries_and_works_alone(wheel: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for library in ("lz4", "zstd", "snappy"):
        assert [name for name in names if name.startswith(f"plog.libs/lib{library}")], names
    assert "manylinux" in wheel.name
    venv = tmp_path / "venv"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    # No package of another kind, as pip would have to build it.
    make_environment(venv, "--only-binary", ":all:", wheel)
    said = run(
        venv / "bin" / "python",
        "-c",
        "from plog._native import codec_lz4, compression; print(compression.__file__)",
        cwd=tmp_path,
        env=environment,
    )
    assert said.startswith(str(venv))
    assert "Run a broker." in run(venv / "bin" / "plog", "--help", cwd=tmp_path, env=environment)
    assert run(venv / "bin" / "python", "-c", MATCH, cwd=tmp_path, env=environment) == "aa\n"
    linked = run("ldd", *venv.glob("lib/*/site-packages/plog/_native/codec_*.so"))
    for library in ("lz4", "zstd", "snappy"):
        (place,) = set(re.findall(rf"lib{library}\S* => (\S+)", linked))
        assert place.startswith(str(venv)), linked
    assert "not found" not in linked
    assert int(run(venv / "bin" / "python", "-c", IMPORTS, cwd=tmp_path, env=environment)) > 100

    version = wheel.name.split("-")[1]
    if shutil.which("git") and (ROOT / ".git").exists():
        assert re.fullmatch(BUILT_VERSION, version)
    plog = venv / "bin" / "plog"
    told = run(plog, "--version", cwd=tmp_path, env=environment)
    assert told == f"plog, version {version}\n"
    broker = BrokerProcess(
        tmp_path / "broker", launcher=[str(plog), "server"], environment={"PYTHONPATH": ""}
    )
    broker.directory.mkdir()
    lines = [f"line {number} of many\n" for number in range(1000)]
    with broker:
        environment["PLOG_BOOTSTRAP_SERVER"] = broker.bootstrap
        for codec in CODECS:
            # Of the wheel's client, and of its broker, which compresses anew.
            of_client, of_broker = f"of-client-{codec}", f"of-broker-{codec}"
            tool = {"cwd": tmp_path, "env": environment}
            run(plog, "topics", "create", of_client, **tool)
            with Admin(broker.bootstrap) as admin:
                kind = "uncompressed" if codec == "none" else codec
                admin.create_topic(of_broker, configs={"compression.type": kind})
            arguments = "--compression", codec, "--linger-ms", 1000
            run(plog, "produce", of_client, *arguments, input="".join(lines), **tool)
            sent = [Sent(None, line.rstrip("\n").encode()) for line in lines]
            Confluent().produce(broker.bootstrap, of_broker, sent)
            found = Confluent().consume(broker.bootstrap, of_client, len(lines))
            assert [record.value for record in found] == [record.value for record in sent]
            assert run(plog, "consume", of_broker, "--exit-at-end", **tool) == "".join(lines)
            for topic in (of_client, of_broker):
                written = (broker.log_dirs[0] / f"{topic}-0" / f"{0:020}.log").read_bytes()
                assert {header.codec for header in batch.scan(written)} == {
                    record_batch.CODECS[codec]
                }
    assert f"plog {version} listening on" in broker.log


@pytest.mark.spark
@pytest.mark.timeout(BUILD_TIMEOUT_S + SPARK_TIMEOUT_S)
def test_spark_finds_the_format_of_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    bin_ = venv / "bin"
    environment = {key: value for key, value in os.environ.items() if "PYTHON" not in key}
    # As when it is activated.
    environment |= {"PATH": f"{bin_}:{environment['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"SPARK_HOME": str(make_spark_home()), "JAVA_TOOL_OPTIONS": QUICK_JVM}
    make_environment(venv, f"{wheel}[spark]", beside=("pyspark", "py4j", "pyarrow"))
    directory = tmp_path / "broker"
    directory.mkdir()
    with BrokerProcess(directory) as broker:
        command = bin_ / "python", "-c", SPARK, broker.bootstrap
        said = run(*command, timeout=SPARK_TIMEOUT_S, cwd=tmp_path, env=environment)
    place, total, copied = said.splitlines()
    assert place.startswith(str(venv))
    assert str(float(sum(range(1000)))) in total
    assert copied == "1000"


# -- the image


@pytest.fixture(scope="module")
def images(
    wheel: Path, host: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Images, str]]:
    """Build the image; yield the images and its name."""
    needs("buildah")
    made = Images(tmp_path_factory.mktemp("images"))
    made.make_base("localhost/base", host)
    given = {"BUILDER": "buildah", "BASE": "localhost/base", "IMAGE": "localhost/plog-of-tests"}
    (python,) = host.glob("usr/bin/python3.[0-9]*[0-9]")
    if f"-{python.name.replace('python', 'cp').replace('.', '')}-" not in wheel.name:
        # The base has the distribution's Python, the checkout another one.
        place = tmp_path_factory.mktemp("wheel-for-the-base")
        run(ROOT / "bin" / "wheel", place, timeout=BUILD_TIMEOUT_S,
            env={**os.environ, "PYTHON": f"/usr/bin/{python.name}"})  # fmt: skip
        (wheel,) = place.glob("*.whl")
    said = run(ROOT / "bin" / "image", wheel, timeout=BUILD_TIMEOUT_S, env=made.environment | given)
    yield made, said.splitlines()[-1]
    made.run("rmi", "--all", "--force")


@pytest.mark.timeout(BUILD_TIMEOUT_S + MIRROR_TIMEOUT_S)
def test_container_starts_is_healthy_serves_clients_and_stops(
    images: tuple[Images, str],
) -> None:
    storage, name = images
    place, _, version = name.partition(":")
    assert place == "localhost/plog-of-tests"
    port, page = free_port(), free_port()
    variables = {
        "KAFKA_LISTENERS": f"HOST://127.0.0.1:{port},CONTROLLER://:1",
        "KAFKA_ADVERTISED_LISTENERS": f"HOST://127.0.0.1:{port}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "HOST:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "HOST",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_NODE_ID": "7",
        "PLOG_METRICS_LISTENER": f"127.0.0.1:{page}",
        "PLOG_BOOTSTRAP_SERVER": f"127.0.0.1:{port}",
    }
    with storage.mounted(name) as (root, config):
        assert config["User"] == "1000:1000"
        assert config["StopSignal"] == "SIGTERM"
        assert set(config["ExposedPorts"]) == {"9092/tcp", "9095/tcp"}
        assert set(config["Volumes"]) == {"/var/lib/plog"}
        # The image has no compiler and no pip of its own beside the base's.
        assert not list((root / "opt/plog").rglob("site-packages/pip"))
        kind, *health = config["Healthcheck"]["Test"]
        assert kind == "CMD"
        container = Container(root, config, variables, [*config["Entrypoint"], *config["Cmd"]])
        try:
            # A tag has no plus sign.
            container.wait_for(f"{version.partition('-')[2]} listening on HOST://127.0.0.1:{port}")
            assert container.execute(*health) == (0, "healthy\n")
            records = [Sent(b"k", b"in a container")]
            Confluent().produce(f"127.0.0.1:{port}", "t", records)
            assert container.execute("plog", "consume", "t", "--exit-at-end") == (
                0,
                "in a container\n",
            )
            with Admin(f"127.0.0.1:{port}") as admin:
                assert [node.node_id for node in admin.nodes()] == [7]
            assert container.stop(signal.SIGTERM)[0] == 0
            status, said = container.execute(*health)
            assert status == 1
            assert f"plog: 127.0.0.1:{page}/healthz: Connection refused" in said
        finally:
            container.close()
        owner = (root / "var/lib/plog/data/meta.properties").stat()
        assert (owner.st_uid, owner.st_gid) == (1000, 1000)


@pytest.mark.parametrize(
    ("name", "builder", "reason"),
    [
        ("plog-1.0.tar.gz", "true", "not a wheel of plog: "),
        ("plog-1.0-cp399-cp399-linux_x86_64.whl", "true", "needs python3.99, for which "),
        ("plog-1.0-cp399-cp399-linux_x86_64.whl", "no-such-builder", "needs no-such-builder\n"),
        (None, "true", "no such file: "),
    ],
)
def test_image_names_what_it_cannot_be_built_from(
    tmp_path: Path, name: str | None, builder: str, reason: str
) -> None:
    if name is not None:
        (tmp_path / name).touch()
    done = subprocess.run(
        [ROOT / "bin" / "image", tmp_path / (name or "missing.whl")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "BUILDER": builder},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(reason)


def test_compose_file_is_one_that_compose_accepts() -> None:
    needs("docker-compose")
    place = ROOT / "config" / "container"
    found = yaml.safe_load(run("docker-compose", "-f", place / "compose.yml", "config"))
    plog, prometheus = found["services"]["plog"], found["services"]["prometheus"]
    # Its variables make a broker that both networks reach.
    given = {key: str(value) for key, value in plog["environment"].items()}
    settings, warnings = read(place / "server.properties", environment=given)
    assert warnings == []
    assert {(one.port, one.advertised_host) for one in settings.parsed_listeners()} == {
        (9092, "localhost"),
        (19092, "plog"),
    }
    # Prometheus reads the page of that service.
    scraping = yaml.safe_load((place / "prometheus.yml").read_text())
    assert settings.metrics_listener == ("0.0.0.0", 9095)
    assert scraping["scrape_configs"][0]["static_configs"] == [{"targets": ["plog:9095"]}]
    mounted = [
        one["source"] if isinstance(one, dict) else one.partition(":")[0]
        for one in prometheus["volumes"]
    ]
    assert Path(mounted[0]) == place / "prometheus.yml"
    (rules,) = scraping["rule_files"]
    assert Path(mounted[1]).samefile(ROOT / "config" / rules)


# -- the Debian package


@pytest.fixture(scope="module")
def package(dist: Path, without_java: dict[str, str]) -> Path:
    needs("dpkg-deb")
    # As some do build.
    environment = without_java | QUICK_PACKAGE
    run(ROOT / "bin" / "deb", dist, timeout=BUILD_TIMEOUT_S, umask=0o077, env=environment)
    (made,) = dist.glob("*.deb")
    return made


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root directory with the distribution's essential packages and its Python."""
    root = tmp_path_factory.mktemp("host") / "root"
    fill(root)
    try:
        run(*inside(root, "true"))
    except AssertionError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    return root


def fill(root: Path) -> None:
    """Have mmdebstrap fill it; skip where its mirror cannot be reached, and only there."""
    needs(*HOST_NEEDS)
    if os.geteuid() != 0:
        pytest.skip("a chroot needs root")
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    try:
        run(
            "mmdebstrap", *SMALLEST, release, root, *MIRROR,
            timeout=MIRROR_TIMEOUT_S, env={**os.environ, **QUICK_DPKG, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        pytest.skip(f"a root directory is not to be had: {error}")
    except AssertionError as error:
        reasons = NOT_GOT.findall(str(error))
        if reasons and all(OUT_OF_REACH.search(one) for one in reasons):
            pytest.skip(f"a root directory is not to be had: {reasons[-1]}")
        raise


def inside(host: Path, *command: object, user: str = "root") -> list[str]:
    """Return the command line that runs a command in the host, which has /proc meanwhile."""
    arguments = host, f"{user}:{user}", *command
    return ["unshare", "--mount", "sh", "-c", INSIDE, "inside", *map(str, arguments)]


class Installed:
    """A broker of the package, in its host, started with the words and as the user of its unit.

    Of an instance by plog@.service, else by plog.service.
    """

    def __init__(self, host: Path, instance: str = "") -> None:
        self.host, self.instance = host, instance
        self.port, self.metrics_port = free_port(), free_port()

    def __enter__(self) -> Installed:
        overrides = (
            f"listeners=PLAINTEXT://127.0.0.1:{self.port}",
            f"metrics.listener=127.0.0.1:{self.metrics_port}",
        )
        unit = self.host / INSTALLED / ("plog@.service" if self.instance else "plog.service")
        (started,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), re.MULTILINE)
        (user,) = re.findall(r"^User=(.+)$", unit.read_text(), re.MULTILINE)
        command = shlex.split(started.replace("%i", self.instance))
        for override in overrides:
            command += ["--override", override]
        self._process = subprocess.Popen(
            inside(self.host, *command, user=user),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": PATHS, "LANG": "C.UTF-8"},
        )
        deadline = time.monotonic() + 60
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "listening on" in line:
                break
            assert time.monotonic() < deadline, line
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        _, said = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, said

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        """What its metrics page says."""
        address = f"http://127.0.0.1:{self.metrics_port}/metrics?name[]=plog_build_info"
        with urllib.request.urlopen(address, timeout=60) as answer:
            (version,) = re.findall(
                r'\{version="(.*)"\} 1\.0$', answer.read().decode(), re.MULTILINE
            )
        return version


NAMED = re.compile(r"(?<![\w./:@-])(?:~?/)?(?:[\w.@-]+/)+[\w.@*-]*")
"""A word of a page that may be a path."""
PACKAGED = ("/opt/plog", "/usr/share/doc/plog", "/usr/share/plog", "/usr/bin", "/usr/lib")
"""Where the package has all files that a page may name, beside the settings in /etc/plog."""


def dangling(pages: Path, root: Path | None = None) -> list[str]:
    """Return the links and paths of the pages in a directory that lead to no file.

    Relative paths are those that begin with a folder of the checkout.
    Absolute paths are looked up below `root` where it is given.
    """
    own = {path.name for path in ROOT.iterdir()} - {"build"}
    wrong = []
    for page in sorted(pages.rglob("*.md")):
        text = page.read_text("utf-8")
        for link in links(text):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
                wrong.append(f"{page.name}: {link}")
        for found in NAMED.findall(text):
            named = found.rstrip(".")
            if named.startswith(PACKAGED):
                exists = (
                    root is None or (root / named[1:]).is_symlink() or (root / named[1:]).exists()
                )
            elif named.startswith("/etc/plog/") and root is not None:
                exists = named.endswith("/NAME.properties") or (root / named[1:]).exists()
            else:
                exists = named.partition("/")[0] not in own or (pages / named).exists()
            if not exists:
                wrong.append(f"{page.name}: {named}")
        # Files beside those folders, and pages that are named without a folder.
        for named in re.findall(r"[\w-]+\.(?:md|toml|pyx|sh)\b", text):
            known = (ROOT / named).exists() or (ROOT / "docs" / named).exists()
            if known and not list(pages.rglob(named)):
                wrong.append(f"{page.name}: {named}")
        wrong += [f"{page.name}: {word}" for word in re.findall(r"\bcheckout\b", text)]
    return wrong


def test_pages_of_the_package_name_files_that_it_has(tmp_path: Path) -> None:
    of_library("install_pages", tmp_path, cwd=ROOT)
    assert dangling(tmp_path) == []
    assert {path.name for path in (tmp_path / "examples").glob("*.py")} == {
        path.name for path in (ROOT / "examples").glob("*.py")
    }
    text = (tmp_path / "docs/OPERATIONS.md").read_text("utf-8")
    assert "### In a container" in text, "a block of lines has no end"


def test_files_that_a_package_lacks_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/SPARK.md").touch()
    (tmp_path / "page.md").write_text(
        "[good](docs/SPARK.md) [bad](docs/NONE.md) [bad](#none) `bin/test` tests/cli,\n"
        "`docs/SPARK.md` TESTING.md or SPARK.md, pyproject.toml: /opt/plog/bin/plog\n"
        "in a checkout; https://example.org/bin/x\n"
    )
    assert dangling(tmp_path, tmp_path) == [
        "page.md: docs/NONE.md",
        "page.md: #none",
        "page.md: docs/NONE.md",
        "page.md: bin/test",
        "page.md: tests/cli",
        "page.md: /opt/plog/bin/plog",
        "page.md: TESTING.md",
        "page.md: pyproject.toml",
        "page.md: checkout",
    ]


@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_pages_in_the_package_name_files_that_it_has(package: Path, tmp_path: Path) -> None:
    run("dpkg-deb", "-x", package, tmp_path)
    assert dangling(tmp_path / "usr/share/doc/plog", tmp_path) == []
    assert_shell_files(tmp_path)


def assert_shell_files(root: Path) -> None:
    """Check the completion and the manual pages in a package's files."""
    share = root / "usr/share"
    for shell, place in (
        ("bash", "bash-completion/completions/plog"),
        ("zsh", "zsh/vendor-completions/_plog"),
        ("fish", "fish/vendor_completions.d/plog.fish"),
    ):
        assert (share / place).read_text("utf-8") == SHELLS[shell].script
    pages = {path.name: gzip.decompress(path.read_bytes()) for path in share.glob("man/man1/*")}
    assert pages.keys() == {"plog.1.gz", *(f"plog-{name}.1.gz" for name in COMMANDS)}
    assert all(text.startswith(b".TH ") for text in pages.values())
    assert not list(root.rglob("__pycache__"))


def test_completion_and_manual_pages_are_where_shells_and_man_look(tmp_path: Path) -> None:
    lib = tmp_path / "opt/plog/lib"
    lib.mkdir(parents=True)
    (lib / "plog").symlink_to(ROOT / "plog")
    of_library("install_shell_files", tmp_path, sys.executable, cwd=ROOT)
    assert_shell_files(tmp_path)


@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_package_is_of_roots_modes_whatever_builds_it(package: Path) -> None:
    listed = run("dpkg-deb", "-c", package).splitlines()
    assert {line.split()[0] for line in listed if line[0] != "l"} == {
        "drwxr-xr-x",
        "-rwxr-xr-x",
        "-rw-r--r--",
    }
    assert {line.split()[1] for line in listed} == {"root/root"}


@pytest.fixture
def tree(package: Path, tmp_path: Path) -> Path:
    """The package's files, in a directory that has the targets of every host."""
    needs("systemd-analyze")
    run("dpkg-deb", "-x", package, tmp_path)
    add_units_of_every_host(tmp_path)
    return tmp_path


@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_systemd_finds_nothing_wrong_with_the_packages_units(tree: Path) -> None:
    units = {path.name for path in (tree / INSTALLED).glob("*.service")}
    assert units == {"plog.service", "plog@.service"}
    for unit in ("plog.service", "plog@one.service"):
        assert complaints(tree, unit) == ""
    for unit in units:
        assert exposure(tree / INSTALLED / unit) <= EXPOSURE
    # It looks for what they start, too.
    (tree / "opt/plog/bin/plog").chmod(0o644)
    assert "is not executable" in complaints(tree, "plog.service")


@pytest.mark.timeout(BUILD_TIMEOUT_S)
def test_every_file_of_settings_in_the_package_is_the_administrators(
    package: Path, tmp_path: Path
) -> None:
    run("dpkg-deb", "-R", package, tmp_path)
    settings = {f"/{path.relative_to(tmp_path)}" for path in (tmp_path / "etc").rglob("*.*")}
    assert settings == {"/etc/plog/client.properties", "/etc/plog/server.properties"}
    assert set((tmp_path / "DEBIAN/conffiles").read_text().split()) == settings


def lines_of(path: Path) -> list[list[str]]:
    """Return the words of the lines of a file of sysusers.d or tmpfiles.d."""
    return [shlex.split(line) for line in path.read_text().splitlines() if line[0] != "#"]


def assert_made_as_systemd_would(host: Path) -> None:
    """Hold the user and the directories of an installed package against its own files for systemd.

    The package does not need systemd to make them; where it runs, it must find nothing to do.
    """

    def found(file: str) -> dict[str, list[str]]:
        lines = (line.split(":") for line in (host / "etc" / file).read_text().splitlines())
        return {line[0]: line for line in lines}

    ((kind, name, _, comment, home),) = lines_of(host / "usr/lib/sysusers.d/plog.conf")
    assert kind == "u"
    _, password, uid, gid, *made = found("passwd")[name]
    assert made == [comment, home, "/usr/sbin/nologin"]  # sysusers' default for who is not root
    assert password == "x"
    assert found("shadow")[name][1][0] in "!*"
    assert found("group")[name][2:] == [gid, ""]
    assert 0 < int(uid) < 1000
    for kind, path, mode, user, group, age in lines_of(host / "usr/lib/tmpfiles.d/plog.conf"):
        assert (kind, age) == ("d", "-")
        made_there = (host / path[1:]).stat()
        assert made_there.st_mode & 0o7777 == int(mode, 8), path
        assert made_there.st_uid == int(found("passwd")[user][2]), path
        assert made_there.st_gid == int(found("group")[group][2]), path


def later_release(package: Path, out: Path) -> Path:
    """Return the same package with a higher version and another default in its settings."""
    tree = out / "tree"
    run("dpkg-deb", "-R", package, tree)
    for name, key, value in (
        ("DEBIAN/control", "Version: ", LATER_VERSION),
        ("opt/plog/lib/plog/__init__.py", "__version__ = ", f'"{LATER_VERSION}"'),
    ):
        text = (tree / name).read_text()
        changed, count = re.subn(f"^{key}.*", key + value, text, flags=re.MULTILINE)
        assert count == 1
        (tree / name).write_text(changed)
    settings = tree / "etc/plog/server.properties"
    changed = settings.read_text().replace("log.retention.hours=168", "log.retention.hours=169")
    assert changed != settings.read_text()
    settings.write_text(changed)
    with (tree / "etc/plog/client.properties").open("a") as client:
        client.write(LATER_LINE)
    made = out / f"plog_{LATER_VERSION}.deb"
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, made)
    return made


@pytest.mark.timeout(BUILD_TIMEOUT_S + MIRROR_TIMEOUT_S)
def test_package_is_installed_upgraded_and_removed(
    package: Path, host: Path, tmp_path: Path
) -> None:
    shutil.copy(package, host / "plog.deb")
    shutil.copy(later_release(package, tmp_path), host / "later.deb")

    asked = host / "asked"

    def within(*command: object, user: str = "root") -> str:
        asked.write_text("")
        return run(*inside(host, *command, user=user), env={"PATH": PATHS, **QUICK_DPKG})

    def install(name: str, *options: str) -> None:
        """By the documented command; where apt would ask about a file of settings, it is kept."""
        keep = "--option", "Dpkg::Options::=--force-confold"
        command = "apt-get", "install", "--yes", *keep, *options, name
        within("env", "DEBIAN_FRONTEND=noninteractive", *command)

    def installed_version() -> str:
        (told,) = re.findall(r"^plog, version (\S+)$", within("plog", "--version"), re.MULTILINE)
        assert within("dpkg-query", "-W", "-f", "${Version}", "plog") == told
        return told

    def byte_code() -> list[Path]:
        return list((host / "opt/plog/lib/plog").glob("__pycache__/*.pyc"))

    (host / "run/systemd/system").mkdir(parents=True)
    (host / "usr/bin/systemctl").write_text(SYSTEMCTL)
    (host / "usr/bin/systemctl").chmod(0o755)

    install("/plog.deb")
    assert asked.read_text().splitlines() == ["daemon-reload"]
    assert byte_code()
    assert_made_as_systemd_would(host)
    conffiles = within("dpkg-query", "-W", "-f", "${Conffiles}", "plog").split()[::2]
    assert sorted(conffiles) == ["/etc/plog/client.properties", "/etc/plog/server.properties"]
    built = installed_version()
    assert package.name.split("_")[1] == built
    if shutil.which("git") and (ROOT / ".git").exists():
        assert re.fullmatch(BUILT_VERSION, built)
    assert (
        within("python3", "-c", f"import sys; sys.path.append('/opt/plog/lib'); {MATCH}") == "aa\n"
    )

    # What systemd makes for an instance (StateDirectory=).
    one = Path("/var/lib/plog/one")
    within("install", "-d", "-o", "plog", "-g", "plog", "-m", "750", one)
    (host / "etc/plog/one.properties").write_text(f"broker.id=1\nlog.dirs={one}/data\n")
    for name in ("server", "one"):
        free = f"listeners=PLAINTEXT://127.0.0.1:{free_port()}"
        properties = f"/etc/plog/{name}.properties"
        # Status 0, as the broker would start; what the unit lets it write is looked at, too.
        found = json.loads(
            within("plog", "doctor", properties, "--override", free, "--json", user="plog")
        )
        assert [each for each in found if "does not let the broker write" in each["text"]] == []
        assert "is on" in " ".join(each["text"] for each in found)

    records = [Sent(b"k", b"kept")]
    with Installed(host) as broker, Installed(host, "one") as other:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", configs={"retention.ms": "-1"})  # its records are old
        Confluent().produce(broker.bootstrap, "t", records)
        with Admin(other.bootstrap) as admin:
            assert "t" not in admin.topics()
        assert {broker.version, other.version} == {built}
        for command in ("produce", "latency"):
            arguments = "--seconds", "1", "--json", "--bootstrap-server", other.bootstrap
            told = json.loads(within("plog", "perf", command, *arguments, user="plog"))
            assert told["records"] > 0
        page = f"127.0.0.1:{other.metrics_port}"
        once = "--every", "1", "--count", "1", "--json"
        assert "apis" in json.loads(within("plog", "top", "--metrics", page, *once, user="plog"))
        examples = host / "usr/share/doc/plog/examples"
        asked_of = {"PLOG_BOOTSTRAP_SERVER": broker.bootstrap, "PATH": PATHS, "LANG": "C.UTF-8"}
        within("plog", "topics", "create", "greetings", "-b", broker.bootstrap)
        within("plog", "kafka-scripts", "/tmp/kafka")
        listed = within("/tmp/kafka/kafka-topics", "--bootstrap-server", broker.bootstrap, "--list")
        assert "greetings" in listed.splitlines()
        with Producer(broker.bootstrap) as producer:
            producer.send("greetings", b"hello").result()
        # By the commands of their page.
        ((_, shown),) = BLOCK.findall((examples / "README.md").read_text("utf-8"))
        assert set(re.findall(r"/examples/(\w+\.py)", shown)) == {
            path.name for path in examples.glob("*.py")
        }
        shown = re.sub(r"(\.py .*)", rf"\1 --bootstrap-server {broker.bootstrap}", shown)
        said = run(*inside(host, "sh", "-ec", shown, user="plog"), env=asked_of)
        assert said == "HELLO\n"
        for topic in ("shouted-1", "shouted-2"):
            (record,) = Confluent().consume(broker.bootstrap, topic, 1)
            assert record.value == b"HELLO"
    settings, client = (
        host / "etc/plog" / name for name in ("server.properties", "client.properties")
    )
    own = settings.read_text().replace("log.retention.hours=168", "log.retention.hours=170")
    settings.write_text(own)

    install("/later.deb")
    # One that cannot be restarted is no reason for dpkg to fail, and no start is waited for.
    assert "--no-block try-restart plog.service plog@*.service" in asked.read_text().splitlines()
    assert installed_version() == LATER_VERSION
    assert settings.read_text() == own
    offered = settings.with_name("server.properties.dpkg-dist")
    assert "log.retention.hours=169" in offered.read_text()
    assert client.read_text().endswith(LATER_LINE)
    with Installed(host) as broker:
        assert broker.version == LATER_VERSION
        assert Confluent().consume(broker.bootstrap, "t", 1) == records
        Confluent().produce(broker.bootstrap, "t", records)

    install("/plog.deb", "--allow-downgrades")  # and back
    assert installed_version() == built
    with Installed(host) as broker:
        assert Confluent().consume(broker.bootstrap, "t", 2) == records * 2

    assert settings.read_text() == own
    assert not client.read_text().endswith(LATER_LINE)

    # As dpkg does when it gives an upgrade up.
    within("/var/lib/dpkg/info/plog.prerm", "upgrade", LATER_VERSION)
    assert not byte_code()
    within("/var/lib/dpkg/info/plog.postinst", "abort-upgrade", LATER_VERSION)
    assert byte_code()

    wanted = host / "etc/systemd/system/multi-user.target.wants"
    wanted.mkdir(parents=True, exist_ok=True)
    for name in ("plog.service", "plog@one.service", "other.service"):
        (wanted / name).symlink_to("/dev/null")
    within("dpkg", "-r", "plog")
    assert asked.read_text().splitlines() == [
        "stop plog.service plog@*.service",
        "disable plog.service plog@.service",
        "daemon-reload",
    ]
    assert not (host / "opt/plog").exists()
    assert settings.exists()
    within("dpkg", "-P", "plog")
    assert not settings.exists()
    left = {path.name for path in wanted.iterdir()}
    assert "other.service" in left
    assert not left & {"plog.service", "plog@one.service"}
    assert (host / "var/lib/plog/data/t-0").is_dir()
