"""How `plog produce` reads records from lines of text and of JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.cli.record_formats import json_format
from plog.cli.record_inputs import InvalidLine, json_reader, text_reader
from plog.client.consumer import ConsumerRecord

OPTIONS = {"key_separator": b":", "header_separator": b"|", "null": b"-"}
DEEP = b'{"value": ' + b"[" * 100_000


@pytest.mark.parametrize(
    ("options", "line", "record"),
    [
        ({}, b"a:b\n", (b"a:b", None, ())),
        ({}, b"\xff\r\n", (b"\xff", None, ())),
        ({}, b"\n", (b"", None, ())),
        ({}, b"a\r", (b"a", None, ())),
        ({"null": b"-"}, b"-\n", (None, None, ())),
        ({"null": b""}, b"\n", (None, None, ())),
        ({"key_separator": b":"}, b"k:v:w\n", (b"v:w", b"k", ())),
        ({"key_separator": b":"}, b":\n", (b"", b"", ())),
        ({"key_separator": b":", "require_key": False}, b"v\n", (b"v", None, ())),
        ({"key_separator": b"::"}, b"a:b::c\n", (b"c", b"a:b", ())),
        (OPTIONS, b"|k:v\n", (b"v", b"k", [])),
        (OPTIONS, b"|-:-\n", (None, None, [])),
        (OPTIONS, b"|-k:v-\n", (b"v-", b"-k", [])),
        (OPTIONS, b"a=1,a=-,=,b==|k:|v\n",
            (b"|v", b"k", [("a", b"1"), ("a", None), ("", b""), ("b", b"=")])),
        ({"header_separator": b"|"}, b"a=\xff|v:w\n", (b"v:w", None, [("a", b"\xff")])),
    ],
)  # fmt: skip
def test_text_is_split(options, line, record):
    assert text_reader(**options)(line) == (*record, None, None)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"k:v\n", "no header separator '|' in 'k:v'"),
        (b"a=1|v\n", "no key separator ':' in 'v'"),
        (b"|\x1b[31m" + b"x" * 100 + b"\xff\n",
            r"no key separator ':' in '\x1b[31m" + "x" * 35 + "...'"),
        (b"a|k:v\n", "header 'a' is not NAME=VALUE"),
        (b"a=1,|k:v\n", "header '' is not NAME=VALUE"),
        (b"\xff=1|k:v\n", r"header name '\xff' is not UTF-8"),
    ],
)  # fmt: skip
def test_invalid_text_is_refused(line, fault):
    with pytest.raises(InvalidLine) as raised:
        text_reader(**OPTIONS)(line)
    assert str(raised.value) == fault


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ('{"value": "v"}', (b"v", None, (), None, None)),
        ('{"value": null, "key": "k"}', (None, b"k", (), None, None)),
        ('{"value": "\\u0000\\ud83d\\ude00"}', ("\0\U0001f600".encode(), None, (), None, None)),
        ('{"value": {"base64": "//4="}, "key": {"base64": ""}}',
            (b"\xff\xfe", b"", (), None, None)),
        ('{"value": "", "partition": 3, "timestamp": 7}', (b"", None, (), 3, 7)),
        ('{"value": "", "partition": null, "timestamp": -1, "headers": null}',
            (b"", None, (), None, None)),
        ('{"value": "", "headers": [["a", null], ["a", "ü"], ["", {"base64": "/w=="}]]}',
            (b"", None, [("a", None), ("a", "ü".encode()), ("", b"\xff")], None, None)),
        ('{"value": "", "topic": 1, "offset": "x", "timestamp_type": []}',
            (b"", None, (), None, None)),
    ],
)  # fmt: skip
def test_json_is_read(line, record):
    assert json_reader()(line.encode() + b"\r\n") == record


@pytest.mark.parametrize("line", [b"", b"\n", b" \t\r\n"])
def test_blank_line_of_json_has_no_record(line):
    assert json_reader()(line) is None


def test_partitions_are_left_out_where_they_are_not_kept():
    assert json_reader(keep_partitions=False)(b'{"value": "", "partition": 3}')[3] is None


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"hello", "not JSON: Expecting value at character 1: 'hello'"),
        (b'{"value": 1', """not JSON: Expecting ',' delimiter at character 12: '{"value": 1'"""),
        (b'{"value": "\xff"}', r"""not UTF-8 at byte 12: '{"value": "\xff"}'"""),
        (DEEP, "not JSON that can be read: '" + DEEP[:40].decode() + "...'"),
        (b'{"value": "", "offset": ' + b"9" * 5000 + b"}", "not JSON that can be read: "),
        (b'["value"]', "not a JSON object: '[\"value\"]'"),
        (b"{}", "no field 'value': write null for a tombstone"),
        (b'{"vaule": "v"}', "unknown field 'vaule': use topic, partition, "),
        (b'{"value": 1}', 'value is not text, null or {"base64": "..."}'),
        (b'{"value": "", "key": {"base64": "", "x": 1}}', "key is not text, null or "),
        (b'{"value": {"base64": "a"}}', "value is not valid base64: "),
        (b'{"value": {"base64": "\\u00fc"}}', "value is not valid base64: "),
        (b'{"value": "\\ud800"}', "value has half of a surrogate pair"),
        (b'{"value": "", "partition": -1}', "partition is not a number from 0 to 2147483647"),
        (b'{"value": "", "partition": "0"}', "partition is not a number from "),
        (b'{"value": "", "partition": true}', "partition is not a number from "),
        (b'{"value": "", "timestamp": -2}', "timestamp is not a number from -1 to "),
        (b'{"value": "", "timestamp": 1.5}', "timestamp is not a number from -1 to "),
        (b'{"value": "", "headers": {"a": "b"}}', "headers are not a list of [name, value]"),
        (b'{"value": "", "headers": [["a"]]}', "headers are not a list of [name, value]"),
        (b'{"value": "", "headers": [[null, ""]]}', "headers are not a list of [name, value]"),
        (b'{"value": "", "headers": [["a", 1]]}', "header value is not text, null or "),
        (b'{"value": "", "headers": [["\\udc00", ""]]}', "header name has half of a "),
    ],
)  # fmt: skip
def test_invalid_json_is_refused(line, fault):
    with pytest.raises(InvalidLine) as raised:
        json_reader()(line)
    assert str(raised.value).startswith(fault)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_line_is_a_record_or_is_refused_in_one_line(line):
    for read in (json_reader(), text_reader(**OPTIONS)):
        refusal = ""
        try:
            read(line)
        except InvalidLine as fault:
            refusal = str(fault)
        assert refusal.isprintable()


DATA = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)


@given(
    st.builds(
        ConsumerRecord,
        st.just("t"),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.sampled_from([0, 1]),
        DATA,
        DATA,
        st.lists(st.tuples(st.text(max_size=5), DATA), max_size=4).map(tuple),
    )
)
def test_json_that_consume_prints_is_read_back(record):
    line = json_format()(record)
    assert line.index(b"\n") == len(line) - 1
    json.loads(line)
    value, key, headers, partition, timestamp = json_reader()(line)
    found = (partition, timestamp, key, value, tuple(headers))
    assert found == (record.partition, record.timestamp, *record[5:8])
