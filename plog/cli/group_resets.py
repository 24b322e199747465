"""Where `plog groups reset` goes: its options, and the offset that each asks for."""

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
    click.option("--to-earliest", is_flag=True, default=None, help="To the start of the log."),
    click.option("--to-latest", is_flag=True, default=None, help="To its end: skip everything."),
    click.option(
        "--to-datetime",
        metavar="ISO",
        help="To the first record at or after a time, such as 2013-07-04T12:00:00 (UTC unless it"
        " says otherwise), or the milliseconds since 1970; to the end where there is none.",
    ),
    click.option(
        "--shift-by", type=int, metavar="N", help="By so many offsets on, or back (-100)."
    ),
    click.option(
        "--to-offset",
        type=click.IntRange(0),
        metavar="N",
        help="To this offset, in each partition.",
    ),
    click.option(
        FROM_FILE,
        type=click.File(encoding="utf-8-sig"),
        metavar="CSV",
        help="To the offsets in a file, with lines of topic,partition,offset (- is stdin).",
    ),
)


def reset_options(function: F) -> F:
    """Add the options that say where to go; `read_targets` takes what they were given."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True)
class Targets:
    """What was asked for: one of these is set."""

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
        """Return the offset asked for in each partition, be it within its bounds or not.

        Raises:
            click.ClickException: nothing is committed that could be shifted.
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
            raise click.ClickException(
                f"nothing is committed of {', '.join(missing)} that could be shifted"
            )
        return {at: committed[at] + self.shift_by for at in bounds}


def read_targets(given: Mapping[str, Any]) -> Targets:
    """Read what the options were given.

    Raises:
        click.UsageError: not exactly one of them, or one that makes no sense.
    """
    asked = {name: value for name, value in given.items() if value is not None}
    if len(asked) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"one of {names} says where to go")
    if (moment := asked.pop("to_datetime", None)) is not None:
        return Targets(to_time_ms=time_ms(moment, "--to-datetime"))
    if (lines := asked.pop("from_file", None)) is not None:
        return Targets(from_file=_read_csv(lines))
    return Targets(**asked)


def _read_csv(lines: Any) -> dict[TopicPartition, int]:
    """Read lines of topic,partition,offset; the first may name its columns."""
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
                raise _bad(f"line {number}: {at} is there twice")
            offsets[at] = int(cells[2])
    except (csv.Error, UnicodeDecodeError) as fault:
        raise _bad(str(fault)) from fault
    if not offsets:
        raise _bad("there is no line in it")
    return offsets


def _bad(text: str) -> click.BadParameter:
    return click.BadParameter(text, param_hint=FROM_FILE)
