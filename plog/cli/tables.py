"""Tables of the commands: columns with two spaces between them, below a line of names.

Owns how cells become text and how columns line up. On a terminal `rich` draws the table, with bold
names and long cells folded to the width. In a pipe or a file each row is one line, in which
`awk -F '  +'` finds the columns. An empty cell is `-` in both.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from plog.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

GAP = "  "
EMPTY = "-"
WIDE = ("W", "F")
"""Characters that a terminal draws two columns wide: those of Chinese, for example."""
COMBINING = ("Mn", "Me")


def cell_text(cell: Any) -> str:
    """Return the text of a cell, as one line of printable characters."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, list | tuple):
        cell = ",".join(str(entry) for entry in cell)
    return EMPTY if cell is None or cell == "" else printable(str(cell))


def plain_lines(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Collection[int] = ()
) -> list[str]:
    """Return the lines of a table for a pipe or a file: the names of the columns, then the rows.

    Args:
        right: indexes of columns whose cells end at the right.
    """
    lines = [[name.upper() for name in columns], *([cell_text(c) for c in row] for row in rows)]
    widths = [max(map(_width, cells)) for cells in zip(*lines, strict=True)]
    return [
        GAP.join(
            _pad(cell, width, to_right=index in right)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in lines
    ]


def terminal_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Collection[int] = ()
) -> Table:
    """Return the same table for a terminal, which folds its long cells."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(
            Text(name.upper()), overflow="fold", justify="right" if index in right else "left"
        )
    for row in rows:
        # As Text, because rich would read [square brackets] as markup.
        table.add_row(*(Text(cell_text(cell)) for cell in row))
    return table


def _pad(cell: str, width: int, *, to_right: bool) -> str:
    spaces = " " * (width - _width(cell))
    return spaces + cell if to_right else cell + spaces


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.category(one) in COMBINING
        else 1 + (unicodedata.east_asian_width(one) in WIDE)
        for one in text
    )
