"""How Kafka's scripts read command lines, properties, times and bytes, without a broker."""

from __future__ import annotations

import io
from datetime import datetime

import pytest

from plog.cli.kafka.commands import CommandFault, Commands
from plog.cli.kafka.config import ClientFault, ClientProperties, pairs
from plog.cli.kafka.java_data import deserializer
from plog.cli.kafka.java_times import date_time_ms, duration_ms, format_time
from plog.cli.kafka.line_reader import LineReader
from plog.cli.kafka.options import HelpWanted, OptionFault, Options, UsageFault, VersionWanted

OPTIONS = Options("About.", "--flag  Help.\n--text VALUE  Help.\n--state [STATES]  Help.")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--flag", {"flag": []}),
        ("--text a", {"text": ["a"]}),
        ("--text=a", {"text": ["a"]}),
        ("-text a", {"text": ["a"]}),
        ("--text a --text b", {"text": ["a", "b"]}),
        # A required value may look like an option.
        ("--text --flag", {"text": ["--flag"]}),
        ("--text= b", {"text": ["b"]}),
        # An optional value may not.
        ("--state --flag", {"state": [], "flag": []}),
        ("--state a,b", {"state": ["a,b"]}),
        ("--flag -- --text a", {"flag": []}),
        ("stray --flag word", {"flag": []}),
    ],
)
def test_options_are_read_as_by_javas_parser(line, expected):
    given = OPTIONS.read(line.split())
    names = ("flag", "text", "state")
    assert {name: given.values(name) for name in names if given.has(name)} == expected


@pytest.mark.parametrize(
    ("line", "fault", "text"),
    [
        ("--bogus", OptionFault, "bogus is not a recognized option"),
        # No abbreviations.
        ("--fla", OptionFault, "fla is not a recognized option"),
        ("--text", OptionFault, "Option text requires an argument"),
        ("", HelpWanted, ""),
        ("--flag --help", HelpWanted, ""),
        ("--version", VersionWanted, ""),
    ],
)
def test_wrong_options_are_errors(line, fault, text):
    with pytest.raises(fault) as raised:
        OPTIONS.read(line.split())
    assert str(raised.value) == text


def test_values_are_checked():
    given = OPTIONS.read(["--text", "x", "--flag"])
    with pytest.raises(OptionFault, match="Cannot parse argument 'x' of option text"):
        given.integer("text")
    with pytest.raises(UsageFault, match=r'Missing required argument "\[state\]"'):
        given.require("text", "state")
    with pytest.raises(
        UsageFault, match=r'Option "\[flag\]" can\'t be used with option "\[text\]"'
    ):
        given.refuse("flag", "state", "text")
    assert OPTIONS.read(["--text", "2147483647"]).integer("text") == 2**31 - 1
    with pytest.raises(OptionFault):
        OPTIONS.read(["--text", "2147483648"]).integer("text")
    with pytest.raises(OptionFault, match="Found multiple arguments for option text"):
        OPTIONS.read(["--text", "a", "--text", "b"]).value("text")


COMMANDS = Commands(
    "script",
    "About.",
    "--server! HOST  Help.",
    {"get": ("Get.", "--part! NUMBER:Integer  Help.\n--many WORD...  Help."), "put": ("Put.", "")},
)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "too few arguments"),
        ("--server a", "too few arguments"),
        ("get", "argument --server is required"),
        ("--server a bogus", "invalid choice: 'bogus' (choose from 'get', 'put')"),
        ("--server a get", "argument --part is required"),
        ("--server a get --part", "argument --part: expected one argument"),
        ("--server a get --part 1 --many", "argument --many: expected at least one argument"),
        (
            "--server a get --part x",
            "argument --part: could not convert 'x' to Integer (For input string: \"x\")",
        ),
        ("--server a put --part 1", "unrecognized arguments: '--part' '1'"),
    ],
)
def test_wrong_commands_are_errors(line, text):
    with pytest.raises(CommandFault) as raised:
        COMMANDS.read(line.split())
    assert str(raised.value) == text


