"""Regular expressions in RE2's syntax, matched with the names of topics in linear time (KIP-848).

Clients choose the expressions, so that nothing here may go back and try again, as Python's `re`
does: an expression becomes a program whose instructions are followed side by side. Names of
topics have few characters, so every class of characters is a set of those. What an expression
costs is bounded by the size of its program, and by the steps that matching may take.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from plog.errors import InvalidRegularExpression, KafkaError

CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "._-")
"""What names of topics are made of."""
WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
MOST_INSTRUCTIONS: Final = 10_000
DEEPEST: Final = 100
MOST_REPEATS: Final = 1000
"""RE2's own bound of a count."""
MOST_CACHED: Final = 20_000

Set: TypeAlias = frozenset[str]

PERL: Final[Mapping[str, Set]] = {
    "d": frozenset(string.digits),
    "w": WORD,
    "s": frozenset("\t\n\f\r "),
}
POSIX: Final[Mapping[str, Set]] = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": CHARACTERS,
    "blank": frozenset(" \t"),
    "cntrl": frozenset(),
    "digit": frozenset(string.digits),
    "graph": CHARACTERS,
    "lower": frozenset(string.ascii_lowercase),
    "print": CHARACTERS,
    "punct": frozenset("._-"),
    "space": frozenset(string.whitespace),
    "upper": frozenset(string.ascii_uppercase),
    "word": WORD,
    "xdigit": frozenset(string.hexdigits),
}
ESCAPES: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
FOREIGN_SCRIPTS: Final = frozenset(
    [
        *("Arabic", "Armenian", "Bengali", "Cyrillic", "Devanagari", "Georgian", "Greek"),
        *("Han", "Hangul", "Hebrew", "Hiragana", "Katakana", "Thai"),
    ]
)
"""Scripts that no name of a topic has a character of."""
CATEGORIES: Final[Mapping[str, str]] = {
    "C": "cfos",
    "L": "lmotu",
    "M": "cen",
    "N": "dlo",
    "P": "cdefios",
    "S": "ckmo",
    "Z": "lps",
}
"""Unicode's categories, and the second letters of their parts."""
FLAGS: Final = frozenset("imsU")


class Edge(Enum):
    """What a place between characters must be."""

    BEGIN = "begin"
    END = "end"
    WORD = "word boundary"
    NO_WORD = "no word boundary"


class One(NamedTuple):
    """An instruction: take one of these characters."""

    of: Set
    then: int


class Either(NamedTuple):
    """An instruction: go on in two places."""

    this: int
    that: int


class At(NamedTuple):
    """An instruction: go on where the place is such an edge."""

    edge: Edge
    then: int


class Done(NamedTuple):
    """The last instruction."""


Instruction: TypeAlias = One | Either | At | Done
Fragment: TypeAlias = Callable[["_Program", int], int]
"""Adds instructions that go on at the given one, and returns the first of them."""


class _Program:
    def __init__(self) -> None:
        self.instructions: list[Instruction] = [Done()]

    def add(self, instruction: Instruction) -> int:
        if len(self.instructions) >= MOST_INSTRUCTIONS:
            raise InvalidRegularExpression("the expression is too large")
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def loop(self, body: Fragment, then: int) -> int:
        """Add a body that is taken any number of times."""
        start = self.add(Either(0, then))
        self.instructions[start] = Either(body(self, start), then)
        return start


def _one(of: Set) -> Fragment:
    return lambda program, then: program.add(One(of & CHARACTERS, then))


def _at(edge: Edge) -> Fragment:
    return lambda program, then: program.add(At(edge, then))


def _row(parts: list[Fragment]) -> Fragment:
    def add(program: _Program, then: int) -> int:
        for part in reversed(parts):
            then = part(program, then)
        return then

    return add


def _choice(parts: list[Fragment]) -> Fragment:
    def add(program: _Program, then: int) -> int:
        first = parts[-1](program, then)
        for part in reversed(parts[:-1]):
            first = program.add(Either(part(program, then), first))
        return first

    return add


def _repeated(part: Fragment, least: int, most: int | None) -> Fragment:
    def add(program: _Program, then: int) -> int:
        if most is None:
            then = program.loop(part, then)
        else:
            end = then
            for _ in range(most - least):
                then = program.add(Either(part(program, then), end))
        for _ in range(least):
            then = part(program, then)
        return then

    return add


