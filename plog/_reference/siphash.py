"""SipHash (Aumasson and Bernstein, 2012), to be read: the oracle of `plog._native.siphash`."""

from __future__ import annotations

KEY_BYTES = 16

_MASK = 0xFFFFFFFFFFFFFFFF
# "somepseudorandomlygeneratedbytes"
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def _turned(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def _mixed(state: tuple[int, int, int, int], rounds: int) -> tuple[int, int, int, int]:
    a, b, c, d = state
    for _ in range(rounds):
        a = a + b & _MASK
        c = c + d & _MASK
        b, d, a = _turned(b, 13) ^ a, _turned(d, 16) ^ c, _turned(a, 32)
        c = c + b & _MASK
        a = a + d & _MASK
        b, d, c = _turned(b, 17) ^ c, _turned(d, 21) ^ a, _turned(c, 32)
    return a, b, c, d


def siphash(key: bytes, data: bytes, *, rounds: int = 1, last_rounds: int = 3) -> int:
    """Hash `data` under a key of KEY_BYTES; an unsigned 64-bit value."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    low, high = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    a, b, c, d = (start ^ half for start, half in zip(_START, (low, high) * 2, strict=True))
    # The last word ends with the size, in one byte.
    padded = data.ljust(len(data) // 8 * 8 + 7, b"\0") + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        a, b, c, d = _mixed((a, b, c, d ^ word), rounds)
        a ^= word
    a, b, c, d = _mixed((a, b, c ^ 0xFF, d), last_rounds)
    return a ^ b ^ c ^ d
