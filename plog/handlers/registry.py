"""Which function answers which API at which versions: the list ApiVersions is derived from.

A handler is declared beside its code with `@handles` or `@decides`; the families are
imported by `load`. What is not declared here is neither served nor advertised.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from plog.network.control_plane import Decided
from plog.protocol.schema import Struct
from plog.settings.definitions import BrokerSettings

FAMILIES = (
    "api_versions",
    "cluster",
    "configs",
    "consumer_groups",
    "delete_records",
    "elections",
    "features",
    "fetch_callouts",
    "group_admin",
    "group_offsets",
    "groups",
    "list_offsets",
    "members",
    "metadata",
    "offsets",
    "produce_callouts",
    "reassignments",
    "replication",
    "topics",
    "transaction_admin",
    "transactional_offsets",
    "transactions",
)
"""Modules of this package that declare handlers."""

Answer = Struct | None
"""A response message, or None where the protocol sends none (Produce with acks=0)."""

HandlerFunction = Callable[[Any, Any], Answer | Awaitable[Answer]]
DecideFunction = Callable[[Any, Any], Coroutine[Any, Any, Decided]]
F = TypeVar("F", bound=HandlerFunction)
D = TypeVar("D", bound=DecideFunction)


class Handler(NamedTuple):
    """One API as it is served."""

    request: type[Struct]
    min_version: int
    max_version: int
    advertised_min: int
    function: HandlerFunction | None
    """None: the reactor answers, and asks `decide` about unusual partitions."""
    is_on: Callable[[BrokerSettings], bool] = lambda settings: True
    """Whether the settings let it be served; if not, it is not advertised."""
    decide: DecideFunction | None = None
    between_brokers: bool = False
    """Refused on every listener but that between brokers, and by a broker that runs alone."""


HANDLERS: dict[int, Handler] = {}


def handles(
    request: type[Struct],
    *,
    versions: str,
    advertised_min: int | None = None,
    is_on: Callable[[BrokerSettings], bool] = lambda settings: True,
    between_brokers: bool = False,
) -> Callable[[F], F]:
    """Declare the decorated function as the handler of `request`.

    Args:
        request: the request's message class.
        versions: the versions served, "low-high".
        advertised_min: lowest version ApiVersions names when that differs from the lowest served
            (Produce: clients take an absent version 0 for a broker without compression).
        is_on: tells whether the broker's settings let it be served.
        between_brokers: accept it on the listener between brokers only.
    """

    def declare(function: F) -> F:
        handler = _of_versions(request, versions, advertised_min)
        _add(
            handler._replace(
                function=function,
                is_on=_is_in_cluster if between_brokers else is_on,
                between_brokers=between_brokers,
            )
        )
        return function

    return declare


def decides(
    request: type[Struct], *, versions: str, advertised_min: int | None = None
) -> Callable[[D], D]:
    """Declare the decorated coroutine to decide about unusual partitions of `request`.

    The reactor answers the requests themselves. The arguments are those of `handles`.
    """

    def declare(decide: D) -> D:
        _add(_of_versions(request, versions, advertised_min)._replace(decide=decide))
        return decide

    return declare


def _is_in_cluster(settings: BrokerSettings) -> bool:
    return settings.zookeeper_connect is not None


def _of_versions(request: type[Struct], versions: str, advertised_min: int | None) -> Handler:
    low, high = (int(bound) for bound in versions.split("-"))
    if not request.api.versions.low <= low <= high <= request.api.versions.high:
        raise TypeError(f"{request.__name__} declares no versions {versions}")
    return Handler(request, low, high, low if advertised_min is None else advertised_min, None)


def _add(handler: Handler) -> None:
    key = handler.request.api.key
    if key in HANDLERS:
        raise TypeError(f"{handler.request.__name__} has two handlers")
    HANDLERS[key] = handler


def load() -> dict[int, Handler]:
    """Import every family and return the handlers by API key."""
    for family in FAMILIES:
        importlib.import_module(f"plog.handlers.{family}")
    return HANDLERS
