"""Which characters are escaped where text of a client is printed."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from plog.errors import InvalidTopic, KafkaError
from plog.ops.log_lines import LineFormatter
from plog.printable import printable, printable_json

ROOT = Path(__file__).resolve().parent.parent
CHARACTERS = {
    "tab": ("\t", r"\t"),
    "line feed": ("\n", r"\n"),
    "carriage return": ("\r", r"\r"),
    "NUL": ("\0", r"\x00"),
    "ESC": ("\x1b", r"\x1b"),
    "DEL": ("\x7f", r"\x7f"),
    "NEL": ("\x85", r"\x85"),
    "CSI": ("\x9b", r"\x9b"),
    "no-break space": ("\xa0", r"\xa0"),
    "zero width joiner": ("\u200d", r"\u200d"),
    "right-to-left mark": ("\u200f", r"\u200f"),
    "line separator": ("\u2028", r"\u2028"),
    "paragraph separator": ("\u2029", r"\u2029"),
    "right-to-left override": ("\u202e", r"\u202e"),
    "right-to-left isolate": ("\u2067", r"\u2067"),
    "byte order mark": ("\ufeff", r"\ufeff"),
    "lone surrogate": ("\ud800", r"\ud800"),
    "tag": ("\U000e0041", r"\U000e0041"),
}


@pytest.mark.parametrize(("character", "escaped"), CHARACTERS.values(), ids=CHARACTERS)
def test_character_is_escaped_and_read_back_from_json(character: str, escaped: str) -> None:
    assert printable(f"a{character}b") == f"a{escaped}b"
    text = printable_json(json.dumps([f"a{character}b"], ensure_ascii=False, indent=2))
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == [f"a{character}b"]


@pytest.mark.parametrize("text", ["", "a b", "größe", "日本", "🙂", r"a\nb", '"', "[red]"])
def test_printable_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text
    assert printable(printable(text + "\n")) == printable(text + "\n")
    dumped = json.dumps({text: text}, ensure_ascii=False, indent=2)
    assert printable_json(dumped) == dumped


def test_every_character_comes_out_printable() -> None:
    text = "".join(map(chr, range(0x110000)))
    assert printable(text).isprintable()


def test_message_of_an_error_is_one_line() -> None:
    assert str(InvalidTopic("topic a\nb\x1b[31m")) == r"topic a\nb\x1b[31m"
    assert all(cls.__str__ is KafkaError.__str__ for cls in subclasses(KafkaError))


def subclasses(cls: type[KafkaError]) -> list[type[KafkaError]]:
    return [one for sub in cls.__subclasses__() for one in [sub, *subclasses(sub)]]


FORGED = "x\nERROR plog.server: forged"


def formatted(message: str, *arguments: object, error: BaseException | None = None) -> list[str]:
    record = logging.LogRecord("plog.x", logging.INFO, "x.py", 1, message, arguments, None)
    if error is not None:
        record.exc_info = (type(error), error, error.__traceback__)
    return LineFormatter().format(record).split("\n")


def test_event_is_one_line_whatever_it_quotes() -> None:
    assert formatted("topic %s", FORGED) == [r"INFO plog.x: topic x\nERROR plog.server: forged"]
    assert formatted(FORGED) == [r"INFO plog.x: x\nERROR plog.server: forged"]


def test_traceback_has_lines_of_its_own_and_none_of_a_client() -> None:
    try:
        try:
            raise ValueError(FORGED)
        except ValueError as inner:
            inner.add_note(FORGED)
            raise ExceptionGroup(FORGED, [RuntimeError(FORGED), inner]) from inner
    except ExceptionGroup as error:
        lines = formatted("met a bug", error=error)
    assert lines[0] == "INFO plog.x: met a bug"
    assert r"ValueError: x\nERROR plog.server: forged" in lines
    assert sum("test_printable.py" in line for line in lines) >= 2
    assert all(line.isprintable() for line in lines)
    assert not [line for line in lines if line.lstrip(" |+-").startswith("ERROR")]


def test_commands_print_for_people_through_one_function() -> None:
    """Text of a client is escaped; `plog consume` alone prints records unchanged."""
    own = {"__init__.py", "output.py"}
    no_client = {"doctor.py", "host_metrics.py", "log_dirs.py", "perf.py"}
    escape_themselves = {"completion.py", "dump_log.py", "top.py"}
    found = {
        path.name
        for path in (ROOT / "plog" / "cli").glob("*.py")
        if re.search(
            r"click\.(s?echo|echo_via_pager)\(|stdout\.write\(|(?<!def )(?<!\.)\bprint\(",
            path.read_text(),
        )
    }
    assert found == own | no_client | escape_themselves
