"""What IncrementalAlterConfigs (KIP-339) makes of the settings that are there.

Owns the four operations, as a function from texts to texts; whether the
outcome is right is `dynamic`'s to check.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from plog.errors import InvalidRequest
from plog.settings.keys import ConfigType, Fault, Key, Settings, unknown_key


class Operation(IntEnum):
    """What is to be done with one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """One key, what is to be done with it, and with what value (None for DELETE)."""

    name: str
    operation: int
    value: str | None


def alter(
    current: Mapping[str, str], inherited: Settings, alterations: Iterable[Alteration]
) -> tuple[dict[str, str], list[Fault]]:
    """Return what is set after `alterations`, of what is set before, and which cannot be made.

    The latter add to or take from what is no list, or is none; their keys are as they were.

    Args:
        current: what is set for the resource itself.
        inherited: the settings without it; a list that is not set begins as theirs.
        alterations: what to do, each with a key of its own.

    Raises:
        InvalidRequest: a key comes twice, has no value, or the operation is unknown.
    """
    altered = dict(current)
    faults: list[Fault] = []
    seen: set[str] = set()
    for name, operation, value in alterations:
        if name in seen:
            raise InvalidRequest(f"{name} appears twice in the request")
        seen.add(name)
        if operation == Operation.DELETE:
            altered.pop(name, None)
            continue
        if value is None:
            raise InvalidRequest(f"{name} has no value in the request")
        if operation == Operation.SET:
            altered[name] = value
        elif operation in (Operation.APPEND, Operation.SUBTRACT):
            try:
                declared = _list_key(inherited, name)
                # A list of the inherited settings may be no value at all.
                text = altered.get(name, declared.format(inherited.value(name)) or "")
                items, named = _items(declared, text), _items(declared, value)
            except ValueError as reason:
                faults.append(Fault(name, str(reason)))
                continue
            if operation == Operation.APPEND:
                items = tuple(dict.fromkeys((*items, *named)))
            else:
                items = tuple(item for item in items if item not in named)
            altered[name] = declared.kind.format(items)
        else:
            raise InvalidRequest(f"{operation} is not an operation of IncrementalAlterConfigs")
    return altered, faults


def _items(declared: Key[Any], text: str) -> tuple[str, ...]:
    items: tuple[str, ...] = declared.kind.parse(text.strip())
    return items


def _list_key(settings: Settings, name: str) -> Key[Any]:
    declared = settings.KEYS.get(name)
    if declared is None:
        raise ValueError(unknown_key(name, settings.KEYS))
    if declared.kind.type is not ConfigType.LIST:
        raise ValueError("is not a list: APPEND and SUBTRACT need one")
    return declared
