"""Words of a command line: which are options, and where a value begins."""

from __future__ import annotations

import pytest

from plog.cli.kafka.declarations import OptionValues, declared, help_lines
from plog.cli.option_words import divided, is_option


@pytest.mark.parametrize(
    ("word", "is_one", "is_one_with_numbers"),
    [
        ("--name", True, True),
        ("-n", True, True),
        ("-1", False, True),
        ("-100", False, True),
        ("-1a", True, True),
        ("-", False, False),
        ("--", True, True),
        ("", False, False),
        ("word", False, False),
    ],
)
def test_number_is_an_option_only_if_asked(
    word: str, is_one: bool, is_one_with_numbers: bool
) -> None:
    assert is_option(word) is is_one
    assert is_option(word, numbers=True) is is_one_with_numbers


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("--name", "--name", None),
        ("--name=", "--name", ""),
        ("--name=a=b", "--name", "a=b"),
    ],
)
def test_value_begins_at_the_first_equals_sign(word: str, name: str, value: str | None) -> None:
    assert divided(word) == (name, value)


def test_declarations_are_the_help() -> None:
    options = declared(
        """
        --flag              A flag.
        --server! HOST:PORT  The server.
        --ids! ID...:Long   Numbers.
        --files FILE,...    Several in one word.
        --states [STATES]
        """
    )
    assert [tuple(one)[:6] for one in options.values()] == [
        ("flag", False, None, False, False, None),
        ("server", True, "HOST:PORT", False, False, None),
        ("ids", True, "ID", False, True, "Long"),
        ("files", False, "FILE,...", False, False, None),
        ("states", False, "STATES", True, False, None),
    ]
    assert [" ".join(line.split()) for line in help_lines(options.values())] == [
        "--flag A flag.",
        "--server HOST:PORT The server.",
        "--ids ID Numbers.",
        "--files FILE,... Several in one word.",
        "--states [STATES]",
    ]
    with pytest.raises(ValueError, match="not a declaration: 'flag'"):
        declared("flag")


def test_last_value_of_an_option_counts() -> None:
    given = OptionValues({"flag": [], "text": ["a", "b"]})
    assert (given.has("flag"), given.has("other")) == (True, False)
    assert (given.value("text"), given.value("flag"), given.value("other")) == ("b", None, None)
    assert (given.text("text"), given.text("other", "c")) == ("b", "c")
    assert given.values("text") == ["a", "b"]
