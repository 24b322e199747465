"""Scenario files: commands, a line of dashes, the golden reply, an empty line, and so on.

A line that begins with # is a comment. The commands of one block run one after the
other, and what they answer together is compared with the block's reply.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

RULE = "----"


def run(path: Path, execute: Callable[[list[str]], list[str]], *, rewrite: bool) -> None:
    """Run a scenario; `execute` gets the words of a command and returns lines of reply."""
    text = path.read_text()
    blocks = [_run_block(block, execute) for block in text.rstrip("\n").split("\n\n")]
    found = "\n\n".join(blocks) + "\n"
    if rewrite:
        path.write_text(found)
    else:
        assert found == text, f"{path.name}: reply differs (look, then --rewrite)"


def _run_block(block: str, execute: Callable[[list[str]], list[str]]) -> str:
    lines = block.split("\n")
    commands = lines[: lines.index(RULE)] if RULE in lines else lines
    if not any(line and not line.startswith("#") for line in commands):
        return block
    reply: list[str] = []
    for line in commands:
        if line and not line.startswith("#"):
            reply += execute(line.split())
    return "\n".join([*commands, RULE, *(reply or ["(nothing)"])])
