"""The inputs that are kept: where the fuzzer begins, what it learns, and what it finds.

tests/fuzz/corpus/<target>   reach what the seeds do not
tests/fuzz/found/<target>    have broken something once
build/fuzz/seeds/<target>    written anew by each run, from tests/fuzz/seeds.py
build/fuzz/corpus/<target>   what runs have learnt on this machine
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.agreement.harness import run_seed

from .instrumented import BUILT, ROOT, Run, fuzz
from .seeds import seeds

CORPUS = ROOT / "tests" / "fuzz" / "corpus"
FOUND = ROOT / "tests" / "fuzz" / "found"
SEEDS = BUILT / "seeds"
LEARNT = BUILT / "corpus"

SEEDS_ALONE = {"messages"}
"""Every field of every version is a place of its own: a corpus for it takes thousands of files."""


class Known:
    """The inputs that are kept for a target, the same each time they are asked for."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        for directory in (CORPUS / self.target, FOUND / self.target):
            for path in sorted(directory.glob("*")):
                yield path.name, path.read_bytes()
        for data in seeds()[self.target]:
            yield hashlib.sha1(data).hexdigest(), data


@functools.cache
def write_seeds() -> None:
    """Make the seeds files."""
    shutil.rmtree(SEEDS, ignore_errors=True)
    for target, inputs in seeds().items():
        (SEEDS / target).mkdir(parents=True)
        for data in inputs:
            (SEEDS / target / hashlib.sha1(data).hexdigest()).write_bytes(data)


def fuzz_for(target: str, limit: str, learnt: Path | None = None) -> Run:
    """Fuzz a target, beginning with all that is known; what is found is kept with the tests.

    `limit` is libFuzzer's option that says how long. With `learnt`, an empty directory, what this
    machine has learnt so far is left out.
    """
    write_seeds()
    learnt = learnt or LEARNT / target
    learnt.mkdir(parents=True, exist_ok=True)
    known = [directory / target for directory in (SEEDS, CORPUS, FOUND)]
    known = [directory for directory in known if directory.is_dir()]
    seed = run_seed() or 1  # 0 is any
    run = fuzz(target, limit, f"-seed={seed}", corpora=[learnt, *known])
    kept = []
    for path in run.found:
        kept.append(FOUND / target / path.name)
        kept[-1].parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, kept[-1])
    return run._replace(found=kept)


def keep(target: str) -> int:
    """Take into the corpus what reaches more than it does; return how many inputs that were."""
    if target in SEEDS_ALONE:
        return 0
    write_seeds()
    corpus = CORPUS / target
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as temporary:
        merged = Path(temporary)
        for path in [*(SEEDS / target).iterdir(), *corpus.iterdir()]:
            shutil.copyfile(path, merged / path.name)
        before = {path.name for path in merged.iterdir()}
        fuzz(target, "-set_cover_merge=1", corpora=[merged, LEARNT / target])
        new = [path for path in merged.iterdir() if path.name not in before]
        for path in new:
            shutil.move(path, corpus / path.name)
    return len(new)
