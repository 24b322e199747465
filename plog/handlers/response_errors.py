"""Counts responses by API and error code.

A response counts once for each error code in it, wherever that is: of the whole request, a topic or
a partition. One without any counts as NONE. Kafka's ErrorsPerSec counts every code of a response
instead, so that large requests weigh more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

from plog.errors import ErrorCode
from plog.protocol.schema import Struct

ERROR_CODES = ("error_code", "partition_error_code")
"""The names of fields."""

Find = Callable[[Any, set[int]], None]
"""Adds the error codes of a structure to a set."""


class ResponseErrors:
    """The counts of one broker. The event loop's thread counts, any thread reads."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}

    def note(self, api_key: int, response: Struct) -> None:
        """Count a response."""
        for code in codes_of(response):
            self._counts[api_key, code] = self._counts.get((api_key, code), 0) + 1

    @property
    def counts(self) -> dict[tuple[int, int], int]:
        """The number of responses by API key and error code."""
        return dict(self._counts)


def codes_of(response: Struct) -> Collection[int]:
    """Return the error codes in a response; NONE is among them only if there is no other."""
    found: set[int] = set()
    if (find := _finder(type(response))) is not None:
        find(response, found)
    found.discard(ErrorCode.NONE)
    return found or (ErrorCode.NONE,)


@cache
def _finder(struct: type[Struct]) -> Find | None:
    """Return what finds the error codes of a structure, None if it cannot have any."""
    own = [field.name for field in struct.fields if field.name in ERROR_CODES]
    nested = [
        (field.name, field.kind == "array", find)
        for field in struct.fields
        if field.struct is not None and (find := _finder(field.struct)) is not None
    ]
    if not own and not nested:
        return None

    def find_all(value: Any, found: set[int]) -> None:
        found.update(getattr(value, name) for name in own)
        for name, is_array, find in nested:
            inner = getattr(value, name)
            if inner is None:
                continue
            if is_array:
                for one in inner:
                    find(one, found)
            else:
                find(inner, found)

    return find_all
