"""`plog doctor --spark` reports whether Spark would find the format, and why not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from plog.cli.doctor import command
from plog.ops.doctor import spark as spark_checks
from plog.ops.doctor.findings import Finding, Verdict
from plog.ops.doctor.spark import examine_spark
from plog.spark.session_settings import SETTINGS
from tests.conftest import ROOT

Environment = dict[str, str]


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def java(home: Path, release: str | None, modules: str = "java.base jdk.incubator.vector") -> Path:
    """A Java with a release file, which fails if it is started."""
    script(home / "bin" / "java", "echo started >&2; exit 1")
    if release is not None:
        text = f'IMPLEMENTOR="X"\nJAVA_VERSION="{release}"\nMODULES="{modules}"\n'
        (home / "release").write_text(text)
    return home


def spark(home: Path, release: str) -> Path:
    """A directory that looks like a Spark, as far as its release."""
    (home / "jars").mkdir(parents=True)
    (home / "jars" / f"spark-core_2.13-{release}.jar").touch()
    return home


def module(path: Path, name: str, text: str) -> str:
    """Write a module; return what PYTHONPATH finds it by, before this checkout."""
    path.mkdir(exist_ok=True)
    (path / f"{name}.py").write_text(textwrap.dedent(text))
    return f"{path}{os.pathsep}{ROOT}"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Of a host on which all is well: the Python is that of the tests."""
    monkeypatch.chdir(tmp_path)  # a Python finds modules where it is started, too
    python = script(tmp_path / "bin" / "python3", f'exec {sys.executable} "$@"')
    return {
        "PATH": f"{python.parent}{os.pathsep}/bin{os.pathsep}/usr/bin",
        "JAVA_HOME": str(java(tmp_path / "java", "17.0.15")),
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the tests' own Python."""
    path = tmp_path_factory.mktemp("probe") / "answer.json"
    program = spark_checks.PROBE.read_text()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with path.open("wb") as out:
        subprocess.run([sys.executable, "-c", program], env=environment, stdout=out, check=True)
    return path


@pytest.fixture
def quick(environment: Environment, answer: Path, tmp_path: Path) -> Environment:
    """The same host, where the Python has its answer ready: for what is not about Pythons."""
    script(tmp_path / "bin" / "python3", f"exec /bin/cat {answer}")
    return environment


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python with nothing but the standard library."""
    return script(tmp_path / "bare", f'unset PYTHONPATH; exec {sys.executable} -S "$@"')


def lines_of(found: list[Finding], verdict: Verdict) -> list[str]:
    lines = [f"{one.text} -> {one.advice}" for one in found if one.verdict is verdict]
    assert all(one.advice for one in found if one.verdict is not Verdict.OK)
    assert all("\n" not in line for line in lines)
    return lines


def failure(found: list[Finding]) -> str:
    (line,) = lines_of(found, Verdict.FAILURE)
    return line


def test_nothing_is_amiss_where_spark_finds_plog(environment: Environment) -> None:
    found = examine_spark(environment)
    assert lines_of(found, Verdict.FAILURE) == lines_of(found, Verdict.WARNING) == []
    assert {"Java", "Spark", "Python", "plog"} <= {one.what for one in found}
    assert f"{ROOT}/pyspark_plog/__init__.py" in found[-1].text


# -- Pythons -----------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_python_without_plog_is_named_with_what_names_it(
    environment: Environment, bare_python: Path, variable: str
) -> None:
    line = failure(examine_spark({**environment, variable: str(bare_python)}))
    assert f"{variable}={bare_python} has no plog" in line
    assert f"export PYSPARK_PYTHON={sys.executable}" in line
    assert ("unset PYSPARK_DRIVER_PYTHON" in line) is (variable == "PYSPARK_DRIVER_PYTHON")
    assert "-m pip install 'plog[spark] @ file:///" in line


def test_without_variables_it_is_the_python_on_path(
    environment: Environment, bare_python: Path, tmp_path: Path
) -> None:
    place = tmp_path / "first"
    place.mkdir()
    (place / "python3").symlink_to(bare_python)
    environment["PATH"] = f"{place}{os.pathsep}{environment['PATH']}"
    line = failure(examine_spark(environment))
    assert "python3 on PATH has no plog" in line
    assert "activate its virtual environment" in line
    # What names a Python goes before.
    assert (
        lines_of(examine_spark({**environment, "PYSPARK_PYTHON": sys.executable}), Verdict.FAILURE)
        == []
    )


def test_drivers_python_goes_before_and_the_workers_is_looked_at_too(
    environment: Environment, bare_python: Path
) -> None:
    given = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": str(bare_python)}
    found = examine_spark({**environment, **given})
    assert lines_of(found, Verdict.FAILURE) == []
    (line,) = lines_of(found, Verdict.WARNING)
    assert f"PYSPARK_PYTHON={bare_python} has no plog" in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "program not found"),
        ("echo 'jupyter: no such option -c' >&2; exit 2", "jupyter: no such option -c"),
        ("echo '[]'", "not a usable Python"),
        ("exit 0", "not a usable Python"),
    ],
)
def test_what_is_no_python_is_said(
    quick: Environment, tmp_path: Path, text: str | None, says: str
) -> None:
    named = tmp_path / "jupyter"
    if text is not None:
        script(named, text)
    line = failure(examine_spark({**quick, "PYSPARK_DRIVER_PYTHON": str(named)}))
    assert f"PYSPARK_DRIVER_PYTHON={named}" in line
    assert says in line


def test_python_that_hangs_is_not_waited_for(
    quick: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_checks, "PROBE_S", 0.2)
    named = script(tmp_path / "hangs", "exec sleep 60")
    line = failure(examine_spark({**quick, "PYSPARK_PYTHON": str(named)}))
    assert "no response within 0.2 s" in line


def of_release(path: Path, answer: Path, *release: int) -> str:
    """A Python of another release that has all else."""
    Path(f"{path}.json").write_text(
        json.dumps({**json.loads(answer.read_text()), "python": release})
    )
    return str(script(path, f"exec /bin/cat {path}.json"))


def test_python_of_another_minor_version_is_warned_of(
    quick: Environment, answer: Path, tmp_path: Path
) -> None:
    newer = of_release(tmp_path / "newer", answer, 3, 99, 1)
    found = examine_spark({**quick, "PYSPARK_PYTHON": newer})
    assert lines_of(found, Verdict.FAILURE) == []  # plog is there
    (line,) = lines_of(found, Verdict.WARNING)
    assert "is Python 3.99.1" in line
    assert "PYTHON_VERSION_MISMATCH" in line
    older = of_release(tmp_path / "older", answer, 3, 10, 13)
    line = failure(examine_spark({**quick, "PYSPARK_PYTHON": older}))
    assert "is Python 3.10.13; plog needs 3.11 or newer" in line
    given = {"PYSPARK_DRIVER_PYTHON": "python3", "PYSPARK_PYTHON": newer}
    (line,) = lines_of(examine_spark({**quick, **given}), Verdict.WARNING)
    assert "Spark refuses Python functions (PYTHON_VERSION_MISMATCH)" in line


# -- modules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise ImportError('no libarrow')", "cannot be imported: ImportError: no libarrow"),
        ("__version__ = '17.0.0'", "is 17.0.0; plog needs 18 or newer"),
    ],
)
def test_pyarrow_that_is_missing_or_too_old_is_said_once(
    environment: Environment, tmp_path: Path, text: str, says: str
) -> None:
    environment["PYTHONPATH"] = module(tmp_path / "modules", "pyarrow", text)
    line = failure(examine_spark(environment))
    assert f"pyarrow in python3 on PATH {says}" in line
    assert "pip install 'plog[spark] @ file:///" in line


@pytest.mark.parametrize(
    "text",
    [
        "print('hello')\nraise RuntimeError('no licence')",
        "import sys\nsys.exit('no licence')",
    ],
)
def test_other_module_that_fails_is_named(
    environment: Environment, tmp_path: Path, text: str
) -> None:
    environment["PYTHONPATH"] = module(tmp_path / "modules", "pyspark_other", text)
    line = failure(examine_spark(environment))
    assert "pyspark_other in python3 on PATH fails to import" in line
    assert "no licence" in line
    assert "register(spark)" in line


def test_other_module_that_is_well_is_no_fault(environment: Environment, tmp_path: Path) -> None:
    text = "print('hello')"
    environment["PYTHONPATH"] = module(tmp_path / "modules", "pyspark_other", text)
    assert lines_of(examine_spark(environment), Verdict.FAILURE) == []


def test_plog_that_fails_to_import_is_said(environment: Environment, tmp_path: Path) -> None:
    text = "raise ImportError('wrong kernels')"
    environment["PYTHONPATH"] = module(tmp_path / "modules", "pyspark_plog", text)
    assert "ImportError: wrong kernels" in failure(examine_spark(environment))


def test_plog_that_an_import_hook_finds_is_not_found(
    environment: Environment, tmp_path: Path, bare_python: Path
) -> None:
    # As editable installs have it, and a directory that has but half of plog.
    half = tmp_path / "half"
    (half / "plog").mkdir(parents=True)
    (half / "plog" / "__init__.py").write_text("__version__ = '1'")
    packages = [path for path in sys.path if path.endswith("-packages")]
    environment["PYTHONPATH"] = os.pathsep.join([str(half), *packages])
    python = script(tmp_path / "half-python", f'exec {sys.executable} -S "$@"')
    line = failure(examine_spark({**environment, "PYSPARK_PYTHON": str(python)}))
    assert (
        f"imports plog from {half}/plog/__init__.py, but pyspark_plog is not a file on its path"
        in line
    )


def test_folder_that_has_plogs_name_is_no_plog(
    environment: Environment, tmp_path: Path, bare_python: Path
) -> None:
    folder = tmp_path / "somewhere" / "plog"
    folder.mkdir(parents=True)
    python = script(
        tmp_path / "python", f'export PYTHONPATH={folder.parent}; exec {sys.executable} -S "$@"'
    )
    line = failure(examine_spark({**environment, "PYSPARK_PYTHON": str(python)}))
    assert f"has no plog ({folder} is a folder, not a package)" in line


def test_another_plog_is_warned_of(quick: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_checks, "__version__", "99")
    (line,) = lines_of(examine_spark(quick), Verdict.WARNING)
    assert "has plog " in line
    assert line.partition(" -> ")[0].endswith(" has 99")


# -- Spark -------------------------------------------------------------------------------------


def test_spark_home_of_another_release_is_said(quick: Environment, tmp_path: Path) -> None:
    home = spark(tmp_path / "spark", "4.999.0")
    line = failure(examine_spark({**quick, "SPARK_HOME": str(home)}))
    assert "SPARK_HOME is Spark 4.999.0, but pyspark for" in line
    assert "pip install pyspark==4.999.0" in line


def test_spark_home_of_another_patch_is_warned_of(quick: Environment, tmp_path: Path) -> None:
    from pyspark import __version__

    near = ".".join([*__version__.split(".")[:2], "99"])
    found = examine_spark({**quick, "SPARK_HOME": str(spark(tmp_path / "spark", near))})
    assert lines_of(found, Verdict.FAILURE) == []
    assert len(lines_of(found, Verdict.WARNING)) == 1


@pytest.mark.parametrize(
    ("release", "says"),
    [("4.1.1", "is Spark 4.1.1; plog's source needs 4.2"), (None, "no Spark found")],
)
def test_spark_home_that_is_too_old_or_none_is_said(
    quick: Environment, tmp_path: Path, release: str | None, says: str
) -> None:
    home = tmp_path / "spark"
    if release is not None:
        spark(home, release)
    line = failure(examine_spark({**quick, "SPARK_HOME": str(home)}))
    assert f"SPARK_HOME={home}" in line
    assert says in line


def test_pyspark_that_is_nowhere_is_said(
    quick: Environment, bare_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    found = examine_spark({**quick, "PYSPARK_PYTHON": str(bare_python)})
    line, no_plog = lines_of(found, Verdict.FAILURE)
    assert f"pyspark is not installed for {sys.executable}" in line
    assert "pip install 'plog[spark] @ file:///" in line
    assert "has no plog" in no_plog
    # That of the Python which Spark asks does.
    assert lines_of(examine_spark(quick), Verdict.FAILURE) == []


# -- spark-env.sh ------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A Spark of pyspark's release, whose conf/ there is."""
    from pyspark import __version__

    place = spark(tmp_path / "spark", __version__)
    (place / "conf").mkdir()
    return place


def spark_env(conf: Path, text: str) -> str:
    """Write spark-env.sh; return its path."""
    conf.mkdir(exist_ok=True)
    (conf / "spark-env.sh").write_text(textwrap.dedent(text))
    return f"{conf}/spark-env.sh"


def said_of(found: list[Finding]) -> str:
    (one,) = [one for one in found if one.what == "spark-env.sh"]
    assert one.verdict is Verdict.OK
    return one.text


def is_running(process: str) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_python_that_spark_env_names_goes_before_the_callers(
    quick: Environment, bare_python: Path, tmp_path: Path, home: Path, is_elsewhere: bool
) -> None:
    conf = tmp_path / "elsewhere" if is_elsewhere else home / "conf"
    file = spark_env(conf, f"echo A=1\nPYSPARK_PYTHON={bare_python}\necho B=1 >&2")
    given = {**quick, "PYSPARK_PYTHON": "python3", "SPARK_HOME": str(home)}
    assert (
        lines_of(examine_spark({**given, "SPARK_CONF_DIR": str(tmp_path)}), Verdict.FAILURE) == []
    )
    found = examine_spark({**given, "SPARK_CONF_DIR": str(conf) if is_elsewhere else ""})
    assert f"PYSPARK_PYTHON={bare_python} has no plog" in failure(found)
    assert said_of(found).startswith(f"{file} changes PYSPARK_PYTHON:")


def test_spark_env_has_the_last_word_as_in_sparks_scripts(
    quick: Environment, tmp_path: Path, home: Path
) -> None:
    # It is run by bash, may build on what there is, and goes on when its last command fails.
    text = """
        function of_ours { [[ -d $SPARK_HOME/conf && $SPARK_CONF_DIR == "$SPARK_HOME/conf" ]]; }
        of_ours && PATH=$SPARK_HOME/sbin:$MINE
        export NOTE=$'two\nJAVA_HOME=lines'
        unset JAVA_HOME PYSPARK_DRIVER_PYTHON
        false
    """
    file = spark_env(home / "conf", text)
    java(home, "11.0.22")
    (home / "sbin").mkdir()
    (home / "sbin" / "java").symlink_to(home / "bin" / "java")
    mine = {"MINE": str(tmp_path / "bin"), "PYSPARK_DRIVER_PYTHON": "/none"}
    found = examine_spark({**quick, **mine, "SPARK_HOME": str(home)})
    assert f"{home}/sbin/java is Java 11.0.22" in failure(found)
    assert said_of(found).startswith(f"{file} changes JAVA_HOME, PYSPARK_DRIVER_PYTHON, PATH:")


@pytest.mark.parametrize(
    "text",
    [
        "JAVA_HOME=/none",
        "export PATH=$SPARK_CONF_DIR:$PATH; unset JAVA_HOME; false",
        "SPARK_HOME=$(dirname $0)/none; PYTHONPATH=$'two\\nlines'",
        "PYSPARK_PYTHON=/none\nif then\nJAVA_HOME=/none",
        ": ${JAVA_HOME:=/none} ${PYSPARK_PYTHON:=/none}",
        "JAVA_HOME=/none; exit",
    ],
)
@pytest.mark.parametrize("conf", ["conf", "a conf"])
def test_spark_env_is_read_as_by_sparks_own_script(
    environment: Environment, home: Path, text: str, conf: str
) -> None:
    spark_env(home / conf, text)
    given = {**environment, "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(home / conf)}
    place = spark_checks._pyspark_here()
    program = f". {place}/bin/load-spark-env.sh 2>/dev/null; env -0"
    name = f"{home}/bin/spark-class"
    done = subprocess.run(
        ["bash", "-c", program, name], env=given, stdout=subprocess.PIPE, check=False
    )
    theirs = dict(one.split("=", 1) for one in done.stdout.decode().split("\0") if one)
    after = spark_checks._loaded(home, given)[0]
    for variable in spark_checks.SETTABLE:
        ours = after.get(variable)
        assert ours == (theirs if theirs else given).get(variable)


def test_spark_env_beside_a_pyspark_of_pip_is_read(
    quick: Environment, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_checks, "_pyspark_here", lambda: home)
    spark_env(home / "conf", "MINE=$SPARK_HOME")
    found = examine_spark(quick)
    assert lines_of(found, Verdict.FAILURE) == lines_of(found, Verdict.WARNING) == []
    assert "changes none of SPARK_HOME, JAVA_HOME" in said_of(found)
    assert not any("SPARK_HOME=" in one.text for one in found)
    spark_env(home / "conf", f"SPARK_HOME={spark(tmp_path / 'old', '3.5.0')}")
    assert f"SPARK_HOME={tmp_path}/old is Spark 3.5.0" in failure(examine_spark(quick))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("exit 3", "ends Spark's scripts with status 3"),
        ("exit", "ends Spark's scripts with status 0"),
        ("set -e; false", "ends Spark's scripts with status 1"),
        ("sleep 60 & echo $! >$CHILD; wait", "does not end within 1 s"),
    ],
)
def test_spark_env_that_fails_or_hangs_is_warned_of(
    quick: Environment,
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    says: str,
) -> None:
    monkeypatch.setattr(spark_checks, "LOAD_S", 1)
    file = spark_env(home / "conf", f"JAVA_HOME=/none\n{text}")
    child = tmp_path / "child"
    found = examine_spark({**quick, "SPARK_HOME": str(home), "CHILD": str(child)})
    assert lines_of(found, Verdict.FAILURE) == []  # the caller's Java is well
    (line,) = lines_of(found, Verdict.WARNING)
    assert f"{file} {says}" in line
    deadline = time.monotonic() + 10
    while child.exists() and is_running(child.read_text().strip()):  # what it started ends, too
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_spark_env_that_leaves_something_running_is_not_waited_for(
    quick: Environment, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_checks, "LOAD_S", 5)
    spark_env(home / "conf", "{ sleep 10; :; } &\nJAVA_HOME=/none")
    assert "JAVA_HOME=/none" in failure(examine_spark({**quick, "SPARK_HOME": str(home)}))


