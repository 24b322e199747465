"""How a settings key is declared: its kind of value, its range, its words, and where it may be set.

Owns the machinery only; the declarations are in the ``*_keys`` modules beside
this one. A declaration is a class attribute, typed by its kind, so that
``settings.log_segment_bytes`` is an `int` to mypy and the class body is the
one list of keys. Never reads files and never knows where a value came from.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, ClassVar, Final, Generic, NamedTuple, Self, TypeVar, cast, overload

V = TypeVar("V")

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class ConfigType(IntEnum):
    """What DescribeConfigs v3 and later says of a value (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Update(Enum):
    """Where a key may be changed while brokers run (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Password:
    """A secret: prints as ``[hidden]``, and is compared and revealed only on purpose."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def reveal(self) -> str:
        """Return the secret itself."""
        return self._secret

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and other._secret == self._secret

    def __hash__(self) -> int:
        return hash(self._secret)

    def __repr__(self) -> str:
        return "[hidden]"


@dataclass(frozen=True)
class Kind(Generic[V]):
    """A kind of value: how it is read from text and written back."""

    type: ConfigType
    parse: Callable[[str], V]
    """Raises ValueError with the reason; takes stripped text."""
    format: Callable[[V], str]


def _whole_number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        # int() takes more than Kafka does: underscores, and other scripts' digits.
        if not (text.isascii() and text.lstrip("+-").isdigit()):
            raise ValueError(f"{text!r} is not a whole number")
        number = int(text)
        if not low <= number <= high:
            raise ValueError(f"{text} is not within {low} .. {high}")
        return number

    return parse


def _real_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if number != number:
        raise ValueError("nan is not a valid number")
    return number


def _java_text(number: float) -> str:
    """Write a number as Java does: 1.0E10 where Python has 1e+10."""
    mantissa, exponent, power = str(float(number)).partition("e")
    if not exponent:
        return mantissa
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(power)}"


def _true_or_false(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is not true or false")
    return text.lower() == "true"


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


INT: Final = Kind(ConfigType.INT, _whole_number(-INT_MAX - 1, INT_MAX), str)
SHORT: Final = Kind(ConfigType.SHORT, _whole_number(-(2**15), 2**15 - 1), str)
LONG: Final = Kind(ConfigType.LONG, _whole_number(-LONG_MAX - 1, LONG_MAX), str)
DOUBLE: Final = Kind(ConfigType.DOUBLE, _real_number, _java_text)
BOOLEAN: Final = Kind(ConfigType.BOOLEAN, _true_or_false, lambda value: str(value).lower())
STRING: Final = Kind(ConfigType.STRING, str, str)
CLASS: Final = Kind(ConfigType.CLASS, str, str)
LIST: Final = Kind(ConfigType.LIST, _items, ",".join)
PASSWORD: Final = Kind(ConfigType.PASSWORD, Password, Password.reveal)


class Fault(NamedTuple):
    """One thing that is wrong with what was given."""

    key: str
    reason: str


def unknown_key(name: str, known: Iterable[str]) -> str:
    """Return what is wrong with a key that there is not, and which one may have been meant."""

    def likeness(found: str) -> tuple[float, int]:
        # difflib's own ratio would rather see a letter too many than one mistaken for another.
        blocks = difflib.SequenceMatcher(None, name, found).get_matching_blocks()
        same = sum(block.size for block in blocks)
        return same / max(len(name), len(found)), len(found)

    names = list(known)
    # A topic's key in the broker's form, or the other way round.
    meant = min(
        (
            found
            for found in names
            if f".{name}".endswith(f".{found}") or found.endswith(f".{name}")
        ),
        key=len,
        default=None,
    )
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.8)
    if meant is None and close:
        meant = max(close, key=likeness)
    return "unknown key" if meant is None else f"unknown key; did you mean `{meant}`?"


