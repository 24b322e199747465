"""The layers of docs/ARCHITECTURE.md hold, and every folder has its line in docs/FOLDERS.md.

Read from the source alone: `import` by ast (also under TYPE_CHECKING), `cimport` by its words.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
FOLDERS = (ROOT / "docs" / "FOLDERS.md").read_text(encoding="utf-8")
MAX_ARCHITECTURE_LINES = 150

# What the readable twins may use beside the standard library.
TWINS_MAY_IMPORT = {"crcmod", "plog.errors", "plog.types", "plog._reference"}

CIMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+cimport\b|cimport[ \t]+([\w. ,]+))", re.M)
IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import\b|import[ \t]+([\w. ,]+))", re.M)


def read_layers(text: str) -> list[set[str]]:
    """Read the drawing: one layer to a line, names before the `#`, `|` where a line is divided."""
    drawing = re.search(r"```layers\n(.*?)```", text, re.S)
    assert drawing is not None
    lines = [line.partition("#")[0] for line in drawing[1].splitlines()]
    return [set(re.findall(r"\w+", line)) for line in lines if line.strip()]


LAYERS = read_layers(ARCHITECTURE)


def layer_of(module: str) -> int | None:
    """Return the number of a module's layer from above, or None for what has no layer."""
    name = module.split(".")[1] if module.startswith("plog.") else module
    for number, names in enumerate(LAYERS):
        if name in names:
            return number
    return None


def unit_of(module: str) -> str:
    """Return the part of the drawing that a module belongs to."""
    return module.split(".")[1] if module.startswith("plog.") else module.split(".")[0]


def is_ours(module: str) -> bool:
    return module.split(".")[0] in ("plog", "pyspark_plog")


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of_python(module: str, source: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield what a module imports; for `from a import b` both a and, if it is a module, a.b."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *(node.module or "").split(".")]).strip(".")
            yield base
            yield from (
                f"{base}.{alias.name}" for alias in node.names if is_module(base, alias.name)
            )


def is_module(package: str, name: str) -> bool:
    folder = ROOT.joinpath(*package.split("."))
    return any((folder / found).exists() for found in (name, f"{name}.py", f"{name}.pyx"))


def imports_of_cython(source: str) -> Iterator[str]:
    """Yield what a .pyx or .pxd imports and cimports."""
    source = re.sub(r'"""(?:.*?)"""', "", source, flags=re.S)
    for pattern in (CIMPORT, IMPORT):
        for whole, names in pattern.findall(source):
            found = (
                [whole] if whole else [name.split()[0] for name in names.split(",") if name.split()]
            )
            for name in found:
                yield name if not name.startswith(".") else f"plog._native.{name.lstrip('.')}"


def faults(module: str, imported: Iterator[str]) -> list[str]:
    """Say what a module imports that it must not."""
    here = layer_of(module)
    found = []
    for name in imported:
        if unit_of(module) == "_reference":
            allowed = name.split(".")[0] in sys.stdlib_module_names or any(
                name == known or name.startswith(f"{known}.") for known in TWINS_MAY_IMPORT
            )
            if not allowed:
                found.append(f"{module} imports {name}, and is to be read without it")
            continue
        if not is_ours(name) or name == "plog" or unit_of(name) == unit_of(module):
            continue
        there = layer_of(name)
        if unit_of(name) == "_reference":
            found.append(f"{module} imports {name}, which only tests and benchmarks do")
        elif there is None:
            found.append(f"{module} imports {name}, which has no layer")
        elif here is None or there >= here:
            found.append(f"{module} imports {name}, which is not above it")
    return found


PYTHON = sorted(
    path
    for pattern in ("plog/**/*.py", "plog/**/*.pyi", "pyspark_plog/**/*.py")
    for path in ROOT.glob(pattern)
)
CYTHON = sorted([*ROOT.glob("plog/**/*.pyx"), *ROOT.glob("plog/**/*.pxd")])


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_only_from_layers_above(path):
    module = module_of(path)
    source = path.read_text(encoding="utf-8")
    is_package = path.name == "__init__.py"
    assert faults(module, imports_of_python(module, source, is_package=is_package)) == []


@pytest.mark.parametrize("path", CYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_kernel_imports_only_from_layers_above(path):
    module = module_of(path)
    assert faults(module, imports_of_cython(path.read_text(encoding="utf-8"))) == []


def test_every_module_has_a_layer():
    units = {unit_of(module_of(path)) for path in PYTHON if module_of(path) != "plog"}
    drawn = set().union(*LAYERS)
    assert units - drawn == set()


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("plog.storage.log", "from plog.errors import PlogError", False),
        ("plog.storage.log", "from plog.storage import segment", False),
        ("plog.storage.log", "import asyncio, struct", False),
        ("plog.storage.log", "from plog import __version__", False),
        ("plog.storage.log", "import plog.cluster.replication.isr", True),
        ("plog.storage.log", "from plog.client import producer", True),
        ("plog.storage.log", "from plog import cluster", True),
        ("plog.storage.log", "from ..handlers import fetch", True),
        ("plog.storage.log", "from plog._reference import crc32c", True),
        ("plog.storage.log", "def f():\n    import plog.broker", True),
        ("plog.storage.log", "if TYPE_CHECKING:\n    from plog.handlers.fetch import x", True),
        ("plog.settings.keys", "from plog.storage import log", True),
        ("plog.cli.server", "from plog import server", False),
        ("plog.broker", "from plog import cli", True),
        ("plog._reference.crc32c", "import crcmod", False),
        ("plog._reference.crc32c", "from plog._reference import wire", False),
        ("plog._reference.crc32c", "import cramjam", True),
        ("plog._reference.crc32c", "from plog._native import wire", True),
    ],
)
def test_import_of_a_lower_layer_is_found(module, source, wrong):
    assert bool(faults(module, imports_of_python(module, source))) is wrong


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("from libc.stdint cimport int32_t", False),
        ("from plog._native.wire cimport be32", False),
        ("cimport cython, plog._native.wire as w", False),
        ("from plog.errors import CorruptRecord", False),
        ("from .wire cimport be32", False),
        ('"""\nfrom plog.storage cimport log\n"""', False),
        ("from plog.storage.log cimport Log", True),
        ("    cimport plog.runtime.clock", True),
        ("from plog.protocol import codec", True),
        ("import os, plog.storage.log", True),
    ],
)
def test_cimport_of_a_lower_layer_is_found(source, wrong):
    assert bool(faults("plog._native.reactor", imports_of_cython(source))) is wrong