def test_spark_env_that_was_read_already_is_not_read_again(quick: Environment, home: Path) -> None:
    spark_env(home / "conf", "JAVA_HOME=/none")
    given = {**quick, "SPARK_HOME": str(home), "SPARK_ENV_LOADED": "1"}
    assert lines_of(examine_spark(given), Verdict.FAILURE) == []


def test_spark_env_without_a_bash_is_warned_of(quick: Environment, home: Path) -> None:
    spark_env(home / "conf", "JAVA_HOME=/none")
    quick["PATH"] = quick["PATH"].partition(os.pathsep)[0]
    (line,) = lines_of(examine_spark({**quick, "SPARK_HOME": str(home)}), Verdict.WARNING)
    assert "bash does not start" in line


# -- Java --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "verdict", "says"),
    [
        ("21.0.8", Verdict.OK, "is Java 21.0.8"),
        ("17", Verdict.OK, "is Java 17"),
        ("11.0.22", Verdict.FAILURE, "is Java 11.0.22 -> install Java 17 or newer"),
        ("1.8.0_392", Verdict.FAILURE, "is Java 1.8.0_392"),
        (None, Verdict.WARNING, "unknown release"),
    ],
)
def test_java_is_known_by_its_files(
    quick: Environment, tmp_path: Path, release: str | None, verdict: Verdict, says: str
) -> None:
    home = java(tmp_path / "other", release)
    found = examine_spark({**quick, "JAVA_HOME": str(home)})
    (finding,) = [one for one in found if one.what == "Java"]
    assert finding.verdict is verdict
    assert f"JAVA_HOME={home}" in finding.text
    assert says in f"{finding.text} -> {finding.advice}"


