"""Headers of requests and responses, byte for byte."""

from __future__ import annotations

import pytest

from plog.errors import InvalidRequest, MalformedBytes
from plog.protocol import framing
from plog.protocol.api_keys import ApiKey
from plog.protocol.framing import RequestHeader
from plog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

REQUESTS = [
    # key, version, client id, header version, bytes behind key, version and correlation id
    (ApiKey.PRODUCE, 8, "me", 1, "0002 6d65"),
    (ApiKey.PRODUCE, 9, "me", 2, "0002 6d65 00"),
    (ApiKey.PRODUCE, 9, None, 2, "ffff 00"),
    (ApiKey.PRODUCE, 9, "", 2, "0000 00"),
    (ApiKey.FETCH, 11, None, 1, "ffff"),
    (ApiKey.FETCH, 12, "größe", 2, "0007 6772c3b6c39f65 00"),
    (ApiKey.API_VERSIONS, 0, "", 1, "0000"),
    (ApiKey.API_VERSIONS, 3, "x" * 32767, 2, "7fff" + "78" * 32767 + "00"),
    # Later versions than are known count as flexible: only the answer can tell the client.
    (ApiKey.API_VERSIONS, 99, "me", 2, "0002 6d65 00"),
    (ApiKey.SASL_HANDSHAKE, 1, "me", 1, "0002 6d65"),
    (ApiKey.CONTROLLED_SHUTDOWN, 0, None, 0, ""),
    (ApiKey.CONTROLLED_SHUTDOWN, 1, "me", 1, "0002 6d65"),
    (12345, 3, "me", 1, "0002 6d65"),
]


@pytest.mark.parametrize(("key", "version", "client_id", "header_version", "rest"), REQUESTS)
def test_request_header_is_written_and_read(key, version, client_id, header_version, rest):
    wire = key.to_bytes(2, "big") + version.to_bytes(2, "big") + (77).to_bytes(4, "big")
    wire += bytes.fromhex(rest)
    assert framing.request_header_version(key, version) == header_version
    assert framing.encode_request_header(key, version, 77, client_id) == wire
    for frame in (wire + b"body", bytearray(wire + b"body"), memoryview(wire + b"body")):
        header, pos = framing.decode_request_header(frame)
        assert header == RequestHeader(key, version, 77, client_id)
        assert pos == len(wire)
    if len(wire) < 1000:
        for cut in range(len(wire)):
            with pytest.raises(InvalidRequest):
                framing.decode_request_header(wire[:cut])


@pytest.mark.parametrize(
    ("rest", "client_id"),
    [
        ("0002 6d65 01 05 03 616263", "me"),
        ("0002 6d65 02 00 00 07 01 61", "me"),
        ("fffe 00", None),
        ("8000 00", None),
    ],
)
def test_header_tags_are_skipped_and_any_negative_length_is_null(rest, client_id):
    wire = bytes.fromhex("0000 0009 00000001" + rest)
    header, pos = framing.decode_request_header(wire + b"body")
    assert header.client_id == client_id
    assert pos == len(wire)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("", "a frame of 0 bytes holds no request header"),
        ("0000 0009 00000001", "ends before its client id"),
        ("0000 0009 00000001 7fff 61", "client id of 32767 bytes, but only 1 are left"),
        ("0000 0009 00000001 0002 c328 00", "not UTF-8"),
        ("0000 0009 00000001 ffff", "tags needs 1 bytes"),
        ("0000 0009 00000001 ffff 01 00 7f 00", "tags needs 127 bytes"),
        (
            "0000 0009 00000001 ffff ffffffff0f",
            "tags counts 4294967295 at 15, past the 250000",
        ),
        ("0000 0009 00000001 ffff 90a10f", "tags needs 1 bytes"),
        ("0000 0009 00000001 ffff 91a10f", "tags counts 250001"),
        ("0000 0009 00000001 ffff ffffffffff0f", "varint of more than 32 bits"),
        ("0000 0009 00000001 ffff 02 00 00 00 00", "repeats or misplaces tag 0"),
    ],
)
def test_damaged_request_header_is_refused(frame, reason):
    with pytest.raises(InvalidRequest, match=reason):
        framing.decode_request_header(bytes.fromhex(frame))


def test_client_id_that_does_not_fit_is_refused():
    with pytest.raises(MalformedBytes, match="32768 bytes"):
        framing.encode_request_header(ApiKey.FETCH, 0, 1, "x" * 32768)


@pytest.mark.parametrize(
    ("key", "version", "header_version"),
    [
        (ApiKey.PRODUCE, 8, 0),
        (ApiKey.PRODUCE, 9, 1),
        (ApiKey.METADATA, 12, 1),
        *((ApiKey.API_VERSIONS, version, 0) for version in range(5)),
        (12345, 3, 0),
    ],
)
def test_response_header_is_written_and_read(key, version, header_version):
    wire = bytes.fromhex("7ffffffe") + bytes(header_version)
    assert framing.response_header_version(key, version) == header_version
    assert framing.encode_response_header(key, version, 0x7FFFFFFE) == wire
    assert framing.decode_response_header(key, version, wire + b"body") == (0x7FFFFFFE, len(wire))
    for cut in range(len(wire)):
        with pytest.raises(InvalidRequest):
            framing.decode_response_header(key, version, wire[:cut])


def test_tags_of_a_response_header_are_skipped():
    wire = bytes.fromhex("00000001 01 00 02 6162")
    assert framing.decode_response_header(ApiKey.PRODUCE, 9, wire) == (1, len(wire))


def test_classes_are_found_by_key():
    assert framing.request_class(ApiKey.API_VERSIONS) is ApiVersionsRequest
    assert framing.response_class(ApiKey.API_VERSIONS) is ApiVersionsResponse
    assert framing.request_class(12345) is None
    assert framing.response_class(12345) is None
