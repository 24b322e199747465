"""Java's properties syntax, as java.util.Properties reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.errors import ConfigError
from plog.settings.properties import Entry, load_properties, parse_properties

CASES = {
    "equals": ("key=value", [("key", "value", 1)]),
    "colon": ("key:value", [("key", "value", 1)]),
    "space": ("key value", [("key", "value", 1)]),
    "spaces around the separator": ("key \t=  value", [("key", "value", 1)]),
    "only the first separator counts": ("key = = value", [("key", "= value", 1)]),
    "a url": ("listeners=A://h:1,B://h:2", [("listeners", "A://h:1,B://h:2", 1)]),
    "trailing space stays": ("key=value ", [("key", "value ", 1)]),
    "no value": ("key", [("key", "", 1)]),
    "no key": ("=value", [("", "value", 1)]),
    "comments": ("# a\n  ! b = c\nkey=#value", [("key", "#value", 3)]),
    "a comment does not go on": ("# a \\\nkey=value", [("key", "value", 2)]),
    "blank lines": ("\n \t\f\nkey=value\n\n", [("key", "value", 3)]),
    "ends": ("a=1\rb=2\r\nc=3\nd", [("a", "1", 1), ("b", "2", 2), ("c", "3", 3), ("d", "", 4)]),
    "goes on": ("key=a,\\\n    b,\\\n    c\nnext=d", [("key", "a,b,c", 1), ("next", "d", 4)]),
    "goes on into what looks like a comment": ("key=a\\\n  # b", [("key", "a# b", 1)]),
    "goes on into a blank line": ("key=a\\\n\nnext=b", [("key", "a", 1), ("next", "b", 3)]),
    "goes on at the end": ("key=a\\", [("key", "a", 1)]),
    "two backslashes do not go on": ("key=a\\\\\nnext=b", [("key", "a\\", 1), ("next", "b", 2)]),
    "three go on": ("key=a\\\\\\\nb", [("key", "a\\b", 1)]),
    "only a backslash": ("\\\n\nkey=a", [("key", "a", 3)]),
    "escaped separators": ("a\\=b\\:c\\ d=e", [("a=b:c d", "e", 1)]),
    "escaped letters": ("key=\\t\\n\\r\\f\\q\\\\", [("key", "\t\n\r\fq\\", 1)]),
    "unicode escape": ("key=\\u00e9\\u20AC", [("key", "é€", 1)]),
    "surrogate pair": ("key=\\ud83d\\ude00", [("key", "\U0001f600", 1)]),
    "utf-8": ("key=é€\U0001f600", [("key", "é€\U0001f600", 1)]),
    "the same key twice": ("key=a\nkey=b", [("key", "a", 1), ("key", "b", 2)]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_text_gives_its_entries(text, expected):
    assert parse_properties(text, "test") == [Entry(*entry) for entry in expected]


def test_malformed_escapes_are_all_reported_with_their_lines():
    with pytest.raises(ConfigError) as caught:
        parse_properties("a=\\u12\nb=fine\nc=\\uzzzz\nd=\\ud800", "file")
    assert str(caught.value).splitlines() == [
        "file:1: malformed escape '\\\\u12'",
        "file:3: malformed escape '\\\\uzzzz'",
        "file:4: an escape is half of a surrogate pair",
    ]


def test_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.properties: No such file"):
        load_properties(tmp_path / "absent.properties")


def test_bytes_that_are_not_utf8_are_refused_with_their_line(tmp_path):
    path = tmp_path / "latin1.properties"
    path.write_bytes(b"a=1\nb=\xe9\n")
    with pytest.raises(ConfigError, match=r"latin1\.properties:2: not UTF-8"):
        load_properties(path)


@given(st.text(alphabet="ab=: \t\\#!\nu0dé", max_size=40))
def test_any_text_gives_entries_or_a_config_error(text):
    try:
        entries = parse_properties(text, "test")
    except ConfigError:
        return
    lines = [entry.line for entry in entries]
    assert lines == sorted(set(lines))


def escape(text: str) -> str:
    plain = text.encode("utf-16-be")
    units = [int.from_bytes(plain[at : at + 2], "big") for at in range(0, len(plain), 2)]
    return "".join(f"\\u{unit:04x}" for unit in units)


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4))
def test_escaped_text_comes_back(values):
    text = "\n".join(f"{escape(key)}={escape(value)}" for key, value in values.items())
    assert {e.key: e.value for e in parse_properties(text, "test")} == values
