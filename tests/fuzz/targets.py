"""The targets by name: each takes bytes, and raises when a parser does what it must not."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from plog._native import records

from . import coordinator_targets, file_targets, log_targets, record_targets, request_targets
from .common import as_one_batch, exact, said

Target = Callable[[memoryview], None]

TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        record_targets.varints,
        record_targets.batches,
        record_targets.records,
        record_targets.validation,
        record_targets.codecs,
        record_targets.columns,
        request_targets.messages,
        request_targets.fetch_requests,
        request_targets.produce_requests,
        file_targets.indexes,
        file_targets.small_files,
        file_targets.segments,
        log_targets.appends,
        coordinator_targets.members,
        coordinator_targets.coordinator_records,
        coordinator_targets.coordinator_logs,
    )
}

IN_PYTHON = {
    "messages",
    "small_files",
    "members",
    "coordinator_records",
    "coordinator_logs",
}
"""Their parsers are Python: lines of that count as places reached, too."""

ONE_RECORD = bytes.fromhex(
    "0000000000000000 00000000 ffffffff 02 00000000 0000 00000000 0000000000000000"
    "0000000000000000 ffffffffffffffff ffff ffffffff 00000001"
)
"""The header of a batch that promises one."""


def planted(data: memoryview) -> None:
    """A mistake made on purpose: it takes a record, right from byte to byte, with a key."""
    found = said(records.walk, exact(as_one_batch(ONE_RECORD + data)))
    assert isinstance(found, str) or not found[0].key, "this was to be found"


def planted_overrun(data: memoryview) -> None:
    """Read one byte more than there are, as C does that takes no `end`."""
    held = exact(data)
    if len(held) > 3:
        whole = (ctypes.c_char * len(held)).from_buffer(held)
        ctypes.memmove(ctypes.create_string_buffer(len(held) + 1), whole, len(held) + 1)


PLANTED: dict[str, Target] = {"planted": planted, "planted_overrun": planted_overrun}
"""Targets that do what they must not, to see that it is found."""
