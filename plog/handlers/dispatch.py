"""From a frame to its handler and from the answer to the pieces of a response.

Owns the rules that hold for every API: which header, what happens to unknown
keys and versions, which response header. Knows no API but ApiVersions, whose
unsupported versions have an answer of their own (KIP-511).
"""

from __future__ import annotations

import asyncio
import inspect
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Mapping

from plog._native.fetch_callout import FetchCallout
from plog._native.histogram import Histogram
from plog._native.produce_callout import ProduceCallout
from plog.errors import ErrorCode, InvalidRequest
from plog.handlers.context import Context, Services
from plog.handlers.registry import Answer, Handler
from plog.handlers.request_log import is_logged, log_request
from plog.handlers.response_errors import ResponseErrors, errors_of
from plog.handlers.sender_claims import SenderClaims
from plog.network.connections import Connection
from plog.network.control_plane import NO_REPLY, CloseConnection, Decided, Reply
from plog.protocol import codec, framing
from plog.protocol.api_keys import ApiKey
from plog.protocol.framing import RequestHeader
from plog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse

ACKS_NONE = 0
"""Of a Produce: no response follows."""

URGENT = frozenset({ApiKey.WRITE_TXN_MARKERS, ApiKey.ADD_PARTITIONS_TO_TXN})
"""Sent by clients, too, but urgent between brokers: transactions of others wait for them."""

_API_KEY = struct.Struct(">h")


