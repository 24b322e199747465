"""Times and durations as Java reads them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

SECOND_MS = 1000
DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?[0-9]+)D)?"
    r"(?:T(?:(?P<hours>[-+]?[0-9]+)H)?(?:(?P<minutes>[-+]?[0-9]+)M)?"
    r"(?:(?P<seconds>[-+]?[0-9]+(?:[.,][0-9]{0,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)
DATE_TIME = re.compile(
    r"(\d+)-(\d+)-(\d+)T(\d+):(\d+)(?::(\d+)(?:\.(\d+))?)?(Z|[+-]\d\d(?::?\d\d)?)", re.ASCII
)


def date_time_ms(text: str) -> int:
    """Read `2026-01-31T12:00:00.000`, with a time zone or in UTC, as ms since 1970.

    Raises:
        ValueError: it is no such time.
    """
    _, t, clock = text.partition("T")
    if not t:
        raise ValueError(
            "java.text.ParseException: Error parsing timestamp."
            " It does not contain a 'T' according to ISO8601 format"
        )
    with_zone = text if re.search(r"[-+Z]", clock) else f"{text}Z"
    found = DATE_TIME.fullmatch(with_zone)
    if found is None:
        raise ValueError(f'java.text.ParseException: Unparseable date: "{with_zone}"')
    year, month, day, hour, minute, second, ms = (int(group or 0) for group in found.groups()[:7])
    # Java's lenient calendar lets a field run over into the next one.
    when = datetime(year, 1, 1, tzinfo=UTC)
    when = when.replace(year=year + (month - 1) // 12, month=(month - 1) % 12 + 1)
    when += timedelta(days=day - 1, hours=hour, minutes=minute, seconds=second, milliseconds=ms)
    return int(when.timestamp() * SECOND_MS) - _zone_ms(found[8])


def _zone_ms(zone: str) -> int:
    if zone == "Z":
        return 0
    digits = zone[1:].replace(":", "")
    minutes = int(digits[:2]) * 60 + int(digits[2:] or 0)
    return (-minutes if zone[0] == "-" else minutes) * 60 * SECOND_MS


def duration_ms(text: str) -> int:
    """Read an ISO 8601 duration such as `P1DT2H`, in ms.

    Raises:
        ValueError: it is none.
    """
    found = DURATION.fullmatch(text)
    if found is None or not any(found.groups()[1:]) or text[-1] in "Tt":
        raise ValueError("Text cannot be parsed to a Duration")
    days, hours, minutes = (int(found[name] or 0) for name in ("days", "hours", "minutes"))
    seconds = float((found["seconds"] or "0").replace(",", "."))
    whole = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return int(whole.total_seconds() * SECOND_MS) * (-1 if found["sign"] == "-" else 1)


def format_time(when: datetime, pattern: str) -> str:
    """Format a time by the letters y, M, d, H, m, s and S of Java's SimpleDateFormat."""
    values = {
        "y": when.year,
        "M": when.month,
        "d": when.day,
        "H": when.hour,
        "m": when.minute,
        "s": when.second,
        "S": when.microsecond // 1000,
    }

    def field(found: re.Match[str]) -> str:
        letters = found[0]
        text = str(values[letters[0]]).zfill(len(letters))
        return text[-2:] if letters == "yy" else text

    return re.sub(r"([yMdHmsS])\1*", field, pattern)
