"""Kernels that tell which branches a run takes, and the fuzzer that listens: clang's libFuzzer.

The kernels are built a second time, by clang, into a directory of their own: instrumented for
libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer. libFuzzer itself comes with clang as
an archive, and is made a library that is loaded before Python; `tests/fuzz/child.py` calls it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.forks import Forked, server_of
from tests.memory import directory_in_memory

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "fuzz"
KERNELS = BUILT / "plog" / "_native"
ENGINE = BUILT / "libfuzzer.so"
STAMP = BUILT / "stamp"
FINDINGS = BUILT / "found"

TIMEOUT_S = 20
"""For one input: instrumented, and on a machine that is busy."""
MEMORY_MB = 2048
LARGEST_ALLOCATION_MB = 300
"""zstd may want a window of 128 MiB, and its frame can say so."""
LARGEST_INPUT_BYTES = 4096


class NoClang(Exception):
    """Neither clang nor its runtime libraries are there: the packages clang and libclang-rt-dev."""


class Run(NamedTuple):
    """What a run of the fuzzer came to."""

    status: int
    output: str
    found: list[Path]
    """Inputs that crashed, hung or took too much memory."""

    def report(self) -> str:
        """Return the traceback or the sanitizer's report, and the inputs' bytes."""
        begin = re.search(r"Traceback|==\d+==ERROR|==\d+== ERROR|runtime error", self.output)
        told = self.output[begin.start() if begin else 0 :]
        # Of the stack, what is the kernels' own: the interpreter's is long and says nothing.
        lines = [x for x in told.splitlines() if not x.startswith("    #") or "__pyx" in x]
        told = "\n".join(lines)
        return "\n".join([told[:6000], *(f"{p.name}: {p.read_bytes().hex()}" for p in self.found)])

    @property
    def executions(self) -> int:
        found = re.search(r"^stat::number_of_executed_units:\s*(\d+)", self.output, re.M)
        return int(found[1]) if found else 0

    @property
    def reached(self) -> tuple[int, int]:
        """Edges and features."""
        numbers = re.findall(r"cov: (\d+) ft: (\d+)", self.output)
        return (int(numbers[-1][0]), int(numbers[-1][1])) if numbers else (0, 0)


def find_clang() -> str:
    """Return the compiler; the newest of those that are numbered if it has no plain name."""
    names = ["clang", *(f"clang-{number}" for number in range(30, 12, -1))]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise NoClang("clang is not installed")
    return found


def runtime(clang: str, name: str) -> Path:
    """Return one of clang's own libraries; they bear the machine's name, or lie in its folder."""
    for form in (
        f"libclang_rt.{name}",
        f"libclang_rt.{name}".replace(f"-{os.uname().machine}", ""),
    ):
        said = subprocess.run(
            [clang, f"-print-file-name={form}"], capture_output=True, text=True, check=True
        )
        path = Path(said.stdout.strip())
        if path.is_absolute():
            return path
    raise NoClang(f"{clang} has no {name}: its runtime libraries are not installed")


def build() -> None:
    """Build what is missing or older than its source.

    Raises:
        NoClang: there is nothing to build it with.
    """
    clang = find_clang()
    archive = runtime(clang, f"fuzzer_no_main-{os.uname().machine}.a")
    key = _hash_of_sources(clang)
    if STAMP.exists() and STAMP.read_text() == key:
        return
    environment = {
        **os.environ,
        "PLOG_BUILD": "fuzz",
        "PLOG_KERNELS": " ".join(kernels_of_targets()),
        "CC": clang,
        "LDSHARED": f"{clang} -shared",
        "PYTHONPATH": str(ROOT),
    }
    where = [f"--build-lib={BUILT}", f"--build-temp={BUILT / 'objects'}"]
    jobs = f"--parallel={os.cpu_count() or 1}"
    _succeed([sys.executable, "setup.py", "-q", "build_ext", jobs, *where], environment)
    whole = ["-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive"]
    libraries = ["-lstdc++", "-lpthread", "-ldl", "-lm"]
    _succeed([clang, "-shared", "-o", str(ENGINE), *whole, *libraries], environment)
    STAMP.write_text(key)


def kernels_of_targets() -> list[str]:
    """Return the kernels that targets import; nothing calls the others, such as the reactor's."""
    program = (
        "import sys, tests.fuzz.targets\n"
        "print(*(name.split('.')[2] for name in sys.modules if name.startswith('plog._native.')))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(done.stdout.split())


def _hash_of_sources(clang: str) -> str:
    version = subprocess.run([clang, "--version"], capture_output=True, check=True).stdout
    found = hashlib.sha256(version + sys.version.encode())
    native = ROOT / "plog" / "_native"
    left_out = ROOT / "tests" / "fuzz" / "uninstrumented.txt"
    for path in sorted(
        [ROOT / "setup.py", left_out, *native.glob("*.p[yx][xd]"), *native.glob("*.h")]
    ):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def _succeed(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def fuzz(target: str, *options: str, corpora: list[Path], kernels: Path | None = KERNELS) -> Run:
    """Have libFuzzer look for inputs of `target`, with its own options.

    What it learns goes to the first of `corpora`; with no `kernels`, those of the checkout are
    fuzzed, which tell it nothing.
    """
    FINDINGS.mkdir(parents=True, exist_ok=True)
    findings = Path(tempfile.mkdtemp(prefix=f"{target}-", dir=FINDINGS))
    limits = [
        f"-timeout={TIMEOUT_S}",
        f"-report_slow_units={TIMEOUT_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-malloc_limit_mb={LARGEST_ALLOCATION_MB}",
        f"-max_len={LARGEST_INPUT_BYTES}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
    ]
    # libFuzzer ends its process without a word to Python: what that leaves is removed here.
    with directory_in_memory() as temporary:
        arguments = [str(temporary), target, *limits, *options, *map(str, corpora)]
        with tempfile.TemporaryFile() as output:
            server = server_of("tests.fuzz.child", str(kernels or ""), env=_environment())
            run = Forked(arguments, output, server=server)
            try:
                status = run.wait()
            except BaseException:
                run.send_signal(signal.SIGKILL)
                raise
            output.seek(0)
            text = output.read().decode(errors="replace")
    return Run(status, text, sorted(findings.iterdir()))


def _environment() -> dict[str, str]:
    clang = find_clang()
    asan = runtime(clang, f"asan-{os.uname().machine}.so")
    return {
        **os.environ,
        # The sanitizer has functions of libFuzzer's names that do nothing, so it comes second.
        "LD_PRELOAD": f"{ENGINE}:{asan}",
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "0",
        # Python's own pools would hide what is written past the end.
        "PYTHONMALLOC": "malloc",
        # Python never frees everything; what is freed is kept back for a while, but not for long.
        "ASAN_OPTIONS": (
            "detect_leaks=0:quarantine_size_mb=16:allocator_may_return_null=1"
            ":verify_asan_link_order=0"
        ),
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
