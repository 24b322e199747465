"""Finds out why Spark would not find the format "plog" on this host, without starting Spark.

Owns the places where Spark looks: the Python that it asks, the modules that it imports there, Java,
and the release of Spark. For most of these faults Spark itself reports only DATA_SOURCE_NOT_FOUND.
Changes nothing, and starts only the Pythons that Spark would start, and its spark-env.sh.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from plog import __version__
from plog.ops.doctor.findings import Finding, Findings, Verdict

OLDEST_SPARK = (4, 2)
OLDEST_PYARROW = (18,)
"""The same as in pyproject.toml; a test compares them."""
OLDEST_PYTHON = (3, 11)
OLDEST_JAVA = 17
SOURCE = "pyspark_plog"
DRIVERS, WORKERS = "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"
DEFAULT_PYTHON = "python3"
VECTOR = "jdk.incubator.vector"
"""Spark's launcher passes this module to Java, which does not start without it."""
PROBE = Path(__file__).with_name("spark_probe.py")
PROBE_S = 60.0
SETTABLE = ("SPARK_HOME", "JAVA_HOME", DRIVERS, WORKERS, "PYTHONPATH", "PATH")
"""Variables that matter here and that spark-env.sh may set."""
LOAD = "set -a; . ${SPARK_CONF_DIR}/spark-env.sh >&2; set +a; command -p env -0"
"""Like Spark's bin/load-spark-env.sh, which ignores the status of the file's last command."""
LOAD_S = 20.0
REGISTER = "plog.spark.session.register(spark) does not need the search"

Version = tuple[int, ...]


