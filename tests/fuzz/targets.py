"""The targets by name: each takes bytes, and raises when a parser does what it must not."""

from __future__ import annotations

from collections.abc import Callable

from plog._native import records

from . import file_targets, record_targets, request_targets
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
    )
}

IN_PYTHON = {"messages", "small_files"}
"""Their parsers are Python: lines of that count as places reached, too."""

THREE_RECORDS = bytes.fromhex(
    "0000000000000000 00000000 ffffffff 02 00000000 0000 00000002 0000000000000000"
    "0000000000000000 ffffffffffffffff ffff ffffffff 00000003"
)
"""The header of a batch that promises as many."""


def planted(data: memoryview) -> None:
    """A mistake made on purpose, behind records that are right, byte by byte and one by one."""
    found = said(records.walk, exact(as_one_batch(THREE_RECORDS + data)))
    assert not isinstance(found, list), "this was to be found"
