"""Text from clients, made safe to print: in log lines, error messages, tables, metrics and JSON.

Owns which characters may be printed and how the others are written. A name with a line feed cannot
begin a line of its own, one with an escape sequence cannot change a terminal, and one with a
direction mark cannot reorder what stands beside it.
"""

from __future__ import annotations

import json


def printable(text: str) -> str:
    r"""Escape each character that is not printable, as Python does: `\n`, `\x1b`, `\u2028`.

    These are controls (C0, DEL, C1), line and paragraph separators, direction marks and other
    format characters, lone surrogates, private and unassigned characters, and every space except
    the ordinary one. A backslash stays, so that text which is escaped twice stays the same.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def printable_json(text: str) -> str:
    r"""Escape the same characters in JSON text, as JSON does (`\u2028`): a parser reads them back.

    Line feeds stay, since JSON has them only between its values.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(
        one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