def examine_spark(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Check what Spark would find if it were started with this environment."""
    return find_python(environment)[1]


def find_python(environment: Mapping[str, str] = os.environ) -> tuple[str | None, list[Finding]]:
    """Return the Python in which Spark finds the format, and the findings; None if there is none.

    Args:
        environment: the environment that Spark would start with.
    """
    here = _pyspark_here()
    environment, found = _loaded(_home(environment, here), environment)
    home = _home(environment, here)
    variable, named = _asked(environment)
    there = _probe(named, home, environment)
    if home is None and isinstance(there, Probed):
        home = there.spark_home
    found += [*_java(environment), *_spark(home, here, environment)]
    found += _search(variable, named, there)
    if variable == DRIVERS:
        found += _workers(environment, home, there)
    if any(one.verdict is Verdict.FAILURE for one in found):
        return None, found
    return shutil.which(named, path=environment.get("PATH", os.defpath)), found


# -- spark-env.sh ------------------------------------------------------------------------------


def _home(environment: Mapping[str, str], here: Path | None) -> Path | None:
    return Path(environment["SPARK_HOME"]) if environment.get("SPARK_HOME") else here


def _loaded(
    home: Path | None, environment: Mapping[str, str]
) -> tuple[Mapping[str, str], list[Finding]]:
    """Return the environment that Spark's scripts make of this one, and a finding about it."""
    conf = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    file, what = f"{conf}/spark-env.sh", "spark-env.sh"
    if not conf or environment.get("SPARK_ENV_LOADED") or not os.path.isfile(file):
        return environment, []
    given = {**environment, "SPARK_CONF_DIR": conf, "SPARK_HOME": str(home or "")}
    after = _sourced({**given, "SPARK_ENV_LOADED": "1"})
    if isinstance(after, str):
        text = f"{file} {after}: checking the environment without it"
        return environment, [Finding(what, Verdict.WARNING, text, "fix or remove it")]
    names = [name for name in SETTABLE if after.get(name) != given.get(name)]
    if "SPARK_HOME" not in names and not environment.get("SPARK_HOME"):
        after.pop("SPARK_HOME", None)  # set above, neither by the user nor by the file
    text = f"changes {', '.join(names)}: it overrides the exported values; change them there"
    text = text if names else f"changes none of {', '.join(SETTABLE)}"
    return after, [Finding(what, Verdict.OK, f"{file} {text}")]


def _sourced(given: Mapping[str, str]) -> dict[str, str] | str:
    """Run spark-env.sh as Spark does; return the environment after it, or the fault."""
    # The output is a file: processes that spark-env.sh leaves running would keep a pipe open.
    with TemporaryFile() as out:
        try:
            bash = subprocess.Popen(
                ["bash", "-c", LOAD, f"{given['SPARK_HOME']}/bin/spark-class"],
                env=given, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as fault:
            return f"cannot be run: bash does not start ({fault.strerror})"
        try:
            status = bash.wait(LOAD_S)
        except subprocess.TimeoutExpired:
            return f"does not end within {LOAD_S:g} s"
        finally:
            if bash.poll() is None:
                os.killpg(bash.pid, signal.SIGKILL)
                bash.wait()
        out.seek(0)
        entries = (os.fsdecode(entry).partition("=") for entry in out.read().split(b"\0"))
        after = {name: value for name, is_set, value in entries if is_set}
    return after if "SPARK_ENV_LOADED" in after else f"ends Spark's scripts with status {status}"


# -- Spark and Java ----------------------------------------------------------------------------


def _pyspark_here() -> Path | None:
    """Return the directory of this Python's pyspark, without importing it."""
    spec = find_spec("pyspark")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _spark(home: Path | None, here: Path | None, environment: Mapping[str, str]) -> Findings:
    if home is None:
        text = f"pyspark is not installed for {sys.executable}, and SPARK_HOME is not set"
        yield Finding("Spark", Verdict.FAILURE, text, _install(sys.executable))
        return
    name = f"SPARK_HOME={home}" if environment.get("SPARK_HOME") else str(home)
    release = _release_of_jars(home)
    if not release:
        text = f"{name}: no Spark found (jars/spark-core_*.jar)"
        yield Finding(
            "Spark", Verdict.FAILURE, text, "unset SPARK_HOME, or set it to Spark's directory"
        )
        return
    if _version(release)[:2] < OLDEST_SPARK:
        text = f"{name} is Spark {release}; plog's source needs {_text(OLDEST_SPARK)} or newer"
        yield Finding("Spark", Verdict.FAILURE, text, "change SPARK_HOME, or upgrade pyspark")
        return
    yield Finding("Spark", Verdict.OK, f"{name} is Spark {release}")
    if not environment.get("SPARK_HOME"):
        return
    if here is None:
        text = f"{sys.executable} has no pyspark of its own: start jobs with spark-submit"
        yield Finding("Spark", Verdict.OK, text)
        return
    own = _release_of_package(here)
    if own != release:
        is_near = _version(own)[:2] == _version(release)[:2]
        text = f"SPARK_HOME is Spark {release}, but pyspark for {sys.executable} is {own}"
        advice = f"unset SPARK_HOME, or pip install pyspark=={release}"
        verdict = Verdict.WARNING if is_near else Verdict.FAILURE
        yield Finding("Spark", verdict, text, advice)


def _release_of_jars(home: Path) -> str:
    """Return the release of the Spark in a directory; "" if there is none."""
    for jar in home.glob("jars/spark-core_*.jar"):
        return jar.stem.rpartition("-")[2] if "-" in jar.stem else ""
    return ""


def _release_of_package(package: Path) -> str:
    """Return the release of a pyspark without importing it."""
    try:
        text = (package / "version.py").read_text()
    except OSError:
        return ""
    found = re.search(r"^__version__\b[^=]*=\s*[\"']([^\"']+)", text, re.MULTILINE)
    return "" if found is None else found[1]


def _java(environment: Mapping[str, str]) -> Findings:
    home = environment.get("JAVA_HOME")
    package = f"openjdk-{OLDEST_JAVA}-jre-headless"
    advice = f"install Java {OLDEST_JAVA} or newer (Debian: {package})"
    if home:
        name, java = f"JAVA_HOME={home}", shutil.which(f"{home}/bin/java")
        if java is None:
            text = f"{name}: no executable bin/java"
            yield Finding("Java", Verdict.FAILURE, text, f"unset JAVA_HOME, or {advice}")
            return
    else:
        java = shutil.which("java", path=environment.get("PATH", os.defpath))
        if java is None:
            text = "no java on PATH, and JAVA_HOME is not set"
            yield Finding("Java", Verdict.FAILURE, text, advice)
            return
        name = java
    facts = _java_facts(Path(home) if home else Path(os.path.realpath(java)).parent.parent)
    release = facts.get("JAVA_VERSION", "")
    numbers = _version(release)
    # 1.8 is 8.
    major = numbers[1] if numbers[:1] == (1,) and len(numbers) > 1 else (numbers or (0,))[0]
    modules = facts.get("MODULES", VECTOR).split()
    if not major:
        text = f"{name}: unknown release (no readable file `release`)"
        yield Finding(
            "Java", Verdict.WARNING, text, f"check with `java -version`: {OLDEST_JAVA} or newer"
        )
    elif major < OLDEST_JAVA:
        yield Finding("Java", Verdict.FAILURE, f"{name} is Java {release}", advice)
    elif VECTOR not in modules:
        text = f"{name} is Java {release} without the module {VECTOR}, which Spark requires"
        yield Finding("Java", Verdict.FAILURE, text, advice)
    else:
        yield Finding("Java", Verdict.OK, f"{name} is Java {release}")


def _java_facts(home: Path) -> dict[str, str]:
    """Return the contents of a Java's file `release`."""
    try:
        text = (home / "release").read_text()
    except (OSError, ValueError):
        return {}
    return dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))


