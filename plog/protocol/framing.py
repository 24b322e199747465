"""Headers of requests and responses: which version of a header goes with which message.

A frame is an int32 length and so many bytes; the length is the reactor's and
the connection's business, everything behind it is described here or by a
message.
"""

from __future__ import annotations

import importlib
import struct
from types import ModuleType
from typing import Final, NamedTuple

from plog.errors import InvalidRequest, MalformedBytes
from plog.protocol.api_keys import ApiKey
from plog.protocol.decoders import skip_tags
from plog.protocol.schema import LONGEST_STRING, NEVER, BadDeclaration, Struct, Versions
from plog.types import Buffer

FAMILIES: Final[dict[str, tuple[ApiKey, ...]]] = {
    "api_versions": (ApiKey.API_VERSIONS,),
    "cluster": (
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
    ),
    "configs": (
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.LIST_CONFIG_RESOURCES,
    ),
    "consumer_groups": (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE),
    "features": (ApiKey.UPDATE_FEATURES,),
    "fetch": (ApiKey.FETCH,),
    "group_admin": (ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.DELETE_GROUPS),
    "groups": (
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
    ),
    "list_offsets": (ApiKey.LIST_OFFSETS,),
    "metadata": (ApiKey.METADATA,),
    "offsets": (
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_DELETE,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ),
    "produce": (ApiKey.PRODUCE,),
    "producers": (
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.ALLOCATE_PRODUCER_IDS,
    ),
    "reassignments": (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ),
    "replication": (
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.ALTER_PARTITION,
    ),
    "topics": (
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_RECORDS,
        ApiKey.ELECT_LEADERS,
    ),
    "transactions": (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    ),
}
"""Modules of `plog.protocol.messages` and the APIs of each; imported when one is asked for."""

MOST_REQUEST_ELEMENTS: Final = 250_000
"""How many elements the arrays of one request hold together, and how many tagged fields.

100,000 partitions, each in a topic of its own, take 200,000 in Produce, Fetch, ListOffsets or
DeleteRecords, and in CreateTopics with one assigned replica or one config each. The rest is
margin. A request at the bound holds some 60 MB of objects; without one, `socket.request.max.bytes`
of two-byte elements would hold 3 GB and the event loop for a minute. Responses have no such bound:
a client asked for them.
"""

MAX_BROKER_REQUEST_ELEMENTS: Final = 5_000_000
"""The same for the controller's orders: LeaderAndIsr of 20,000 partitions has 400,000."""

_FAMILY_OF: Final = {int(key): family for family, keys in FAMILIES.items() for key in keys}
_FIXED: Final = struct.Struct(">hhi")
_LENGTH: Final = struct.Struct(">h")
_CORRELATION_ID: Final = struct.Struct(">i")
_messages: dict[int, tuple[type[Struct], type[Struct]]] = {}


