"""Which partition of an internal topic keeps a group or a transactional id.

Kafka's brokers and plog's must agree on it: it is Java's String.hashCode, over UTF-16.
"""

from __future__ import annotations

import struct

_INT_MIN, _WRAP = -(1 << 31), 1 << 32


def partition_of(name: str, partitions: int) -> int:
    """Return `abs(name.hashCode()) % partitions`, where the smallest int counts as 0."""
    return abs(java_hash(name)) % partitions


def java_hash(text: str) -> int:
    """Return Java's hash of a text, but 0 for the one whose absolute value Java cannot tell."""
    units = text.encode("utf-16-be", "surrogatepass")
    found = 0
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        found = (31 * found + unit) % _WRAP
    signed = found - _WRAP if found >= _WRAP // 2 else found
    return 0 if signed == _INT_MIN else signed