class Key(Generic[V]):
    """One key of the settings; as an attribute of a `Settings` object, its value.

    It has no ``__set__``, so the value in the object's own dictionary is found
    first and reading one costs what any attribute costs.
    """

    def __init__(
        self,
        name: str,
        kind: Kind[Any],
        doc: str,
        default: object,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        values: tuple[str, ...] | None = None,
        besides: tuple[object, ...] = (),
        update: Update = Update.READ_ONLY,
        no_effect: str | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.doc = doc
        self.default = default
        self.at_least = at_least
        self.at_most = at_most
        self.values = values
        self.besides = besides
        self.update = update
        self.no_effect = no_effect

    def __set_name__(self, owner: type, attribute: str) -> None:
        """Hold the attribute to the key's name, so that one can be found from the other."""
        if attribute != self.name.replace(".", "_"):
            raise TypeError(f"{self.name} is declared as {attribute}")

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> V: ...
    def __get__(self, instance: object | None, owner: type) -> Self | V:
        """Return the key itself; a value is found in the object before this is asked."""
        if instance is None:
            return self
        raise AttributeError(self.name)

    @property
    def sensitive(self) -> bool:
        """Whether the value must not be shown."""
        return self.kind.type is ConfigType.PASSWORD

    @property
    def caveat(self) -> tuple[str, str] | None:
        """What setting it comes to, and why, where it does not do what `doc` says."""
        if self.no_effect is not None:
            return "Accepted, without effect", self.no_effect
        return None

    def parse(self, text: str) -> V:
        """Read a value.

        Raises:
            ValueError: the reason, without the key's name.
        """
        value = self.kind.parse(text.strip())
        reason = self.objection(value)
        if reason is not None:
            raise ValueError(reason)
        return cast(V, value)

    def objection(self, value: object) -> str | None:
        """Return why a value of the right kind is out of range, or None."""
        if value in self.besides:
            return None
        number = value if isinstance(value, int | float) else None
        if number is not None and self.at_least is not None and number < self.at_least:
            if not self.besides:
                return f"{number} is below {self.at_least}"
            besides = " nor ".join(map(str, self.besides))
            return f"{number} is neither {besides} nor at least {self.at_least}"
        if number is not None and self.at_most is not None and number > self.at_most:
            return f"{number} is above {self.at_most}"
        if self.values is not None:
            for item in value if isinstance(value, tuple) else (value,):
                if item not in self.values:
                    return f"{item!r} is not one of {', '.join(self.values)}"
        return None

    def format(self, value: object) -> str | None:
        """Write a value as it would stand in a file; None for no value and for secrets."""
        if value is None or self.sensitive:
            return None
        return self.kind.format(value)


@overload
def key(
    name: str,
    kind: Kind[V],
    doc: str,
    *,
    default: V,
    at_least: float | None = None,
    at_most: float | None = None,
    values: tuple[str, ...] | None = None,
    besides: tuple[object, ...] = (),
    update: Update = Update.READ_ONLY,
    no_effect: str | None = None,
) -> Key[V]: ...
@overload
def key(
    name: str,
    kind: Kind[V],
    doc: str,
    *,
    default: None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    values: tuple[str, ...] | None = None,
    besides: tuple[object, ...] = (),
    update: Update = Update.READ_ONLY,
    no_effect: str | None = None,
) -> Key[V | None]: ...
def key(name: str, kind: Kind[Any], doc: str, *, default: object = None, **rest: Any) -> Key[Any]:
    """Declare a key of the broker.

    Args:
        name: Kafka's name, or plog's own where Kafka has none.
        kind: what its values are.
        doc: what it does, in a sentence or two.
        default: the value when it is not set; without one it may be None.
        at_least: the least number.
        at_most: the largest number.
        values: the only words (of a list: the only items).
        besides: values outside the range that are fine too.
        update: where it may be changed while brokers run.
        no_effect: why setting it changes nothing, for keys that are known so
            that Kafka's files are accepted.
    """
    return Key(name, kind, doc, default, **rest)


class Synonym(NamedTuple):
    """A broker key that another key falls back on, and what its unit is worth in the other's."""

    key: Key[Any]
    factor: int = 1

    def value(self, given: object) -> object:
        """Convert a broker value to the key's unit; any negative time is Kafka's -1."""
        if self.factor == 1:
            return given
        assert isinstance(given, int)
        return -1 if given < 0 else given * self.factor


class EntityKey(Key[V]):
    """A key of a topic or group, with the broker keys it falls back on, first found first."""

    synonyms: tuple[Synonym, ...] = ()


def entity_key(
    name: str,
    kind: Kind[V],
    *synonyms: Key[V] | Key[V | None] | Synonym,
    at_least: float | None = None,
    doc: str | None = None,
) -> EntityKey[V]:
    """Declare a key of a topic or group.

    Doc, range and the rest are the first broker key's unless given here; the
    default is that of the last.
    """
    chain = tuple(each if isinstance(each, Synonym) else Synonym(each) for each in synonyms)
    first, last = chain[0].key, chain[-1]
    made: EntityKey[V] = EntityKey(
        name,
        kind,
        doc or first.doc,
        last.value(last.key.default),
        at_least=first.at_least if at_least is None else at_least,
        at_most=first.at_most,
        values=first.values,
        besides=first.besides if at_least is None else (),
        update=Update.CLUSTER_WIDE,
        no_effect=first.no_effect,
    )
    made.synonyms = chain
    return made


def own_topic_key(
    name: str,
    kind: Kind[V],
    doc: str,
    *,
    default: V,
    at_least: float | None = None,
    no_effect: str | None = None,
) -> EntityKey[V]:
    """Declare a key of a topic that no broker key stands behind."""
    return EntityKey(
        name,
        kind,
        doc,
        default,
        at_least=at_least,
        update=Update.CLUSTER_WIDE,
        no_effect=no_effect,
    )


class Settings:
    """An immutable set of values, one attribute for each key of the class."""

    KEYS: ClassVar[Mapping[str, Key[Any]]] = {}

    def __init_subclass__(cls) -> None:
        """Collect the keys of the class and its bases, in the order of declaration."""
        super().__init_subclass__()
        found: dict[str, Key[Any]] = {}
        for base in reversed(cls.__mro__):
            for value in vars(base).values():
                if isinstance(value, Key):
                    if value.name in found:
                        raise TypeError(f"{value.name} is declared twice")
                    found[value.name] = value
        cls.KEYS = found

    def __setattr__(self, attribute: str, value: object) -> None:
        """Refuse: other settings are another object."""
        raise AttributeError(f"settings are not edited ({attribute})")

    def __delattr__(self, attribute: str) -> None:
        """Refuse: other settings are another object."""
        raise AttributeError(f"settings are not edited ({attribute})")

    def _fill(self, values: Mapping[str, object]) -> None:
        """Give every key its value, by key name; called once, by the constructor."""
        vars(self).update(
            (name.replace(".", "_"), values.get(name, declared.default))
            for name, declared in self.KEYS.items()
        )

    def value(self, name: str) -> object:
        """Return the value of a key by its name in files.

        Raises:
            KeyError: there is no such key.
        """
        if name not in self.KEYS:
            raise KeyError(name)
        return vars(self)[name.replace(".", "_")]

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> tuple[dict[str, object], list[Fault]]:
        """Read the values of known keys; return them and what is wrong with the others."""
        values: dict[str, object] = {}
        faults: list[Fault] = []
        for name, text in texts.items():
            declared = cls.KEYS.get(name)
            if declared is None:
                faults.append(Fault(name, unknown_key(name, cls.KEYS)))
                continue
            try:
                values[name] = declared.parse(text)
            except ValueError as reason:
                faults.append(Fault(name, str(reason)))
        return values, faults
