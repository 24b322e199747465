"""What the fast path reads in frames, beside what Python reads, byte by byte."""

from __future__ import annotations

import pytest

from plog._native.request_forms import FetchForm, read_fetch
from plog.protocol import codec, framing
from plog.protocol.messages.fetch import FetchRequest
from tests.handlers.wire import fetch_request

VERSIONS = range(4, 18)
LARGEST = 1 << 20
NAMED_UNTIL = 12
RACK_SINCE = 11


def frame(version: int, rack: str = "rack") -> bytes:
    """Return a Fetch of one partition; the topic has no id where partitions go by ids."""
    request = fetch_request(("topic", 3, 17), leader_epoch=5)
    request.rack_id = rack if version >= RACK_SINCE else ""
    header = framing.encode_request_header(FetchRequest.api.key, version, 1, "client")
    return header + codec.encode(request, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read(version: int) -> None:
    form = read_fetch(frame(version), LARGEST)
    assert isinstance(form, FetchForm)
    ((topic, _, index, epoch, offset, last_epoch, _, _),) = form.asked
    assert topic == (b"topic" if version <= NAMED_UNTIL else b"")
    assert (index, offset, last_epoch) == (3, 17, -1)
    assert epoch == (5 if version >= 9 else -1)
    assert form.max_bytes == LARGEST


@pytest.mark.parametrize("version", VERSIONS)
def test_no_prefix_is_a_request(version: int) -> None:
    whole = frame(version)
    assert read_fetch(whole[:7], LARGEST) is None
    for cut in range(8, len(whole)):
        assert isinstance(read_fetch(whole[:cut], LARGEST), str)
    # As in Kafka, bytes behind a request are nothing.
    assert read_fetch(whole + b"\0", LARGEST) == read_fetch(whole, LARGEST)


@pytest.mark.parametrize("version", range(4, NAMED_UNTIL + 1))
def test_name_longer_than_its_frame_is_not_read(version: int) -> None:
    """Once it was looked at behind a cursor that was none: a constant's bytes, and what follows."""
    length = b"\x06" if version == NAMED_UNTIL else b"\0\5"
    longer = b"\xff\xff\xff\xff\7" if version == NAMED_UNTIL else b"\x7f\xff"
    whole = frame(version)
    assert whole.count(length + b"topic") == 1
    fault = "the name of a topic is cut short, or is no text"
    assert read_fetch(whole.replace(length + b"topic", longer + b"topic"), LARGEST) == fault


@pytest.mark.parametrize("version", range(RACK_SINCE, 18))
def test_rack_that_is_no_text_is_malformed(version: int) -> None:
    whole = frame(version)
    assert whole.count(b"rack") == 1
    fault = "the rack is cut short, or is no text"
    assert read_fetch(whole.replace(b"rack", b"\xffack"), LARGEST) == fault
