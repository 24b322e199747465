"""Writes a page that plog generates from its own declarations."""

from __future__ import annotations

import sys
from pathlib import Path


def write(page: str) -> None:
    """Write a page to the file in the arguments, or to standard output."""
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page, encoding="utf-8")
    else:
        sys.stdout.write(page)