def test_commands_are_read():
    words = COMMANDS.read(["--server=a", "get", "--pa", "-1", "--many", "x", "y", "--many", "z"])
    assert (words.command, words.text("server"), words.number("part")) == ("get", "a", -1)
    assert words.values("many") == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01.500", 1500),
        ("1970-01-01T00:00:01.500Z", 1500),
        ("1970-01-01T01:00:00.000+01:00", 0),
        ("1970-01-01T01:00:00.000+0100", 0),
        ("1970-01-01T00:00:00.000-01", 3_600_000),
        # Java's calendar is lenient.
        ("1970-01-32T00:00:00.000", 31 * 86_400_000),
    ],
)
def test_time_is_read_as_by_java(text, expected):
    assert date_time_ms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT1H", 3_600_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("-PT1S", -1000),
        ("pt0.25s", 250),
    ],
)
def test_duration_is_read_as_by_java(text, expected):
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "P1H", "P1DT", "PT1"])
def test_text_that_is_no_duration_is_an_error(text):
    with pytest.raises(ValueError, match="Text cannot be parsed to a Duration"):
        duration_ms(text)


def test_time_is_formatted_by_javas_letters():
    when = datetime(2026, 3, 4, 5, 6, 7, 89_000)
    assert format_time(when, "yyyy-MM-dd HH:mm:ss:SSS") == "2026-03-04 05:06:07:089"
    assert format_time(when, "d/M/yy H") == "4/3/26 5"


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("LongDeserializer", bytes(7) + b"\x05", b"5"),
        ("org.apache.kafka.common.serialization.IntegerDeserializer", b"\xff" * 4, b"-1"),
        ("BytesDeserializer", b"a\x00\xff", rb"a\x00\xFF"),
        ("StringDeserializer", b"\xff", "�".encode()),
        ("BooleanDeserializer", b"\x01", b"true"),
    ],
)
def test_bytes_are_decoded_as_by_kafkas_class(name, data, text):
    assert deserializer(name)(data) == text


def lines_of(text: str, **properties: str):
    named = {key.replace("_", "."): value for key, value in properties.items()}
    return list(LineReader(io.BytesIO(text.encode()), named, is_prompting=False))


def test_lines_become_records():
    assert lines_of("a\r\nb") == [(None, b"a", []), (None, b"b", [])]
    assert lines_of("k\tv\tw\n", parse_key="true") == [(b"k", b"v\tw", [])]
    whole = {"parse_key": "true", "parse_headers": "true", "null_marker": "-"}
    assert lines_of("a:1,b:-\tk\t-\n-\t-\tv\n", **whole) == [
        (b"k", None, [("a", b"1"), ("b", None)]),
        (None, b"v", []),
    ]


@pytest.mark.parametrize(
    ("text", "properties", "fault"),
    [
        ("a\tb\nc\n", {"parse_key": "true"}, "No key separator found on line number 2: 'c'"),
        (
            "a\n",
            {"parse_headers": "true"},
            "No headers delimiter found on line number 1: 'a'",
        ),
        (
            "a\tb\n",
            {"parse_headers": "true"},
            "No header key separator found in pair 'a' on line number 1",
        ),
        (
            "",
            {"headers_delimiter": ",", "headers_separator": ","},
            "headers.delimiter and headers.separator may not be equal",
        ),
    ],
)
def test_lines_without_separators_are_errors(text, properties, fault):
    with pytest.raises(ValueError, match=fault):
        lines_of(text, **properties)


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({}, "No resolvable bootstrap urls given in bootstrap.servers"),
        ({"bootstrap.servers": "host"}, "Invalid url in bootstrap.servers: host"),
        (
            {"bootstrap.servers": "host:1", "security.protocol": "SASL_SSL"},
            "security.protocol=SASL_SSL is not supported yet; only PLAINTEXT is",
        ),
    ],
)
def test_client_that_cannot_be_made_is_an_error(properties, why):
    with pytest.raises(ClientFault) as raised:
        ClientProperties(properties, "no client").cluster()
    assert (str(raised.value), raised.value.why) == ("no client", why)


def test_properties_become_arguments():
    given = pairs(["acks=1", "linger.ms=7", "unknown=x", "bootstrap.servers=h:1"])
    arguments = ClientProperties(given, "no client").producer_arguments()
    assert (arguments["acks"], arguments["linger_ms"]) == ("1", 7)
    assert not arguments["enable_idempotence"]
    wrong = ClientProperties({"isolation.level": "x"}, "no client")
    with pytest.raises(ValueError, match="Invalid value x for configuration"):
        wrong.reader_arguments()
