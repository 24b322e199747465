"""The templates and columns by which `plog consume` prints records."""

from __future__ import annotations

import json

import pytest

from plog.cli.record_formats import FIELDS, column_format, json_format, template_format, unescape
from plog.client.consumer import ConsumerRecord

FULL = ConsumerRecord(
    "flights", 2, 41, 1372939200123, 1, b"k\xff", b"a\tb\n", (("h", b"1"), ("h", None), ("", b""))
)
EMPTY = ConsumerRecord("t", 0, 0, -1, 0, None, None, ())
HEADERS = b"h=1,h=null,="


@pytest.mark.parametrize(
    ("template", "full", "empty"),
    [
        ("{value}", b"a\tb\n\n", b"null\n"),
        ("{topic}:{partition}@{offset}", b"flights:2@41\n", b"t:0@0\n"),
        ("{time} {timestamp}", b"2013-07-04T12:00:00.123Z 1372939200123\n", b" -1\n"),
        ("{timestamp_type}", b"LogAppendTime\n", b"CreateTime\n"),
        ("{key}={value}", b"k\xff=a\tb\n\n", b"null=null\n"),
        ("[{headers}]", b"[%b]\n" % HEADERS, b"[]\n"),
        ("{key_size} {value_size}", b"2 4\n", b"-1 -1\n"),
        (r"{key}\n", b"k\xff\n", b"null\n"),
        (r"{key}\0", b"k\xff\0", b"null\0"),
        (r"{key}\n\t", b"k\xff\n\t\n", b"null\n\t\n"),
        (r"{offset}\x1f\\n100%{{}}%b", b"41\x1f\\n100%{}%b\n", b"0\x1f\\n100%{}%b\n"),
        ("{offset}\udcff\u00fc", b"41\xff\xc3\xbc\n", b"0\xff\xc3\xbc\n"),
    ],
)
def test_template_prints(template, full, empty):
    line = template_format(template)
    assert line(FULL) == full
    assert line(EMPTY) == empty


def test_every_field_prints():
    line = template_format("|".join(f"{{{name}}}" for name in FIELDS))
    assert line(FULL).count(b"|") == len(FIELDS) - 1


def test_null_has_the_given_text():
    template = "{key} {value} {headers}"
    assert template_format(template, "~")(FULL) == b"k\xff a\tb\n h=1,h=~,=\n"
    assert template_format(template, "")(EMPTY) == b"  \n"
    assert column_format(set(), r"\N")(EMPTY) == b"\\N\n"


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{vaule}", r"unknown field \{vaule\}: use topic, .*, value_size"),
        ("{}", r"unknown field \{\}"),
        ("{ key}", r"unknown field \{ key\}"),
        ("{key", r"single \{ in '\{key': write \{\{"),
        ("key}", r"single \} in 'key\}': write \}\}"),
        ("{{key}", r"single \}"),
        (r"{key}\q", r"unknown escape \\q: use"),
        ("{key}\\", r"unknown escape \\: use"),
        (r"\x1", r"unknown escape \\x: use"),
        ("%o %s", r"no field in '%o %s': use \{topic\}, .*, \{value_size\}"),
        (r"{{key}}\n", r"no field in '\{\{key"),
        ("", "no field in ''"),
    ],
)
def test_wrong_template_is_refused(template, fault):
    with pytest.raises(ValueError, match=fault):
        template_format(template)


@pytest.mark.parametrize(
    ("columns", "printed"),
    [
        (set(), b"a\tb\n\n"),
        ({"key"}, b"k\xff\ta\tb\n\n"),
        ({"key", "headers"}, HEADERS + b"\tk\xff\ta\tb\n\n"),
        (
            {"topic", "partition", "offset", "time", "headers", "key"},
            b"flights\t2\t41\t2013-07-04T12:00:00.123Z\t" + HEADERS + b"\tk\xff\ta\tb\n\n",
        ),
    ],
)
def test_columns_have_one_order(columns, printed):
    assert column_format(columns)(FULL) == printed


def test_json_has_every_field():
    assert json.loads(json_format()(FULL)) == {
        "topic": "flights",
        "partition": 2,
        "offset": 41,
        "timestamp": 1372939200123,
        "timestamp_type": "LogAppendTime",
        "key": {"base64": "a/8="},
        "value": "a\tb\n",
        "headers": [["h", "1"], ["h", None], ["", ""]],
    }


def test_separators_have_escapes_but_no_fields():
    assert unescape(r"\t{key}\x00\\") == b"\t{key}\0\\"
    with pytest.raises(ValueError, match="unknown escape"):
        unescape(r"\s")