class Dispatcher:
    """Answers frames; one for the broker, called by the control plane.

    Args:
        handlers: by API key.
        errors: counts the responses; None: nothing shows the counts.
        is_ready: set once clients may be answered; None: at once.
    """

    def __init__(
        self,
        services: Services,
        handlers: Mapping[int, Handler],
        errors: ResponseErrors | None,
        is_ready: asyncio.Event | None = None,
    ) -> None:
        self._services = services
        self._urgent = {key for key, one in handlers.items() if one.between_brokers} | URGENT
        if is_ready is None:
            is_ready = asyncio.Event()
            is_ready.set()
        self._is_ready = is_ready
        self._handlers = handlers
        self.times = {key: Histogram() for key in self._handlers}
        """From when a request was read to its answer, of each API."""
        self._errors = errors

    def __call__(self, connection: Connection, frame: memoryview) -> Reply | Awaitable[Reply]:
        """Answer one request.

        Raises:
            CloseConnection: the API or version is not served, or the bytes are not such a request.
                The protocol has no generic error frame.
        """
        try:
            header, pos = framing.decode_request_header(frame)
        except InvalidRequest as fault:
            raise CloseConnection(f"request header: {fault}") from fault
        handler = self._handlers.get(header.api_key)
        if handler is None:
            raise CloseConnection(f"API key {header.api_key} is not supported")
        function = handler.function
        if not handler.min_version <= header.api_version <= handler.max_version:
            if header.api_key == ApiKey.API_VERSIONS:
                return self._unsupported_api_versions(handler, header)
            raise CloseConnection(
                f"{handler.request.__name__} v{header.api_version} is not supported; "
                f"supported are v{handler.min_version} to v{handler.max_version}"
            )
        if function is None:
            raise CloseConnection(f"{handler.request.__name__} is not served on this listener")
        if handler.between_brokers:
            self._check_between_brokers(connection, handler)
        elif not self._is_ready.is_set() and header.api_key != ApiKey.API_VERSIONS:
            return self._when_ready(connection, frame)
        try:
            request, _ = codec.decode(
                handler.request,
                header.api_version,
                frame,
                pos,
                most_elements=framing.MAX_BROKER_REQUEST_ELEMENTS
                if handler.between_brokers and self._claims.is_order(header, frame, pos)
                else framing.MOST_REQUEST_ELEMENTS,
            )
        except InvalidRequest as fault:
            raise CloseConnection(
                f"{handler.request.__name__} v{header.api_version}: {fault}"
            ) from fault
        answer = function(Context(self._services, connection, header), request)
        if inspect.isawaitable(answer):
            return self._later(connection, header, answer)
        return self._reply(connection, header, answer)

    async def decide(
        self, connection: Connection, callout: ProduceCallout | FetchCallout
    ) -> Decided:
        """Answer a callout.

        Raises:
            CloseConnection: a batch is refused of a client that wants no response.
        """
        api_key = ApiKey.PRODUCE if isinstance(callout, ProduceCallout) else ApiKey.FETCH
        header = RequestHeader(api_key, callout.version, callout.correlation_id, callout.client_id)
        decide = self._handlers[api_key].decide
        assert decide is not None
        decided = await decide(Context(self._services, connection, header), callout)
        if is_logged():
            found = Counter(one.error for one in decided.outcomes if one.error != ErrorCode.NONE)
            is_silent = isinstance(callout, ProduceCallout) and callout.acks == ACKS_NONE
            errors = None if is_silent else found
            self._log(connection, header, _now_us() - connection.received_us, errors)
        return decided

    def is_urgent(self, connection: Connection, frame: memoryview) -> bool:
        """Return whether a request between brokers must not wait behind those of clients."""
        if not connection.listener.is_inter_broker or len(frame) < _API_KEY.size:
            return False
        (api_key,) = _API_KEY.unpack_from(frame)
        if api_key not in self._urgent:
            return False
        try:
            header, pos = framing.decode_request_header(frame)
        except InvalidRequest:
            return False
        return self._claims.is_of_broker(header, frame, pos)

    @property
    def _claims(self) -> SenderClaims:
        services = self._services
        return SenderClaims(services.gate.broker_epoch, services.metadata.snapshot.brokers)

    def _check_between_brokers(self, connection: Connection, handler: Handler) -> None:
        name = handler.request.__name__
        if not handler.is_on(self._services.settings.broker()):
            raise CloseConnection(f"{name}: this broker runs alone (zookeeper.connect is not set)")
        if not connection.listener.is_inter_broker:
            raise CloseConnection(f"{name} is accepted on the listener between brokers only")

    async def _when_ready(self, connection: Connection, frame: memoryview) -> Reply:
        """Answer a client once the controller has described the cluster."""
        with connection.while_open():
            await self._is_ready.wait()
        reply = self(connection, frame)
        return await reply if inspect.isawaitable(reply) else reply

    async def _later(
        self, connection: Connection, header: RequestHeader, answer: Awaitable[Answer]
    ) -> Reply:
        answered = await answer
        return NO_REPLY if connection.gone else self._reply(connection, header, answered)

    def _reply(self, connection: Connection, header: RequestHeader, answer: Answer) -> Reply:
        took_us = _now_us() - connection.received_us
        self.times[header.api_key].note(took_us)
        if is_logged():
            errors = None if answer is None else errors_of(answer)
            self._log(connection, header, took_us, errors)
        if answer is None:
            return NO_REPLY
        if self._errors is not None:
            self._errors.note(header.api_key, answer)
        head = framing.encode_response_header(
            header.api_key, header.api_version, header.correlation_id
        )
        return [codec.encode(answer, header.api_version, head=head)]

    def _log(
        self,
        connection: Connection,
        header: RequestHeader,
        took_us: int,
        errors: Mapping[int, int] | None,
    ) -> None:
        api = self._handlers[header.api_key].request.__name__.removesuffix("Request")
        log_request(api, connection, header, took_us, errors)

    def _unsupported_api_versions(self, handler: Handler, header: RequestHeader) -> Reply:
        # Version 0 is what every client can read; the one entry tells it what to ask next.
        served = ApiVersion(
            api_key=header.api_key,
            min_version=handler.advertised_min,
            max_version=handler.max_version,
        )
        answer = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[served])
        if self._errors is not None:
            self._errors.note(header.api_key, answer)
        prefix = framing.encode_response_header(header.api_key, 0, header.correlation_id)
        return [prefix, codec.encode(answer, 0)]


def _now_us() -> int:
    return time.monotonic_ns() // 1000
