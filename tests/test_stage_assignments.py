"""One function of the kernels gives a partition its next stage; this finds any other assignment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KERNELS = sorted(
    path for path in (ROOT / "plog" / "_native").iterdir() if path.suffix in (".pyx", ".pxd")
)

MAY_ASSIGN = {
    ("request_stages", "part_advance"): {"stage[0]", "parts"},
    # Where a request or a partition begins.
    ("request_stages", "progress_begin"): {"whole", "parts", "memset"},
    ("request_stages", "progress_add"): {"stage[0]", "parts"},
    # A connection counts a request in the stage that its partitions have.
    ("request_line", "line_put"): {"stage", "stages"},
    ("request_line", "line_follow"): {"stage", "stages"},
    ("request_line", "line_remove"): {"stages"},
}
"""What each function may write, by its kernel and name."""
MAY_BEGIN = {
    ("request_forms", "check_produce"),
    ("request_line", "line_put"),
    ("requests", "request_forget_parts"),
}
"""Those that may call `progress_begin`: a request begins."""
MAY_POINT = ("part_advance", "progress_add")
"""Functions that may have the address of a stage."""

FUNCTION = re.compile(r"^(?:    )?(?:cdef|cpdef|def)\b[^=]*?(\w+)\([^()]*(?:\([^()]*\)[^()]*)*\)")
OPERATOR = r"(?:[-+*/%|&^]|//|<<|>>)?=(?!=)"
WRITES = {
    "stage": re.compile(rf"(?:\.|->)stage\s*{OPERATOR}"),
    "stage[0]": re.compile(rf"(?<!\w)stage\s*\[\s*0\s*\]\s*{OPERATOR}"),
    "whole": re.compile(rf"(?:\.|->)whole\s*{OPERATOR}"),
    "parts": re.compile(rf"(?:\.|->)parts\s*\[.*?\]\s*{OPERATOR}"),
    "stages": re.compile(rf"(?:\.|->)stages\s*\[.*?\]\s*{OPERATOR}"),
    "memset": re.compile(r"mem(?:set|cpy|move)\([^,]*\bprogress\b"),
}
BEGINS = re.compile(r"(?<!\w)progress_begin\(")
ADDRESS = re.compile(r"&[^&,]*?(?:\.|->)(?:stage|whole)\b(?!\s*[=!<>])")


def statements(source: str) -> Iterator[str]:
    """Yield the statements of a kernel, each in one line, without comments and docstrings."""
    source = re.sub(r'"""(?:.*?)"""', "", source, flags=re.S)
    whole = ""
    for line in source.splitlines():
        code = re.sub(r'"[^"\n]*"', '""', line).partition("#")[0].rstrip()
        whole = f"{whole} {code.strip()}" if whole else code
        if sum(map(whole.count, "([{")) <= sum(map(whole.count, ")]}")):
            yield whole
            whole = ""


def faults(kernel: str, source: str) -> list[str]:
    """Say which statements give something a stage, and must not."""
    found = []
    function = ""
    for statement in statements(source):
        if (head := FUNCTION.match(statement)) is not None:
            function = head[1]
            continue
        allowed = MAY_ASSIGN.get((kernel, function), set())
        wrong = any(
            pattern.search(statement) and name not in allowed for name, pattern in WRITES.items()
        )
        if BEGINS.search(statement) and (kernel, function) not in MAY_BEGIN:
            wrong = True
        if ADDRESS.search(statement) and not any(f"{name}(" in statement for name in MAY_POINT):
            wrong = True
        if wrong:
            found.append(f"{kernel}.{function}: {statement.strip()}")
    return found


def test_only_the_table_assigns_stages() -> None:
    found = [fault for path in KERNELS for fault in faults(path.stem, path.read_text("utf-8"))]
    assert found == []
    assert len(KERNELS) > 100


def test_functions_that_may_assign_do() -> None:
    """A name in the list above that has gone would let another function take its place."""
    for (kernel, function), names in MAY_ASSIGN.items():
        source = (ROOT / "plog" / "_native" / f"{kernel}.pyx").read_text(encoding="utf-8")
        planted = source.replace(f" {function}(", " renamed(")
        assert len(faults(kernel, planted)) >= len(names) - ("parts" in names), function
    for kernel, function in MAY_BEGIN:
        source = (ROOT / "plog" / "_native" / f"{kernel}.pyx").read_text(encoding="utf-8")
        assert faults(kernel, source.replace(f" {function}(", " renamed(")) != []


@pytest.mark.parametrize(
    "planted",
    [
        "part.stage = SAFE",
        "produce_part(call, number).stage = after",
        "(<ProducePart*>request.parts.items)[0].stage = SAFE",
        "request.stage = UNUSUAL",
        "a.stage = b.stage = SAFE",
        "part.stage += 1",
        "if late: part.stage = REFUSED",
        "request.progress.whole = OVER",
        "call.progress.parts[SAFE] += 1",
        "line.stages[SAFE] -= 1",
        "stage[0] = SAFE",
        "memset(&request.progress, 0, sizeof(Progress))",
        "memset(\n        &request.progress, 0, sizeof(Progress))",
        "progress_begin(&request.progress)",
        "set_it(&part.stage, SAFE)",
        "cdef uint8_t* at = &request.progress.whole",
    ],
)
def test_planted_assignment_is_found(planted: str) -> None:
    source = f"cdef void hide(Request* request) noexcept nogil:\n    {planted}\n"
    assert len(faults("produce_turn", source)) == 1


@pytest.mark.parametrize(
    "harmless",
    [
        "if part.stage == SAFE:",
        "return part.stage >= SAFE and request.progress.whole != OVER",
        "part_advance(call.progress, &part.stage, WROTE)",
        "progress_add(\n        call.progress, &part.stage, True)",
        "# part.stage = SAFE",
        "line.count -= line.stages[SAFE]",
        "cdef uint8_t stage = part.stage",
    ],
)
def test_harmless_statement_is_not_found(harmless: str) -> None:
    source = f"cdef void show(Request* request) noexcept nogil:\n    {harmless}\n"
    assert faults("produce_turn", source) == []
