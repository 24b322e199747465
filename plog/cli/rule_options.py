"""The options of a rule of `foreign_words`, and the user's options that match them.

Owns the placeholders: words in capitals, which stand for the user's own words.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from plog.cli.option_words import is_option

PLACEHOLDER = re.compile(r"[A-Z]{2,}|(?<![A-Za-z-])N(?![A-Za-z])")
BRACKETED = re.compile(r",(?![^\[]*\])")
"""A comma between items; those in [brackets] belong to one item."""

KCAT_FIELDS = {
    "t": "{topic}",
    "p": "{partition}",
    "o": "{offset}",
    "k": "{key}",
    "s": "{value}",
    "h": "{headers}",
    "T": "{timestamp}",
    "K": "{key_size}",
    "S": "{value_size}",
    "%": "%",
}
"""The fields of kcat's formats, and those of plog's templates."""


def template_of(form: str) -> str | None:
    """Return plog's template for a format of kcat, or None if plog lacks one of its fields."""
    parts = re.findall(r"%.?|[^%]+", form, re.DOTALL)
    template = ""
    for part in parts:
        if not part.startswith("%"):
            template += part.replace("{", "{{").replace("}", "}}")
        elif (found := KCAT_FIELDS.get(part[1:])) is not None:
            template += found
        else:
            return None
    return template


class Given(NamedTuple):
    """An option that the user has given, and its value."""

    name: str
    value: str | None


class Option(NamedTuple):
    """A rule's option: its name, and what its value has to look like."""

    name: str
    value: str

    def match(self, given: Given) -> dict[str, list[str]] | None:
        """Return the user's words by placeholder, or None if the option is another."""
        if given.name != self.name or bool(self.value) != (given.value is not None):
            return None
        first, comma, second = self.value.partition(",")
        if comma and first == second:
            items = BRACKETED.split(given.value or "")
            return {first: [item.replace("[", "").replace("]", "") for item in items]}
        names = PLACEHOLDER.findall(self.value)
        literals = [re.escape(part) for part in PLACEHOLDER.split(self.value)]
        pattern = "(.+?)".join(literals)
        found = re.fullmatch(pattern, given.value or "", re.DOTALL)
        if found is None:
            return None
        if names == ["FORMAT"]:
            template = template_of(found[1])
            return None if template is None else {"FORMAT": [template]}
        return {name: [word] for name, word in zip(names, found.groups(), strict=True)}


def options_of(text: str) -> list[Option]:
    """Read the options of a rule: `--name`, `--name VALUE`, or several of them."""
    read: list[Option] = []
    for word in text.split():
        if is_option(word):
            read.append(Option(word, ""))
        else:
            read[-1] = read[-1]._replace(value=word)
    return read
