"""Metrics of connections, requests and the paths that answer them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from plog._native.histogram import Histogram
from plog._native.reactor import Reactor, ReactorStats
from plog.errors import ErrorCode
from plog.handlers.response_errors import ResponseErrors
from plog.ops.metrics.families import FAST, PYTHON, Collector, Family, TimesFamily, label
from plog.protocol.api_keys import ApiKey, api_name

CONNECTIONS = Family("plog_connections", "Open client connections.", ("listener",))
REQUEST_MEMORY = Family("plog_request_memory_bytes", "Memory of requests and receive buffers.")
WAITING = Family("plog_requests_waiting", "Requests waiting in the network threads.")
ACCEPTED = Family("plog_connections_accepted_total", "Connections, including refused ones.")
REFUSED = Family("plog_connections_refused_total", "Connections refused by a limit.")
RECEIVED = Family("plog_received_bytes_total", "Bytes read from clients.")
SENT = Family("plog_sent_bytes_total", "Bytes written to clients.")
RESPONSES = Family(
    "plog_responses_total",
    "Responses with an error, once for each error in them; NONE counts those without any.",
    ("api", "error"),
)
BROKEN = Family(
    "plog_broken_requests_total",
    "Connections closed by an internal error in the order of a request's stages.",
)
CALLOUTS = Family(
    "plog_callouts_total",
    "Questions to Python about requests, and requests that it answers.",
    ("reason",),
)
DURATION = TimesFamily(
    "plog_request_duration_seconds",
    "Time from reading a request to its response.",
    ("api", "path"),
)


class Network(Collector):
    """The reactor's counters, and those of the handlers.

    Args:
        handlers: times of the requests that Python answered, by API key.
        errors: responses of Python by API key and error code.
        listeners: names of the listeners, in the order of their ids.
    """

    families = (
        CONNECTIONS,
        REQUEST_MEMORY,
        WAITING,
        ACCEPTED,
        REFUSED,
        RECEIVED,
        SENT,
        RESPONSES,
        BROKEN,
        CALLOUTS,
        DURATION,
    )

    def __init__(
        self,
        reactor: Reactor,
        handlers: Mapping[int, Histogram],
        errors: ResponseErrors,
        listeners: Sequence[str],
    ) -> None:
        self._reactor = reactor
        self._handlers = handlers
        self._errors = errors
        self._listeners = listeners

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples."""
        stats = self._reactor.stats()
        open_now = stats.connections_by_listener
        yield CONNECTIONS.of(
            ((label(name),), open_now[number]) for number, name in enumerate(self._listeners)
        )
        yield REQUEST_MEMORY.one(stats.queued_bytes)
        yield WAITING.one(stats.waiting)
        yield ACCEPTED.one(stats.accepted)
        yield REFUSED.one(stats.refused)
        yield RECEIVED.one(stats.bytes_in)
        yield SENT.one(stats.bytes_out)
        if responses := self._responses(stats):
            yield RESPONSES.of(
                ((api_name(api), error_name(code)), count)
                for (api, code), count in sorted(responses.items())
            )
        if stats.broken:
            yield BROKEN.one(stats.broken)
        if reasons := [((reason,), count) for reason, count in stats.callouts.items() if count]:
            yield CALLOUTS.of(reasons)
        asked: dict[int, Histogram] = {
            ApiKey.PRODUCE: stats.produce_asked_times,
            ApiKey.FETCH: stats.fetch_asked_times,
        }
        for api, found in asked.items():
            found.add_all(self._handlers.get(api, Histogram()))
        by_python = {**self._handlers, **asked}
        times = [
            ((api_name(ApiKey.PRODUCE), FAST), stats.produce_times),
            ((api_name(ApiKey.FETCH), FAST), stats.fetch_times),
            *(((api_name(api), PYTHON), found) for api, found in sorted(by_python.items())),
        ]
        durations = DURATION.of(times)
        if durations.samples:
            yield durations

    def _responses(self, stats: ReactorStats) -> Counter[tuple[int, int]]:
        found = Counter(self._errors.counts)
        for code, count in stats.produce_responses.items():
            found[ApiKey.PRODUCE, code] += count
        for code, count in stats.fetch_responses.items():
            found[ApiKey.FETCH, code] += count
        return found


def error_name(code: int) -> str:
    """Return an error's name as Kafka writes it: UNKNOWN_TOPIC_OR_PARTITION."""
    return ErrorCode(code).name