class _Parser:
    """Reads an expression from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next = 0
        self._depth = 0
        self._folds = False  # (?i)
        self._names: set[str] = set()

    def parse(self) -> Fragment:
        whole = self._alternatives()
        if self._next < len(self._text):
            raise self._fault("an unexpected )")
        return whole

    def _fault(self, what: str) -> KafkaError:
        return InvalidRegularExpression(f"{what} at {self._next}")

    def _peek(self) -> str:
        return self._text[self._next : self._next + 1]

    def _take(self) -> str:
        found = self._peek()
        if not found:
            raise self._fault("an unexpected end")
        self._next += 1
        return found

    def _skip(self, text: str) -> bool:
        if not self._text.startswith(text, self._next):
            return False
        self._next += len(text)
        return True

    def _until(self, text: str) -> str:
        end = self._text.find(text, self._next)
        if end < 0:
            raise self._fault(f"no {text}")
        found = self._text[self._next : end]
        self._next = end + len(text)
        return found

    # -- structure ---------------------------------------------------------------------------

    def _alternatives(self) -> Fragment:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._fault("too many groups in each other")
        parts = [self._concatenation()]
        while self._skip("|"):
            parts.append(self._concatenation())
        self._depth -= 1
        return _choice(parts)

    def _concatenation(self) -> Fragment:
        parts: list[Fragment] = []
        while self._peek() not in ("", "|", ")"):
            if self._skip("\\Q"):
                end = self._text.find("\\E", self._next)
                quoted = self._text[self._next :] if end < 0 else self._until("\\E")
                self._next = len(self._text) if end < 0 else self._next
                parts.extend(self._literal(character) for character in quoted)
                continue
            parts.append(self._repetition())
        return _row(parts)

    def _repetition(self) -> Fragment:
        if self._peek() in tuple("*+?") or self._count(look=True) is not None:
            raise self._fault("nothing to repeat")
        part = self._atom()
        count = self._count()
        if count is not None:
            self._skip("?")  # which match is found first means nothing here
            if self._count(look=True) is not None:
                raise self._fault("a repetition of a repetition")
            return _repeated(part, *count)
        return part

    def _count(self, *, look: bool = False) -> tuple[int, int | None] | None:
        """Take how often something is repeated; None if it is not."""
        begin = self._next
        found: tuple[int, int | None] | None = None
        if self._skip("*"):
            found = 0, None
        elif self._skip("+"):
            found = 1, None
        elif self._skip("?"):
            found = 0, 1
        elif self._skip("{"):
            least, comma, most = self._text[self._next :].partition("}")[0].partition(",")
            if _is_number(least) and (not most or _is_number(most)):
                self._until("}")
                if (
                    len(least) > 4
                    or len(most) > 4
                    or max(int(least), int(most or 0)) > MOST_REPEATS
                ):
                    raise self._fault("too high a count")
                found = int(least), (int(most) if most else None) if comma else int(least)
                if found[1] is not None and found[1] < found[0]:
                    raise self._fault("a count that ends before it begins")
        if look or found is None:
            self._next = begin
        return found

    def _atom(self) -> Fragment:
        character = self._take()
        match character:
            case "(":
                return self._group()
            case "[":
                return _one(self._class())
            case ".":
                return _one(CHARACTERS)
            case "^":
                return _at(Edge.BEGIN)
            case "$":
                return _at(Edge.END)
            case "\\":
                return self._escape()
        return self._literal(character)

    def _group(self) -> Fragment:
        kept = self._folds
        if self._skip("?"):
            if self._skip("P<") or (
                self._text[self._next : self._next + 2] not in ("<=", "<!") and self._skip("<")
            ):
                name = self._until(">")
                if not name or not set(name) <= WORD or name in self._names:
                    raise self._fault("a wrong name of a group")
                self._names.add(name)
            elif self._flags():
                return _row([])  # they hold until the group around ends
        whole = self._alternatives()
        if not self._skip(")"):
            raise self._fault("no )")
        self._folds = kept
        return whole

    def _flags(self) -> bool:
        """Take flags; True if they are a group of their own."""
        value, seen = True, False
        while True:
            character = self._take()
            if character in FLAGS:
                seen = True
                if character == "i":
                    self._folds = value
            elif character == "-" and value:
                value, seen = False, False
            elif character in (":", ")") and (seen or (value and character == ":")):
                return character == ")"
            else:
                raise self._fault("a group of an unknown kind")

    # -- characters --------------------------------------------------------------------------

    def _fold(self, found: Set) -> Set:
        if not self._folds:
            return found
        return found | {one.swapcase() for one in found if one.isascii()}

    def _literal(self, character: str) -> Fragment:
        return _one(self._fold(frozenset(character)))

    def _escape(self) -> Fragment:
        character = self._take()
        edge = {"A": Edge.BEGIN, "z": Edge.END, "b": Edge.WORD, "B": Edge.NO_WORD}.get(character)
        if edge is not None:
            return _at(edge)
        return _one(self._fold(self._escaped(character)))

    def _escaped(self, character: str) -> Set:
        """Return what a character stands for behind a backslash."""
        lower = character.lower()
        if lower in PERL:
            return PERL[lower] if character == lower else CHARACTERS - PERL[lower]
        if lower == "p":
            return self._unicode(is_not=character == "P")
        if character == "x":
            digits = self._until("}") if self._skip("{") else self._take() + self._take()
            if not digits or len(digits) > 6 or not set(digits) <= set(string.hexdigits):
                raise self._fault("a wrong \\x")
            if int(digits, 16) > 0x10FFFF:
                raise self._fault("a wrong \\x")
            return frozenset(chr(int(digits, 16)))
        if character in "01234567":
            digits = character
            while len(digits) < 3 and self._peek() and self._peek() in "01234567":
                digits += self._take()
            if character != "0" and len(digits) == 1:
                raise self._fault("a reference to a group")  # which RE2 has not
            return frozenset(chr(int(digits, 8)))
        if character in ESCAPES:
            return frozenset(ESCAPES[character])
        if character.isascii() and not character.isalnum():
            return frozenset(character)
        raise self._fault(f"an unknown escape \\{character}")

    def _unicode(self, *, is_not: bool) -> Set:
        name = self._until("}") if self._skip("{") else self._take()
        if name.startswith("^"):
            name, is_not = name[1:], not is_not
        if name[:1] in CATEGORIES and name[1:] in ("", *CATEGORIES[name[:1]]):
            found = {one for one in CHARACTERS if unicodedata.category(one).startswith(name)}
        elif name == "Any":
            found = set(CHARACTERS)
        elif name == "Latin":
            found = set(POSIX["alpha"])
        elif name == "Common":
            found = set(CHARACTERS - POSIX["alpha"])
        elif name in FOREIGN_SCRIPTS:
            found = set()
        else:
            raise self._fault(f"an unknown class {name:.20}")
        return CHARACTERS - found if is_not else frozenset(found)

    def _class(self) -> Set:
        is_not = self._skip("^")
        found: set[str] = set()
        is_first = True
        while is_first or self._peek() != "]":
            if self._skip("[:"):
                found |= self._posix()
            else:
                found |= self._class_item()
            is_first = False
        self._take()
        folded = self._fold(frozenset(found))
        return CHARACTERS - folded if is_not else folded

    def _posix(self) -> Set:
        name = self._until(":]")
        is_not = name.startswith("^")
        known = POSIX.get(name.removeprefix("^"))
        if known is None:
            raise self._fault(f"an unknown class {name:.20}")
        return CHARACTERS - known if is_not else known

    def _class_item(self) -> Set:
        low = self._class_character()
        if len(low) != 1 or not (
            self._peek() == "-" and self._text[self._next + 1 : self._next + 2] not in ("]", "")
        ):
            return low
        self._take()
        high = self._class_character()
        if len(high) != 1 or min(high) < min(low):
            raise self._fault("a range that ends before it begins")
        return frozenset(one for one in CHARACTERS if min(low) <= one <= min(high))

    def _class_character(self) -> Set:
        character = self._take()
        return frozenset(character) if character != "\\" else self._escaped(self._take())


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


class Pattern:
    """An expression, ready to be matched.

    Raises:
        InvalidRegularExpression: it is none of RE2's, or too large.
    """

    def __init__(self, text: str) -> None:
        program = _Program()
        self._first = _Parser(text).parse()(program, 0)
        self._instructions = program.instructions
        self._steps_left = 0
        self._known: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}

    def matching(self, names: Iterable[str], *, most_steps: int = 50_000_000) -> frozenset[str]:
        """Return the names that match as a whole.

        Raises:
            InvalidRegularExpression: it has taken too many steps to tell.
        """
        self._steps_left = most_steps
        return frozenset(name for name in names if self._matches(name))

    def _matches(self, name: str) -> bool:
        at, before = frozenset((self._first,)), ""
        for character in name:
            at = self._after(at, before, character)
            if not at:
                return False
            before = character
        return 0 in self._reached(at, before, "")

    def _after(self, at: frozenset[int], before: str, character: str) -> frozenset[int]:
        key = at, before, character
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST_CACHED:
                self._known.clear()
            known = self._known[key] = frozenset(
                found.then
                for place in self._reached(at, before, character)
                if isinstance(found := self._instructions[place], One) and character in found.of
            )
        return known

    def _reached(self, at: frozenset[int], before: str, after: str) -> set[int]:
        """Return all instructions that these lead to between two characters."""
        reached: set[int] = set()
        rest = list(at)
        while rest:
            place = rest.pop()
            if place in reached:
                continue
            reached.add(place)
            match self._instructions[place]:
                case Either(this, that):
                    rest += (this, that)
                case At(edge, then) if _is_edge(edge, before, after):
                    rest.append(then)
        self._steps_left -= len(reached)
        if self._steps_left < 0:
            raise InvalidRegularExpression("the expression takes too long to match")
        return reached


def _is_edge(edge: Edge, before: str, after: str) -> bool:
    if edge is Edge.BEGIN:
        return not before
    if edge is Edge.END:
        return not after
    is_boundary = (before in WORD) != (after in WORD)
    return is_boundary == (edge is Edge.WORD)
