"""Regular expressions in RE2's syntax: what matches, what is refused, and what it may cost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.coordinator.topic_regex import Pattern
from plog.errors import InvalidRegularExpression

NAMES = ["a", "aa", "ab", "b", "B", "a.b", "a-b", "a_b", "logs-1", "logs-22", "x" * 249]


@pytest.mark.parametrize(
    ("regex", "matching"),
    [
        ("a", ["a"]),
        ("a*", ["a", "aa"]),
        ("a+?b?", ["a", "aa", "ab"]),
        ("a|b", ["a", "b"]),
        ("(?i)b", ["b", "B"]),
        ("(?i:a)b|(?-i)b", ["ab", "b"]),
        ("a.b", ["a.b", "a-b", "a_b"]),
        (r"a\.b", ["a.b"]),
        ("a[.-]b", ["a.b", "a-b"]),
        ("a[^.-]b", ["a_b"]),
        (r"logs-\d", ["logs-1"]),
        (r"^logs-\d{1,2}$", ["logs-1", "logs-22"]),
        ("(?P<kind>logs)-[[:digit:]]+", ["logs-1", "logs-22"]),
        (r"\Alogs\b-2{2}\z", ["logs-22"]),
        (r"\Qa.b\E", ["a.b"]),
        (r"\x61\x{62}", ["ab"]),
        (r"\141", ["a"]),
        (r"\pL", ["a", "b", "B"]),
        (r"\p{Lu}", ["B"]),
        (r"\P{Greek}", ["a", "b", "B"]),
        ("x{249}", ["x" * 249]),
        ("a{,2}", []),
        ("", []),
        ("()", []),
        ("(a|ab)(c|bcd)*", ["a", "ab"]),
        (r"a\Bb", ["ab"]),
        (r"a\Ba", ["aa"]),
        ("é", []),
    ],
)
def test_names_that_match(regex: str, matching: list[str]) -> None:
    assert Pattern(regex).matching(NAMES) == set(matching)


@pytest.mark.parametrize(
    "regex",
    [
        "(", ")", "a)", "[", "[a", "[]", "*", "+a", "a**", "a{2}{3}", "a|*", "(?=a)", "(?!a)",
        "(?<=a)", "(?<!a)", r"\1", r"(a)\1", "\\", r"\8", r"\y", r"\pX", r"\p{Nobody}", "[b-a]",
        "[[:nothing:]]", "a{1001}", "a{3,2}", "(?z)a", "(?P<n>a)(?P<n>b)", "(?P<>a)",
        "((a{100}){100}){100}",
        "(" * 200 + ")" * 200, r"\x{110000}", r"\x1",
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused(regex: str) -> None:
    with pytest.raises(InvalidRegularExpression):
        Pattern(regex)


@pytest.mark.parametrize("regex", ["(a*)*b", "(a|a)*b", "(a?){200}a{200}", "(.*)*(.*)*[^ax]"])
def test_expressions_that_others_take_for_ever_with_are_fast(regex: str) -> None:
    assert Pattern(regex).matching(["a" * 150, "x" * 249], most_steps=5_000_000) == set()


def test_what_takes_too_many_steps_is_given_up() -> None:
    with pytest.raises(InvalidRegularExpression, match="too long"):
        Pattern("(a|b|c)*d").matching(["abc"], most_steps=10)


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\.", "-", "(?:a|b)", "(ab)"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(lambda one, two: one + two, inner, inner),
        st.builds(lambda one, two: f"(?:{one}|{two})", inner, inner),
        st.builds(
            lambda one, many: f"(?:{one}){many}", inner, st.sampled_from("*+?") | st.just("{1,2}")
        ),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, st.lists(st.text("ab.-1", max_size=5)))
def test_pythons_expressions_agree_where_the_syntax_is_the_same(
    regex: str, names: list[str]
) -> None:
    expected = {name for name in names if re.fullmatch(regex, name)}
    assert Pattern(regex).matching(names) == expected


@given(st.text(st.sampled_from("ab|*+?()[]{}^$\\.-,12:<P>=iQE"), max_size=12))
def test_junk_is_refused_or_matched(regex: str) -> None:
    try:
        pattern = Pattern(regex)
    except InvalidRegularExpression:
        return
    pattern.matching(NAMES)
