"""Names of plog's source that pages outside of the checkout use, and those of them that are gone.

    python -m tests.renamed PAGE...              print the names that are gone and that
                                                 docs/RENAMED.md lacks; fail if there are any
    python -m tests.renamed --record PAGE...     record the names for the test as well

A name stands in backquotes, and is or was defined in plog or its tests: a folder, a module, a
class, a function, a field. The history of the checkout says which were: every `STRIDE`th commit is
read. A name that no commit has is another project's, or one that does not exist yet.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "RENAMED.md"
RECORD = ROOT / "tests" / "renamed.txt"
FOLDERS = ("plog", "tests")
SUFFIXES = (".py", ".pyx", ".pxd", ".pyi")
STRIDE = 40

QUOTED = re.compile(r"`([^`\n]+)`")
SUFFIX = re.compile(r"\.(?:py|pyx|pxd|pyi)\b")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DEFINITION = re.compile(
    r"^\s*(?:async\s+)?(?:def|class)\s+([A-Za-z_]\w*)"
    r"|^\s*(?:cdef|cpdef|ctypedef)\b[^(\n]*?\b([A-Za-z_]\w*)\s*(?:\(|:|$)"
    r"|^\s*(?:self\.)?([A-Za-z_]\w*)\s*(?::[^=\n]*)?(?:=(?!=)|$)",
    re.MULTILINE,
)
SEVERAL = re.compile(r"^\s*((?:\w+, )+\w+) = ", re.MULTILINE)
FIELD = re.compile(r"^ +[\w *\[\]]+?\b(\w+)(?:\[\w+\])?(?:\s+#.*)?$", re.MULTILINE)
"""Of a struct, in a .pxd."""


def defined_in(name: str, text: str) -> Iterator[str]:
    """Yield the names that a file of this name and text defines; its own is one."""
    yield from (*Path(name).parent.parts, Path(name).stem)
    for groups in DEFINITION.findall(text):
        yield from filter(None, groups)
    for names in SEVERAL.findall(text):
        yield from names.split(", ")
    if name.endswith(".pxd"):
        yield from FIELD.findall(text)


def defined_now() -> set[str]:
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return {
        name
        for path in paths
        if path.suffix in SUFFIXES
        for name in defined_in(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    }


def defined_at(commit: str) -> set[str]:
    archive = subprocess.run(
        ["git", "archive", commit, *FOLDERS], cwd=ROOT, capture_output=True, check=True
    ).stdout
    found: set[str] = set()
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            if member.name.endswith(SUFFIXES):
                data = files.extractfile(member)
                assert data is not None
                found.update(defined_in(member.name, data.read().decode("utf-8")))
    return found


def commits() -> list[str]:
    """Return every `STRIDE`th commit, and the first."""
    listed = subprocess.run(
        ["git", "rev-list", "--first-parent", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [*listed[::STRIDE], listed[-1]]


def names_in(page: str) -> set[str]:
    """Return the names in a page's backquotes. A plain word may be no name at all."""
    return {
        name for quoted in QUOTED.findall(page) for name in NAME.findall(SUFFIX.sub("", quoted))
    }


def is_recognisable(name: str, modules: set[str]) -> bool:
    """Whether it is a name rather than a word that a page quotes for another reason."""
    is_class = name[0].isupper() and not name.isupper()
    return is_class or "_" in name.strip("_") or name in modules


def modules_ever() -> set[str]:
    """Return the names of all modules that the checkout has or had."""
    listed = subprocess.run(
        ["git", "log", "--format=", "--name-only", "HEAD", "--", *FOLDERS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return {Path(path).stem for path in listed if path.endswith(SUFFIXES)}


def rows() -> list[tuple[set[str], set[str]]]:
    """Return the old and the new names of each row of docs/RENAMED.md."""
    lines = DOCUMENT.read_text("utf-8").splitlines()
    cells = [line.split("|") for line in lines if line.startswith("| `")]
    return [(names_in(old), names_in(new)) for _, old, new, *_ in cells]


def renamed() -> set[str]:
    """Return the old names that docs/RENAMED.md lists."""
    return {name for old, _ in rows() for name in old}


def recorded() -> set[str]:
    return set(RECORD.read_text("utf-8").split())


def missing(names: Iterable[str]) -> list[str]:
    """Return the names that are gone, and whose new names the page does not say."""
    return sorted(set(names) - defined_now() - renamed())


def main(arguments: list[str]) -> int:
    used = {
        name
        for path in arguments
        if path != "--record"
        for name in names_in(Path(path).read_text("utf-8"))
    }
    modules = modules_ever()
    ever = defined_now().union(*map(defined_at, commits()))
    names = sorted(name for name in used & ever if is_recognisable(name, modules))
    if "--record" in arguments:
        RECORD.write_text("\n".join(names) + "\n", encoding="utf-8")
    print(
        f"{len(names)} names of plog, {len(missing(names))} of them gone and not in {DOCUMENT.name}"
    )
    for name in missing(names):
        print(name)
    return 1 if missing(names) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
