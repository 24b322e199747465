"""Text of a function under construction: lines, names, and the constants they refer to.

The codec writes flat Python with it. Owns no knowledge of the protocol.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Source:
    """One function as it is written."""

    def __init__(self, **constants: Any) -> None:
        self.constants: dict[str, Any] = constants
        self._lines: list[str] = []
        self._depth = 0
        self._count = 0

    def line(self, text: str) -> None:
        """Add a line at the present depth."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """Indent the lines of the block, below `opening`; write `pass` for an empty block."""
        self.line(opening)
        self._depth += 1
        before = len(self._lines)
        yield
        if len(self._lines) == before:
            self.line("pass")
        self._depth -= 1

    def name(self, hint: str) -> str:
        """Return a variable name that is not in use."""
        self._count += 1
        return f"{hint}{self._count}"

    def constant(self, value: Any, hint: str) -> str:
        """Return an expression for `value`: small immutable ones are written out."""
        if value is None or isinstance(value, bool | int | str | bytes):
            return repr(value)
        for known, held in self.constants.items():
            if held is value:
                return known
        name = self.name(hint)
        self.constants[name] = value
        return name

    def function(self, name: str, title: str) -> Callable[..., Any]:
        """Compile the text and return its function `name`.

        The text is kept in `__source__`, and tracebacks show its lines under `title`.
        """
        text = "\n".join(self._lines) + "\n"
        filename = f"<{title}>"
        scope = dict(self.constants)
        exec(compile(text, filename, "exec"), scope)
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
        function: Callable[..., Any] = scope[name]
        function.__source__ = text  # type: ignore[attr-defined]
        return function
