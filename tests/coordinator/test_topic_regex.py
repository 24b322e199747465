"""Regular expressions in RE2's syntax: what matches, what is refused, and what it may cost."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from plog.coordinator.topic_regex import Pattern
from plog.errors import InvalidRegularExpression

MOST_GROWTH_KB = 40 << 10
GROWTH = """
import re2, sys
from plog.coordinator.topic_regex import HEAVY, MOST_CHARACTERS, MOST_HEAVY, Pattern
from plog.errors import InvalidRegularExpression

def peak_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

unit = sys.argv[1]
heavy = sum(map(unit.count, HEAVY))
most = MOST_HEAVY // heavy if heavy else MOST_CHARACTERS // len(unit)
before = peak_kb()
for times in (most // 16, most // 4, most, most + 1):
    try:
        Pattern(unit * times).matching(["a" * 249, "z" * 249, "-" * 249])
    except InvalidRegularExpression:
        pass
    print(peak_kb() - before)
"""
NFA = "(?:[a-z]?[b-z]?[c-z]?)" * 360
"""What RE2 does not make an automaton of within its memory, and follows step by step."""
NAMES = ["a", "aa", "ab", "b", "B", "a.b", "a-b", "a_b", "logs-1", "logs-22", "x" * 249]


def run_python(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


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
        ("(?<kind>logs)-1", ["logs-1"]),
        ("(?P<n>a)(?P<n>b)", ["ab"]),
        (".{0,1000}1", ["logs-1"]),
        ("logs", []),
        ("(?m)^a$", ["a"]),
        ("(" * 200 + "a" + ")" * 200, ["a"]),
        ("|".join(f"logs-{n}" for n in range(20, 900)), ["logs-22"]),
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
        "[[:nothing:]]", "a{1001}", "a{3,2}", "(?z)a", "(?P<>a)",
        "((a{100}){100}){100}", r"\x{110000}", r"\x1", "a" * 8_001, ".{1000}" * 20,
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused(regex: str) -> None:
    with pytest.raises(InvalidRegularExpression):
        Pattern(regex)


def test_what_is_wrong_is_told_in_few_words(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidRegularExpression, match=r"^missing \): \({10}") as refused:
        Pattern("(" * 8_000)
    assert len(str(refused.value)) < 200
    assert Pattern(NFA).matching(["a" * 249])
    assert capfd.readouterr() == ("", "")  # RE2 writes there by itself


@pytest.mark.parametrize(
    "regex", ["(a*)*b", "(a|a)*b", "(a?){200}a{200}", "(.*)*(.*)*[^ax]", f"{NFA}-"]
)
def test_expressions_that_others_take_for_ever_with_are_fast(regex: str) -> None:
    assert Pattern(regex).matching(["a" * 150, "x" * 249]) == set()


def test_what_takes_too_long_is_given_up() -> None:
    with pytest.raises(InvalidRegularExpression, match="too long"):
        Pattern("(a|b|c)*d").matching(["abc"], most_cpu_s=0)


@pytest.mark.parametrize(
    "unit",
    [
        "a{1000}", "a{0,1000}", r"\pL{0,1000}", ".{0,1000}", r"\pL", r"\PL", r"[^\pL]", "a?", "|",
        "()", "(a+)+", "(?i)[À-Ḁ]", "[^À-Ḁ]", "(?:[a-z]?[b-z]?[c-z]?)", r"((\w{0,30}){0,30})",
    ],
)  # fmt: skip
def test_memory_that_an_expression_takes_is_bounded(unit: str) -> None:
    """The largest that is taken, and one behind it that is not."""
    told = run_python(GROWTH, unit)
    growths = [int(growth) for growth in told.split()]
    assert len(growths) > 1
    assert max(growths) < MOST_GROWTH_KB, told


def test_expressions_are_not_kept() -> None:
    Pattern("kept?").matching(["kept"])
    assert re2._Regexp._make.cache_info().currsize == 0


def test_only_who_has_an_expression_loads_re2() -> None:
    told = run_python(
        "import sys, plog.server; print([one for one in sys.modules if 're2' in one])"
    )
    assert told.split() == ["[]"]


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
