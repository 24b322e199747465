"""Kernels that hold a lock must not need the interpreter lock meanwhile.

A thread that makes an object can lose that to a thread that waits for the kernel's lock, and the
process stands still for ever. So a function with Python objects takes locks in `with nogil` only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parent.parent / "plog" / "_native"
LOCKS = re.compile(r"\bpthread_mutex_(?:try)?lock\(")
BEGINS = re.compile(r"(?:cdef|cpdef|def)\b[^=]*\(|with nogil:")


def locks_with_python(source: str) -> Iterator[int]:
    """Yield the numbers of the lines that take a lock while Python objects can be made."""
    lines = source.splitlines()
    for number, line in enumerate(lines, 1):
        if LOCKS.search(line) and not _is_nogil(lines[:number]):
            yield number


def _is_nogil(lines: list[str]) -> bool:
    """Whether the last line is in a `with nogil`, or in a function that is `nogil`."""
    inner = _indent_of(lines[-1])
    for at in range(len(lines) - 2, -1, -1):
        line = lines[at]
        if line.strip() and _indent_of(line) < inner and BEGINS.match(line.strip()):
            head = "\n".join(lines[at:]).partition(":\n")[0]
            if "nogil" in head:
                return True
            if not line.strip().startswith("with"):
                return False
            inner = _indent_of(line)
    return False


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


@pytest.mark.parametrize("path", sorted(NATIVE.glob("*.pyx")), ids=lambda path: path.name)
def test_locks_are_taken_without_the_interpreter_lock(path: Path) -> None:
    assert list(locks_with_python(path.read_text())) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def look():\n    pthread_mutex_lock(&p.lock)\n    return [1]\n", [2]),
        ("def look():\n    with nogil:\n        pthread_mutex_lock(&p.lock)\n", []),
        ("cdef void look(\n        int a) noexcept nogil:\n    pthread_mutex_lock(&p.lock)\n", []),
        ("cdef list look():\n    if a:\n        pthread_mutex_lock(&p.lock)\n", [3]),
        ("cdef void look() noexcept nogil:\n    if a:\n        pthread_mutex_lock(&p)\n", []),
    ],
)
def test_lock_with_python_is_found(source: str, found: list[int]) -> None:
    assert list(locks_with_python(source)) == found