# -- Pythons -----------------------------------------------------------------------------------


class Probed(NamedTuple):
    """The facts that a Python reported (see `spark_probe`)."""

    executable: str
    python: Version
    modules: Mapping[str, Mapping[str, Any]]
    sources: Mapping[str, Mapping[str, Any]]

    @property
    def spark_home(self) -> Path | None:
        """The directory of its pyspark."""
        place = self.modules["pyspark"].get("file")
        return Path(place).parent if place else None


def _asked(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the variable that names the Python for Spark's search, and its value."""
    for variable in (DRIVERS, WORKERS):
        if variable in environment:
            return variable, environment[variable]
    return "", DEFAULT_PYTHON


def _probe(named: str, home: Path | None, environment: Mapping[str, str]) -> Probed | str:
    """Probe a Python, with the modules that Spark gives its workers; or return the fault."""
    program = shutil.which(named, path=environment.get("PATH", os.defpath))
    if program is None:
        return "program not found"
    own = [] if home is None else sorted((home / "python" / "lib").glob("*.zip"))
    path = [*map(str, own), *filter(None, [environment.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [program, "-c", PROBE.read_text("utf-8")],
            env={**environment, "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_S,
            check=False,
        )
        facts = json.loads(done.stdout)
        version = tuple(facts["python"])
        return Probed(facts["executable"], version, facts["modules"], facts["sources"])
    except subprocess.TimeoutExpired:
        return f"no response within {PROBE_S:g} s"
    except OSError as fault:
        return f"it does not start: {fault.strerror}"
    except (ValueError, KeyError, TypeError):
        errors = done.stderr.decode(errors="replace").strip().splitlines()
        return f"not a usable Python{': ' if errors else ''}{''.join(errors[-1:])}"


def _search(variable: str, named: str, there: Probed | str) -> Findings:
    """Report the result of Spark's search in the Python that it asks."""
    name = f"{variable}={named}" if variable else f"{named} on PATH"
    advice = f"export {WORKERS}={sys.executable}" + (f", unset {DRIVERS}" * (variable == DRIVERS))
    if not variable:
        advice += ", or activate its virtual environment, before spark-submit (session() of"
        advice += " plog.spark.session is too late there)"
    if isinstance(there, str):
        text = f"{name}, in which Spark looks for formats: {there}"
        yield Finding("Python", Verdict.FAILURE, text, advice)
        return
    release = _text(there.python)
    if there.python < OLDEST_PYTHON:
        text = f"{name} is Python {release}; plog needs {_text(OLDEST_PYTHON)} or newer"
        yield Finding("Python", Verdict.FAILURE, text, advice)
        return
    yield Finding("Python", Verdict.OK, f"Spark looks for formats in {name}, Python {release}")
    if there.python[:2] != sys.version_info[:2]:
        text = f"{name} is Python {release}, but {sys.executable} {_text(sys.version_info[:3])}:"
        text += " Spark refuses Python functions of jobs started here (PYTHON_VERSION_MISMATCH)"
        yield Finding("Python", Verdict.WARNING, text, advice)
    are_found = True
    for module, oldest in (("pyspark", OLDEST_SPARK), ("pyarrow", OLDEST_PYARROW)):
        fault = _module_fault(there.modules[module], oldest)
        if fault and "error" not in there.modules["plog"]:  # installing plog installs them
            are_found = False
            text = f"{module} in {name} {fault}"
            yield Finding(module, Verdict.FAILURE, text, _install(there.executable))
    yield from _plog(name, there, advice, is_blamed=are_found)
    yield from _others(name, there)


def _module_fault(facts: Mapping[str, Any], oldest: Version) -> str:
    """Return the fault of a module; "" for none."""
    if "error" in facts:
        return f"cannot be imported: {facts['error']}"
    if _version(facts["version"])[: len(oldest)] < oldest:
        return f"is {facts['version']}; plog needs {_text(oldest)} or newer"
    return ""


def _plog(name: str, there: Probed, advice: str, *, is_blamed: bool) -> Findings:
    """Report whether the search finds plog.

    Args:
        is_blamed: whether an import failure is plog's own, and not that of a dependency.
    """
    source, package = there.sources.get(SOURCE), there.modules["plog"]
    install = f"{advice}; or {_install(there.executable)}"
    if source is None and "error" in package:
        yield Finding("plog", Verdict.FAILURE, f"{name} has no plog ({package['error']})", install)
    elif source is None:
        text = (
            f"{name} imports plog from {package['file']}, but {SOURCE} is not a file on its path,"
        )
        text += " and Spark finds only files"
        yield Finding("plog", Verdict.FAILURE, text, _install(there.executable))
    elif "error" in source:
        if is_blamed:
            text = f"{SOURCE} in {name} fails to import: {source['error']}"
            yield Finding("plog", Verdict.FAILURE, text, install)
    elif package["version"] != __version__:
        text = f"{name} has plog {package['version']}, but {sys.executable} has {__version__}"
        same = "install the same release for drivers and workers"
        yield Finding("plog", Verdict.WARNING, text, same)
    else:
        yield Finding("plog", Verdict.OK, f"{name} has plog {__version__} ({source['file']})")


def _others(name: str, there: Probed) -> Findings:
    for module, facts in there.sources.items():
        if module == SOURCE or "error" not in facts:
            continue
        text = f"{module} in {name} fails to import, and then Spark finds no format at all:"
        advice = f"fix or uninstall {module}; or {REGISTER}"
        yield Finding("other formats", Verdict.FAILURE, f"{text} {facts['error']}", advice)


def _workers(environment: Mapping[str, str], home: Path | None, there: Probed | str) -> Findings:
    """Check the Python that runs functions and registered formats, if it is another one."""
    named = environment.get(WORKERS, DEFAULT_PYTHON)
    other = _probe(named, home, environment)
    name = f"{WORKERS}={named}" if WORKERS in environment else f"{named} on PATH"
    advice = f"export {WORKERS}=${DRIVERS}"
    if isinstance(other, str):
        text = f"{name}, in which Spark runs functions and registered formats: {other}"
        yield Finding("Python", Verdict.WARNING, text, advice)
    elif not isinstance(there, str) and other.python[:2] != there.python[:2]:
        text = f"{name} is Python {_text(other.python)}, but {DRIVERS} {_text(there.python)}:"
        text += " Spark refuses Python functions (PYTHON_VERSION_MISMATCH)"
        yield Finding("Python", Verdict.WARNING, text, advice)
    elif SOURCE not in other.sources:
        text = f"{name} has no plog: {REGISTER.partition(' ')[0]} would fail"
        yield Finding("Python", Verdict.WARNING, text, advice)


def _install(python: str) -> str:
    # A file: an index may have another package of this name.
    return f"{python} -m pip install 'plog[spark] @ file:///PATH/OF/THE.whl' (see bin/wheel)"


def _version(text: str) -> Version:
    """Return the leading numbers of a release."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return () if found is None else tuple(map(int, found[0].split(".")))


def _text(version: tuple[Any, ...]) -> str:
    return ".".join(map(str, version))