# --- circles ---


def circle_in(imported: dict[str, set[str]]) -> list[str]:
    """Return the modules of one circle, each importing the next; [] if there is none."""
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]
    return []


def without_types(source: str) -> str:
    """Leave out what only a type checker imports."""
    return re.sub(r"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)*", "", source, flags=re.M)


def imported_by_all() -> dict[str, set[str]]:
    """Return what each module of plog imports or cimports of plog, also inside of functions."""
    imported: dict[str, set[str]] = {}
    for path in [*PYTHON, *CYTHON]:
        module, source = module_of(path), path.read_text(encoding="utf-8")
        names: Iterable[str] = imports_of_cython(source)
        if path.suffix == ".pyi":
            continue
        if path.suffix == ".py":
            is_package = path.name == "__init__.py"
            names = imports_of_python(module, without_types(source), is_package=is_package)
        ours = {name for name in names if is_ours(name) and name != module}
        imported.setdefault(module, set()).update(ours)
    return imported


def test_no_modules_import_each_other_in_a_circle():
    assert circle_in(imported_by_all()) == []


def test_circle_is_found():
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    circle = circle_in({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()})
    assert set(circle) == {"a", "b", "c"}


BYTES = {Path("tests/fuzz/corpus"), Path("tests/fuzz/found")}


def folders() -> Iterator[Path]:
    """Yield the folders of the tree that hold files of the project."""
    made = {"__pycache__", "build", "dist", "demo-data", "node_modules"}
    for directory, names, files in os.walk(ROOT):
        names[:] = sorted(
            name
            for name in names
            if name not in made
            # A folder for each target, of files that nobody reads.
            and Path(directory, name).relative_to(ROOT) not in BYTES
            and not name.endswith(".egg-info")
            and (not name.startswith(".") or name == ".ci")
        )
        if files and Path(directory) != ROOT:
            yield Path(directory).relative_to(ROOT)


@pytest.mark.parametrize("folder", list(folders()), ids=str)
def test_folder_has_its_line(folder):
    line = re.compile(rf"^- `{re.escape(str(folder))}/`: \S.*$", re.M)
    assert line.search(FOLDERS), f"docs/FOLDERS.md has no line `- `{folder}/`: ...`"


def test_no_line_names_a_folder_that_does_not_exist():
    lines = re.findall(r"^- `([\w./-]+)/`: ", FOLDERS, re.M)
    assert [line for line in lines if not (ROOT / line).is_dir()] == []


def test_the_architecture_stays_short():
    assert len(ARCHITECTURE.splitlines()) <= MAX_ARCHITECTURE_LINES
