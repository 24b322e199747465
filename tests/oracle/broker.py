"""A broker whose Produce and Fetch the oracle answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial

from plog._native.fetch_sessions import SessionCache
from plog._native.reactor import Reactor
from plog._native.served import ServedPartitions
from plog.broker import Broker
from plog.handlers.registry import Handler
from plog.protocol.api_keys import ApiKey
from plog.settings.definitions import BrokerSettings
from tests.oracle.fetch import fetch
from tests.oracle.fetch_sessions import FetchSessions
from tests.oracle.produce import produce
from tests.planes import ORACLE


class OracleBroker(Broker):
    """Its reactor knows no partitions, so that it hands over every request."""

    def __init__(self, settings: BrokerSettings) -> None:
        super().__init__(settings)
        print(ORACLE, file=sys.stderr, flush=True)
        self._sessions = FetchSessions(settings.max_incremental_fetch_session_cache_slots)

    def _make_reactor(
        self, served: ServedPartitions | None, sessions: SessionCache | None
    ) -> Reactor:
        return super()._make_reactor(None, None)

    def _handlers(self) -> Mapping[int, Handler]:
        handlers = dict(super()._handlers())
        for key, function in (
            (ApiKey.PRODUCE, produce),
            (ApiKey.FETCH, partial(fetch, self._sessions)),
        ):
            handlers[key] = handlers[key]._replace(function=function, decide=None)
        return handlers
