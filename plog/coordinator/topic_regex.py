"""Regular expressions in RE2's syntax, matched with whole names of topics (KIP-848).

Clients choose the expressions. RE2 matches in linear time and in bounded memory, but does not bound
the tree that it reads an expression into, nor the time that all names together take: that is done
here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from plog.errors import InvalidRegularExpression

if TYPE_CHECKING:
    import re2

MAX_MEM: Final = 1 << 20
"""Bytes that an expression's program and what is kept of its matches may take."""
MOST_CHARACTERS: Final = 8_000
HEAVY: Final = ("{", "\\p", "\\P")
"""In the tree a count such as `{0,1000}` takes up to 120 KB, a class of Unicode's 30 KB."""
MOST_HEAVY: Final = 100
MOST_CPU_S: Final = 1.0
MOST_TOLD: Final = 100


class Pattern:
    """An expression, ready to be matched.

    Raises:
        InvalidRegularExpression: it is none of RE2's, or too large.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MOST_CHARACTERS or sum(map(text.count, HEAVY)) > MOST_HEAVY:
            raise InvalidRegularExpression("the expression is too large")
        self._compiled = _compiled(text)

    def matching(self, names: Iterable[str], *, most_cpu_s: float = MOST_CPU_S) -> frozenset[str]:
        """Return the names that match as a whole; takes no interpreter lock for most of it.

        Raises:
            InvalidRegularExpression: it has taken too long to tell.
        """
        found = set()
        end_s = time.thread_time() + most_cpu_s
        for name in names:
            if time.thread_time() >= end_s:
                raise InvalidRegularExpression("the expression takes too long to match")
            if self._compiled.fullmatch(name.encode()):
                found.add(name)
        return frozenset(found)


def _compiled(text: str) -> re2._Regexp:
    import re2  # takes 5 ms and 2 MB, which only groups with expressions need

    options = re2.Options()
    options.max_mem = MAX_MEM
    options.log_errors = False  # it would write to stderr by itself
    options.never_capture = True  # what groups have captured takes longest to tell
    try:
        return re2.compile(text, options)
    except re2.error as fault:
        (said,) = fault.args
        raise InvalidRegularExpression(said.decode(errors="replace")[:MOST_TOLD]) from None
    finally:
        re2.purge()  # it would keep the last 128
