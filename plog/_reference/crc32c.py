"""CRC-32C by crcmod: the oracle of `plog._native.crc32c`.

Only tests and benchmarks need it, so crcmod comes with `plog[test]`, and not with plog.
"""

from __future__ import annotations

import crcmod  # pip install "plog[test]"

from plog.types import Buffer

_crc_of = crcmod.mkCrcFun(0x11EDC6F41, initCrc=0, rev=True, xorOut=0xFFFFFFFF)


def crc32c(data: Buffer, crc: int = 0) -> int:
    """Return the CRC-32C of `data`, appended to what `crc` already covers.

    Raises:
        OverflowError: `crc` is not an unsigned 32-bit number.
    """
    if not 0 <= crc <= 0xFFFFFFFF:
        raise OverflowError(f"crc {crc} is not an unsigned 32-bit number")
    return int(_crc_of(bytes(data), crc))


def implementation() -> str:
    """Name what computes the checksum here."""
    return "crcmod"
