"""The benchmarks mirror the kernels, and every one of them runs.

Figures mean nothing here; that a benchmark still works does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "asv_bench" / "benchmarks"
LOADS = {"load"}
"""No part of the broker: it is what times others."""

PARTS_OF = {
    # Kernels that are parts of another, and timed through it.
    "aborted_transactions": "columns",
    "acceptor": "reactor",
    "arrow_buffers": "columns",
    "batch_fields": "batch",
    "callout": "reactor",
    "callout_texts": "reactor",
    "change_bell": "partition_log",
    "closing": "reactor",
    "codec_gzip": "compression",
    "codec_lz4": "compression",
    "codec_snappy": "compression",
    "codec_zstd": "compression",
    "column_rows": "columns",
    "connection": "reactor",
    "connections": "reactor",
    "faults": "partition_log",
    "fetch_answer": "reactor",
    "fetch_callout": "reactor",
    "fetch_parts": "reactor",
    "fetch_path": "reactor",
    "fetch_request": "reactor",
    "fetch_turn": "reactor",
    "files": "partition_log",
    "follower_append": "partition_log",
    "followers": "partition_log",
    "frames": "reactor",
    "gather": "reactor",
    "histogram": "reactor",
    "lanes": "reactor",
    "links": "reactor",
    "letter_queue": "reactor",
    "listeners": "reactor",
    "log_append": "partition_log",
    "log_flush": "partition_log",
    "log_read": "partition_log",
    "mailbox": "reactor",
    "memory_waits": "reactor",
    "notes": "reactor",
    "offset_map": "cleaning",
    "partition": "partition_log",
    "partition_followers": "partition_log",
    "partition_guards": "partition_log",
    "partition_names": "fetch_sessions",
    "plain_transport": "reactor",
    "produce_answer": "reactor",
    "produce_callout": "reactor",
    "produce_path": "reactor",
    "produce_request": "reactor",
    "produce_rules": "validation",
    "produce_turn": "reactor",
    "producers": "partition_log",
    "python_responses": "reactor",
    "python_turn": "reactor",
    "record_view": "records",
    "request_forms": "reactor",
    "request_line": "reactor",
    "request_stages": "reactor",
    "requests": "reactor",
    "response_fields": "reactor",
    "segment": "partition_log",
    "segment_append": "partition_log",
    "segment_walk": "partition_log",
    "served": "reactor",
    "topic_traffic": "reactor",
    "turn": "reactor",
    "txn_guards": "partition_log",
    "work_queue": "reactor",
}


def kernels() -> list[str]:
    return sorted({path.stem for path in (ROOT / "plog" / "_native").glob("*.pyx")} - LOADS)


@pytest.mark.parametrize("kernel", kernels())
def test_every_kernel_has_its_benchmarks(kernel: str) -> None:
    module = BENCHMARKS / f"{PARTS_OF.get(kernel, kernel)}.py"
    if not module.exists():
        owners = [
            path.stem
            for path in (ROOT / "plog" / "_native").glob("*.pyx")
            if re.search(rf"cimport .*\b{kernel}\b|_native\.{kernel}\b", path.read_text())
            and (BENCHMARKS / f"{path.stem}.py").exists()
        ]
        assert owners, f"{kernel} has no benchmarks, and no kernel that has any is built on it"


@pytest.mark.timeout(900)
def test_asv_runs_every_benchmark_quickly(tmp_path: Path) -> None:
    shutil.copytree(
        BENCHMARKS, tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__")
    )
    settings = {
        "version": 1,
        "project": "plog",
        # asv wants a name here, but asks no repository about kernels that are built already: the
        # checkout may come without one, and the machine without git.
        "repo": "none",
        "dvcs": "none",
        "environment_type": "existing",
        "benchmark_dir": "benchmarks",
        "env_dir": "env",
        "results_dir": "results",
        "html_dir": "html",
    }
    (tmp_path / "asv.conf.json").write_text(json.dumps(settings))
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        # asv takes what PYTHONPATH names off its path, even where an installation has put it: with
        # both, this checkout's kernels are timed, whatever is installed and set.
        "PYTHONPATH": str(ROOT),
        "ASV_PYTHONPATH": str(ROOT),
        "PLOG_BENCH_SHORT": "1",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    asv = [sys.executable, "-m", "asv"]
    subprocess.run([*asv, "machine", "--yes"], cwd=tmp_path, env=environment, check=True)
    run = subprocess.run(
        [
            *asv,
            "run",
            "--quick",
            "--python=same",
            "--show-stderr",
            "--dry-run",
            "--launch-method=forkserver",
        ],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "failed" not in run.stdout, run.stdout
    assert re.search(r"\d+ total benchmarks|time_", run.stdout), run.stdout
