"""Which function answers which API at which versions: the list ApiVersions is derived from.

A handler is declared beside its code with `@handles`; the families are
imported by `load`. What is not declared here is neither served nor advertised.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from plog.protocol.schema import Struct
from plog.settings.definitions import BrokerSettings

FAMILIES = (
    "api_versions",
    "cluster",
    "configs",
    "consumer_groups",
    "elections",
    "features",
    "fetch",
    "group_admin",
    "group_offsets",
    "groups",
    "list_offsets",
    "members",
    "metadata",
    "offsets",
    "produce",
    "reassignments",
    "topics",
    "transaction_admin",
    "transactional_offsets",
    "transactions",
)
"""Modules of this package that declare handlers."""

Answer = Struct | None
"""A response message, or None where the protocol sends none (Produce with acks=0)."""

HandlerFunction = Callable[[Any, Any], Answer | Awaitable[Answer]]
F = TypeVar("F", bound=HandlerFunction)


class Handler(NamedTuple):
    """One API as it is served."""

    request: type[Struct]
    min_version: int
    max_version: int
    advertised_min: int
    function: HandlerFunction
    is_on: Callable[[BrokerSettings], bool] = lambda settings: True
    """Whether the settings let it be served; if not, it is not advertised."""


HANDLERS: dict[int, Handler] = {}


def handles(
    request: type[Struct],
    *,
    versions: str,
    advertised_min: int | None = None,
    is_on: Callable[[BrokerSettings], bool] = lambda settings: True,
) -> Callable[[F], F]:
    """Declare the decorated function as the handler of `request`.

    Args:
        request: the request's message class.
        versions: the versions served, "low-high".
        advertised_min: lowest version ApiVersions names when that differs from the lowest served
            (Produce: clients take an absent version 0 for a broker without compression).
        is_on: tells whether the broker's settings let it be served.
    """
    low, high = (int(bound) for bound in versions.split("-"))

    def declare(function: F) -> F:
        if request.api.key in HANDLERS:
            raise TypeError(f"{request.__name__} has two handlers")
        if not request.api.versions.low <= low <= high <= request.api.versions.high:
            raise TypeError(f"{request.__name__} declares no versions {versions}")
        lowest = low if advertised_min is None else advertised_min
        HANDLERS[request.api.key] = Handler(request, low, high, lowest, function, is_on)
        return function

    return declare


def load() -> dict[int, Handler]:
    """Import every family and return the handlers by API key."""
    for family in FAMILIES:
        importlib.import_module(f"plog.handlers.{family}")
    return HANDLERS