def test_java_without_a_module_that_spark_names_is_said(quick: Environment, tmp_path: Path) -> None:
    home = java(tmp_path / "other", "21.0.8", modules="java.base java.logging")
    line = failure(examine_spark({**quick, "JAVA_HOME": str(home)}))
    assert "without the module jdk.incubator.vector" in line


def test_java_that_is_missing_is_said(quick: Environment, tmp_path: Path) -> None:
    line = failure(examine_spark({**quick, "JAVA_HOME": str(tmp_path / "gone")}))
    assert "no executable bin/java" in line
    del quick["JAVA_HOME"]
    quick["PATH"] = str(tmp_path / "bin")
    line = failure(examine_spark(quick))
    assert "no java on PATH, and JAVA_HOME is not set" in line
    (tmp_path / "bin" / "java").symlink_to(tmp_path / "java" / "bin" / "java")
    assert lines_of(examine_spark(quick), Verdict.FAILURE) == []


# -- the command -------------------------------------------------------------------------------


def doctor(environment: Environment, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "plog", "doctor", "--spark", *arguments],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_command_ends_with_a_status(environment: Environment, bare_python: Path) -> None:
    well = doctor(environment)
    assert (well.returncode, well.stderr) == (0, "")
    assert "0 failures" in well.stdout
    ill = doctor({**environment, "PYSPARK_PYTHON": str(bare_python)}, "--json")
    assert (ill.returncode, ill.stderr) == (1, "")
    (finding,) = [one for one in json.loads(ill.stdout) if one["verdict"] == "failure"]
    assert "has no plog" in finding["text"]


