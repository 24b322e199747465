"""Murmur2 as Kafka's default partitioner computes it: the oracle of `plog._native.murmur2`."""

from __future__ import annotations

from plog.types import Buffer

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995


def _times(value: int) -> int:
    return value * _MULTIPLIER & 0xFFFFFFFF


def murmur2(data: Buffer) -> int:
    """Hash `data` as Kafka's default partitioner does; an unsigned 32-bit value."""
    view = memoryview(data).cast("B")
    state = _SEED ^ len(view) & 0xFFFFFFFF
    whole = len(view) - len(view) % 4
    for at in range(0, whole, 4):
        word = _times(int.from_bytes(view[at : at + 4], "little"))
        state = _times(state) ^ _times(word ^ word >> 24)
    if whole < len(view):
        state = _times(state ^ int.from_bytes(view[whole:], "little"))
    state = _times(state ^ state >> 13)
    return state ^ state >> 15
