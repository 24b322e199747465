"""The target options of `plog groups reset`, and the offsets that they mean."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from plog.cli.output import is_number, time_ms
from plog.types import NO_OFFSET, TopicPartition

if TYPE_CHECKING:
    from plog.client.group_admin import GroupAdmin

F = TypeVar("F", bound=Callable[..., Any])

FROM_FILE = "--from-file"

_OPTIONS = (
    click.option(
        "--to-earliest", is_flag=True, default=None, help="Reset to the start of the log."
    ),
    click.option(
        "--to-latest",
        is_flag=True,
        default=None,
        help="Reset to the end of the log: skip all records.",
    ),
    click.option(
        "--to-datetime",
        metavar="ISO",
        help="Reset to the first record at or after a time, such as 2013-07-04T12:00:00 (UTC unless"
        " it has a time zone) or milliseconds since 1970; to the end if there is no such record.",
    ),
    click.option(
        "--shift-by", type=int, metavar="N", help="Move by N offsets: forward, or back (-100)."
    ),
    click.option(
        "--to-offset",
        type=click.IntRange(0),
        metavar="N",
        help="Reset to this offset in each partition.",
    ),
    click.option(
        FROM_FILE,
        type=click.File(encoding="utf-8-sig"),
        metavar="CSV",
        help="Reset to the offsets in a file with lines topic,partition,offset (- is stdin).",
    ),
)


def reset_options(function: F) -> F:
    """Add the target options; `read_targets` reads their values."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True)
class Targets:
    """The target of a reset: exactly one attribute is set."""

    to_earliest: bool | None = None
    to_latest: bool | None = None
    to_time_ms: int | None = None
    shift_by: int | None = None
    to_offset: int | None = None
    from_file: Mapping[TopicPartition, int] | None = None

    def wanted(
        self,
        admin: GroupAdmin,
        bounds: Mapping[TopicPartition, tuple[int, int]],
        committed: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        """Return the target offset of each partition; it may be outside the log's bounds.

        Raises:
            click.ClickException: a partition to shift has no committed offset.
        """
        if self.from_file is not None:
            return dict(self.from_file)
        if self.to_earliest:
            return {at: start for at, (start, _) in bounds.items()}
        if self.to_latest:
            return {at: end for at, (_, end) in bounds.items()}
        if self.to_offset is not None:
            return dict.fromkeys(bounds, self.to_offset)
        if self.to_time_ms is not None:
            found = admin.offsets_at(bounds, self.to_time_ms)
            return {at: bounds[at][1] if to == NO_OFFSET else to for at, to in found.items()}
        assert self.shift_by is not None
        if missing := [str(at) for at in bounds if at not in committed]:
            raise click.ClickException(f"cannot shift {', '.join(missing)}: no committed offset")
        return {at: committed[at] + self.shift_by for at in bounds}


def read_targets(given: Mapping[str, Any]) -> Targets:
    """Read the values of the target options.

    Raises:
        click.UsageError: there is not exactly one of them, or its value is invalid.
    """
    asked = {name: value for name, value in given.items() if value is not None}
    if len(asked) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"specify exactly one of {names}")
    if (moment := asked.pop("to_datetime", None)) is not None:
        return Targets(to_time_ms=time_ms(moment, "--to-datetime"))
    if (lines := asked.pop("from_file", None)) is not None:
        return Targets(from_file=_read_csv(lines))
    return Targets(**asked)


def _read_csv(lines: Any) -> dict[TopicPartition, int]:
    """Read lines of topic,partition,offset; the first line may be a header."""
    offsets: dict[TopicPartition, int] = {}
    try:
        for number, row in enumerate(csv.reader(lines), 1):
            cells = [cell.strip() for cell in row]
            if not any(cells) or (number == 1 and cells == ["topic", "partition", "offset"]):
                continue
            if len(cells) != 3 or not cells[0] or not all(map(is_number, cells[1:])):
                raise _bad(f"line {number}: {','.join(row)!r} is not topic,partition,offset")
            at = TopicPartition(cells[0], int(cells[1]))
            if at in offsets:
                raise _bad(f"line {number}: {at} appears twice")
            offsets[at] = int(cells[2])
    except (csv.Error, UnicodeDecodeError) as fault:
        raise _bad(str(fault)) from fault
    if not offsets:
        raise _bad("the file has no offsets")
    return offsets


def _bad(text: str) -> click.BadParameter:
    return click.BadParameter(text, param_hint=FROM_FILE)