def test_command_with_a_brokers_settings_too_is_refused(environment: Environment) -> None:
    done = doctor(environment, "--override", "num.partitions=1")
    assert done.returncode == 2
    assert "--spark does not check a broker" in done.stderr


def test_command_prints_the_properties_of_the_session(
    environment: Environment, bare_python: Path, tmp_path: Path
) -> None:
    well = doctor(environment, "--conf")
    assert (well.returncode, well.stderr) == (0, "")
    lines = [line.split() for line in well.stdout.splitlines() if line and line[0] != "#"]
    python = str(tmp_path / "bin" / "python3")
    assert dict(lines) == {"spark.pyspark.python": python, **SETTINGS}
    assert f"#   export PYSPARK_PYTHON={python}\n" in well.stdout
    # Spark would not find the format in that Python: the file names the one that runs plog.
    ill = doctor({**environment, "PYSPARK_PYTHON": str(bare_python)}, "--conf")
    assert ill.returncode == 1
    assert f"spark.pyspark.python {sys.executable}\n" in ill.stdout
    assert re.match(r"plog: .* has no plog .*: export PYSPARK_PYTHON=", ill.stderr)
    assert len(ill.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--conf"], ["--conf", "--spark", "--json"]])
def test_properties_are_those_of_spark(arguments: list[str]) -> None:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert "--conf prints a properties file: use --spark, and no --json" in done.output


def test_oldest_releases_are_those_that_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = dict(
        re.findall(r"(\w+)>=([\d.]+)", " ".join(project["optional-dependencies"]["spark"]))
    )
    assert asked == {
        "pyspark": ".".join(map(str, spark_checks.OLDEST_SPARK)),
        "pyarrow": ".".join(map(str, spark_checks.OLDEST_PYARROW)),
    }
    oldest = ".".join(map(str, spark_checks.OLDEST_PYTHON))
    assert project["requires-python"] == f">={oldest}"
