"""Counts responses by API and error code.

A response counts once for each error code in it, wherever that is: of the whole request, a topic or
a partition. One without any counts as NONE. Kafka's ErrorsPerSec counts every code of a response
instead, so that large requests weigh more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from functools import cache
from operator import attrgetter
from typing import Any

from plog.errors import ErrorCode
from plog.protocol.schema import Struct

ERROR_CODES = ("error_code", "partition_error_code")
"""The names of fields."""
_NONE = int(ErrorCode.NONE)
_NO_ERROR = frozenset({_NONE})

Find = Callable[[Any, list[int]], None]
"""Appends the error codes of a structure to a list."""


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


def errors_of(response: Struct) -> Counter[int]:
    """Return the error codes in a response with their numbers, without NONE."""
    counts = Counter(_all_codes(response))
    del counts[_NONE]
    return counts


def codes_of(response: Struct) -> Set[int]:
    """Return the error codes in a response; NONE is among them only if there is no other."""
    codes = set(_all_codes(response))
    codes.discard(_NONE)
    return codes or _NO_ERROR


def _all_codes(response: Struct) -> list[int]:
    found: list[int] = []
    if (find := _finder(type(response))) is not None:
        find(response, found)
    return found


@cache
def _finder(struct: type[Struct]) -> Find | None:
    """Return what finds the error codes of a structure, None if it cannot have any."""
    own = [attrgetter(field.name) for field in struct.fields if field.name in ERROR_CODES]
    nested = [
        (attrgetter(field.name), _of_array(find) if field.kind == "array" else find)
        for field in struct.fields
        if field.struct is not None and (find := _finder(field.struct)) is not None
    ]
    if not own and not nested:
        return None
    if len(own) == 1 and not nested:
        return _Leaf(own[0])

    def find_all(value: Any, found: list[int]) -> None:
        found.extend([get(value) for get in own])
        for get, find in nested:
            inner = get(value)
            if inner is not None:
                find(inner, found)

    return find_all


class _Leaf:
    """Finds the one error code of a structure, as of a partition: most structures are such."""

    def __init__(self, get: Callable[[Any], int]) -> None:
        self.get = get

    def __call__(self, value: Any, found: list[int]) -> None:
        found.append(self.get(value))


def _of_array(find: Find) -> Find:
    """Return what finds the error codes of an array of structures."""
    if isinstance(find, _Leaf):
        get = find.get
        return lambda values, found: found.extend(map(get, values))

    def find_each(values: Any, found: list[int]) -> None:
        for value in values:
            find(value, found)

    return find_each
