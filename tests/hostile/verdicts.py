"""What must come of a stream, as the declarations have it: closed, answered, or anybody's guess.

The readable codec judges, which shares no line with the one that brokers decode by.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple

from plog._reference import codec
from plog.errors import InvalidRequest
from plog.handlers.registry import load
from plog.handlers.topics import MAX_NEW_PARTITIONS
from plog.protocol import framing
from plog.protocol.api_keys import ApiKey
from tests.hostile.frames import LARGEST

PREFIX = struct.Struct(">i")
HEADER_BYTES = 8
MAY_WAIT: Final = {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
"""For records and for other members: longer than a test would."""

COUNTS: Final = {ApiKey.CREATE_TOPICS: "num_partitions", ApiKey.CREATE_PARTITIONS: "count"}
"""By API, which field of a request's topics says how many partitions they are to have."""


class Fate(Enum):
    """What must come of a stream whose sender stays."""

    CLOSED = "closed, with one line and no answer"
    ANSWERED = "answered once, and left open"
    OPEN = "anything, or nothing before its sender has said that it says no more"


class Verdict(NamedTuple):
    """A fate; where it is to be closed, how the reason in the line begins."""

    fate: Fate
    reason: str = ""


def verdict(stream: bytes) -> Verdict:
    """Judge a stream by its first frame."""
    if len(stream) < PREFIX.size:
        return Verdict(Fate.OPEN)
    (size,) = PREFIX.unpack_from(stream)
    if size < 0:
        return Verdict(Fate.CLOSED, f"request of negative size {size}")
    if size > LARGEST:
        return Verdict(Fate.CLOSED, f"request of {size} bytes exceeds socket.request.max.bytes")
    frame = stream[PREFIX.size : PREFIX.size + size]
    if len(frame) < size:
        return Verdict(Fate.OPEN)
    found = _of_frame(frame)
    is_alone = PREFIX.size + size == len(stream)
    return Verdict(Fate.OPEN) if found.fate is Fate.ANSWERED and not is_alone else found


def most_partitions(stream: bytes) -> int:
    """Return the most partitions that the requests of a stream may give a topic."""
    most = 0
    while len(stream) > PREFIX.size + HEADER_BYTES:
        (size,) = PREFIX.unpack_from(stream)
        frame, stream = stream[PREFIX.size :][: max(size, 0)], stream[PREFIX.size + max(size, 0) :]
        with suppress(InvalidRequest):
            header, pos = framing.decode_request_header(frame)
            handler = load().get(header.api_key)
            if handler is not None and header.api_key in COUNTS:
                request, _ = codec.decode(handler.request, header.api_version, frame, pos)
                count = COUNTS[ApiKey(header.api_key)]
                asked = [getattr(topic, count) for topic in request.topics]
                most = max([most, *(one for one in asked if one <= MAX_NEW_PARTITIONS)])
    return most


def _of_frame(frame: bytes) -> Verdict:
    if len(frame) < HEADER_BYTES:
        return Verdict(Fate.CLOSED, f"request of {len(frame)} bytes has no room for a header")
    try:
        header, pos = framing.decode_request_header(frame)
    except InvalidRequest:
        return Verdict(Fate.CLOSED, "request header: ")
    handler = load().get(header.api_key)
    if handler is None:
        return Verdict(Fate.CLOSED, f"API key {header.api_key} is not supported")
    name = handler.request.__name__
    if not handler.min_version <= header.api_version <= handler.max_version:
        if header.api_key == ApiKey.API_VERSIONS:
            return Verdict(Fate.ANSWERED)
        return Verdict(
            Fate.CLOSED, f"{name} v{header.api_version} is not supported; supported are v"
        )
    if handler.between_brokers:
        return Verdict(Fate.CLOSED, f"{name}: this broker runs alone")
    try:
        request, _ = codec.decode(
            handler.request,
            header.api_version,
            frame,
            pos,
            most_elements=framing.MOST_REQUEST_ELEMENTS,
        )
    except InvalidRequest:
        return Verdict(Fate.CLOSED, f"{name} v{header.api_version}: ")
    # Without acks there is no answer, and an error is told by the end of the connection.
    is_silent = header.api_key == ApiKey.PRODUCE and request.acks == 0
    waits = header.api_key in MAY_WAIT or is_silent
    return Verdict(Fate.OPEN if waits else Fate.ANSWERED)
