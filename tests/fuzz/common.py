"""What the targets share: what a parser said, two engines that must agree, and bytes made right."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from plog._reference import compression as reference_compression
from plog._reference import record_view as reference_record_view
from plog.errors import PlogError
from plog.types import Buffer
from tests.agreement.batch_headers import crc32c, decompress

HEADER_BYTES = 61
AT_LENGTH, AT_CRC, AT_ATTRIBUTES = 8, 17, 21


def exact(data: Buffer) -> memoryview:
    """Copy into writable memory of this very size: a sanitizer sees the first byte past it.

    `bytes` and `bytearray` have a byte more than they say.
    """
    found = memoryview(array("B", [0]) * len(data))
    found[:] = data
    return found


def said(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return what comes of a call, or the declared error as text; any other error is a finding."""
    try:
        return function(*args, **options)
    except PlogError as error:
        return f"{type(error).__name__}: {error}"


def _strictly(codec: int, data: bytes, limit: int) -> bytes:
    if codec == reference_compression.LZ4:
        return reference_compression._expand(codec, data, limit, strict_ends=True)
    return decompress(codec, data, limit)


READINGS = (decompress, _strictly)
"""How the twins expand records: with the kernel's zstd, as the standard library has none; and an
lz4 block whose end breaks the rules for encoders may be taken or refused."""


def agree(engines: tuple[ModuleType, ModuleType], name: str, *args: Any, **options: Any) -> Any:
    """Return what both engines answer."""
    return alike(
        engines, lambda one: getattr(one, name)(*args, **options), f"{name}{args, options}"
    )


def alike(
    engines: tuple[ModuleType, ModuleType], call: Callable[[ModuleType], Any], what: str
) -> Any:
    """Return what comes of a call of either engine."""
    kernel, twin = engines
    found = said(call, kernel)
    for reading in READINGS:
        with _expanding(reading):
            expected = said(call, twin)
        if found == expected:
            return found
    raise AssertionError(f"{what}: {found!r}, where its twin says {expected!r}")


@contextmanager
def _expanding(reading: Callable[[int, bytes, int], bytes]) -> Iterator[None]:
    own, reference_record_view.decompress = reference_record_view.decompress, reading
    try:
        yield
    finally:
        reference_record_view.decompress = own


def with_right_crcs(data: Buffer) -> bytearray:
    """Stamp the CRC of every batch, as far as their lengths lead: most faults lie behind it."""
    stamped = bytearray(data)
    at = 0
    while at + HEADER_BYTES <= len(stamped):
        (length,) = struct.unpack_from(">i", stamped, at + AT_LENGTH)
        end = at + 12 + length
        if not at + HEADER_BYTES <= end <= len(stamped):
            break
        struct.pack_into(">I", stamped, at + AT_CRC, crc32c(stamped[at + AT_ATTRIBUTES : end]))
        at = end
    return stamped


def as_one_batch(data: Buffer) -> bytearray:
    """Have the bytes be one batch in length and CRC, if they are long enough for one."""
    stamped = bytearray(data)
    if len(stamped) >= HEADER_BYTES:
        struct.pack_into(">i", stamped, AT_LENGTH, len(stamped) - 12)
    return with_right_crcs(stamped)
