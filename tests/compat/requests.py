"""Requests as real clients send them, kept for whoever needs such bytes without the clients.

tests/golden/requests holds a file for each client, a line for each request: the connection, the
API, its version, and the frame without its length. Of requests that differ in numbers and names
alone the first is kept; they stand in the order in which they were sent.
`tests.compat.record_requests` writes the files.

What a broker or its host told the clients is replaced by what stays: topics are all TOPIC, their
ids TOPIC_ID, and log directories have the name of none.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import NamedTuple

from plog._native.batch import read_header
from plog.protocol import codec
from plog.protocol.framing import RequestHeader, decode_request_header, request_class
from plog.protocol.messages.produce import ProduceRequest
from plog.protocol.schema import Struct
from tests.agreement.batch_headers import stamped

DIRECTORY = Path(__file__).parent.parent / "golden" / "requests"
TOPIC = "topic-with-a-name"
PARTITIONS = 2
TOPIC_ID = uuid.UUID(bytes=b"id of that topic")


class Request(NamedTuple):
    """One request of a recording."""

    connection: int
    header: RequestHeader
    frame: bytes
    """Without its length."""

    @property
    def message(self) -> Struct | None:
        """What it says; nothing where only others know the version, as clients begin by trying."""
        (key, version, *_), at = decode_request_header(self.frame)
        cls = request_class(key)
        assert cls is not None
        return (
            codec.decode(cls, version, self.frame, at)[0] if version in cls.api.versions else None
        )

    def batches(self) -> list[bytes]:
        """Return the batches of a Produce, and nothing of other requests."""
        if not isinstance(self.message, ProduceRequest):
            return []
        return [
            bytes(part.records)
            for topic in self.message.topic_data
            for part in topic.partition_data
            if part.records is not None
        ]

    def at(self, now_ms: int) -> Request:
        """Return it with the last record of each batch at a moment: clocks differ by years."""
        frame = self.frame
        for batch in self.batches():
            header = read_header(batch)
            spread_ms = header.max_timestamp - header.base_timestamp
            moved = stamped(batch, base_timestamp=now_ms - spread_ms, max_timestamp=now_ms)
            assert batch in frame
            frame = frame.replace(batch, moved)
        return self._replace(frame=frame)


def kept(client: str) -> list[Request]:
    """Return what is kept of a client."""
    found = []
    for line in (DIRECTORY / f"{client}.txt").read_text("ascii").splitlines():
        if line and not line.startswith("#"):
            connection, _, _, data = line.split()
            frame = bytes.fromhex(data)
            found.append(Request(int(connection), decode_request_header(frame)[0], frame))
    return found


def all_kept() -> list[Request]:
    """Return what is kept of all clients, one after another."""
    return [one for path in sorted(DIRECTORY.glob("*.txt")) for one in kept(path.stem)]