class RequestHeader(NamedTuple):
    """What stands before every request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def request_class(api_key: int) -> type[Struct] | None:
    """Return the request message of an API, None when it is not declared."""
    found = _messages.get(api_key) or _load(api_key)
    return found and found[0]


def response_class(api_key: int) -> type[Struct] | None:
    """Return the response message of an API, None when it is not declared."""
    found = _messages.get(api_key) or _load(api_key)
    return found and found[1]


def request_header_version(api_key: int, api_version: int) -> int:
    """Return 0 without a client id, 1 with one, 2 with tagged fields behind it (KIP-482)."""
    if api_key == ApiKey.CONTROLLED_SHUTDOWN and api_version == 0:
        return 0
    return 2 if api_version in _flexible(api_key) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """Return 1 with tagged fields, 0 without.

    A client that asks for versions cannot know yet whether the broker has tagged fields in its
    headers, so this one answer never has them (KIP-511).
    """
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return 1 if api_version in _flexible(api_key) else 0


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """Decode the header of a request; the position returned is that of its body.

    The client id is an old-style string in every version of the header, null at any negative
    length. Without a declaration of the API, tagged fields are not decoded, and the body cannot be
    either.

    Raises:
        InvalidRequest: the frame is too short, the client id no text, or a tag out of order or
            beyond `MOST_REQUEST_ELEMENTS` of them.
    """
    end = len(frame)
    if end < _FIXED.size:
        raise InvalidRequest(f"a frame of {end} bytes holds no request header")
    api_key, api_version, correlation_id = _FIXED.unpack_from(frame)
    pos = _FIXED.size
    client_id = None
    version = request_header_version(api_key, api_version)
    if version >= 1:
        if end - pos < _LENGTH.size:
            raise InvalidRequest(f"a frame of {end} bytes ends before its client id")
        (length,) = _LENGTH.unpack_from(frame, pos)
        pos += _LENGTH.size
        if length > end - pos:
            raise InvalidRequest(f"client id of {length} bytes, but only {end - pos} are left")
        if length >= 0:
            try:
                client_id = str(frame[pos : pos + length], "utf-8")
            except UnicodeDecodeError:
                raise InvalidRequest("the client id is not UTF-8") from None
            pos += length
    if version == 2:
        pos = skip_tags(frame, pos, end, "request header tags", MOST_REQUEST_ELEMENTS)
    return RequestHeader(api_key, api_version, correlation_id, client_id), pos


def encode_request_header(
    api_key: int, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Encode the header of a request, as a client sends it.

    Raises:
        MalformedBytes: the client id is longer than 32767 bytes.
    """
    header = _FIXED.pack(api_key, version, correlation_id)
    header_version = request_header_version(api_key, version)
    if header_version >= 1:
        raw = b"" if client_id is None else client_id.encode()
        if len(raw) > LONGEST_STRING:
            raise MalformedBytes(f"a client id of {len(raw)} bytes, at most {LONGEST_STRING}")
        header += _LENGTH.pack(-1 if client_id is None else len(raw)) + raw
    return header + b"\0" if header_version == 2 else header


def encode_response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """Encode the header of a response."""
    header = _CORRELATION_ID.pack(correlation_id)
    return header + b"\0" if response_header_version(api_key, version) else header


def decode_response_header(api_key: int, version: int, frame: Buffer) -> tuple[int, int]:
    """Return the correlation id of a response and the position of its body.

    Raises:
        InvalidRequest: the frame is too short, or a tag out of order.
    """
    end = len(frame)
    pos = _CORRELATION_ID.size
    if end < pos:
        raise InvalidRequest(f"a frame of {end} bytes holds no response header")
    (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
    if response_header_version(api_key, version):
        pos = skip_tags(frame, pos, end, "response header tags")
    return correlation_id, pos


def _flexible(api_key: int) -> Versions:
    request = request_class(api_key)
    return NEVER if request is None else request.api.flexible


def _load(api_key: int) -> tuple[type[Struct], type[Struct]] | None:
    """Import the family of an API; safe in several threads at once, as importing is."""
    family = _FAMILY_OF.get(api_key)
    if family is None:
        return None
    module = importlib.import_module(f"plog.protocol.messages.{family}")
    requests, responses = _declared(module, "Request"), _declared(module, "Response")
    if not requests.keys() == responses.keys() == set(FAMILIES[family]):
        raise BadDeclaration(f"{module.__name__} does not declare the APIs that are listed for it")
    for key, request in requests.items():
        if responses[key].api != request.api:
            raise BadDeclaration(f"{request.__name__} and its response differ in versions")
        _messages[key] = request, responses[key]
    return _messages[api_key]


def _declared(module: ModuleType, suffix: str) -> dict[int, type[Struct]]:
    found: dict[int, type[Struct]] = {}
    for name, cls in vars(module).items():
        if name.endswith(suffix) and isinstance(cls, type) and issubclass(cls, Struct):
            if cls.api.key in found:
                raise BadDeclaration(f"{name}: API key {cls.api.key} is declared twice")
            if cls.api.key >= 0:
                found[cls.api.key] = cls
    return found
