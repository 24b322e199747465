"""Masks secrets in settings, variables and log lines, before a file leaves the host.

Owns two rules. A value is a secret if its key's name says so. Once a secret is known, it is masked
wherever it occurs; a short one only as a word, because other words may contain it. The rules prefer
to hide too much.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

HIDDEN: Final = "[hidden]"
MIN_KNOWN: Final = 4
"""Shorter secrets are not searched for in other texts: they occur in every text."""
MIN_ANYWHERE: Final = 8
"""Shorter secrets are searched for as words."""
_PASSWORD = r"passw(?:or)?d|passphrase|pwd"
_WORDS = rf"{_PASSWORD}|secret|token|credential|jaas|private.?key|api.?key|master.?key"
_SECRET = re.compile(_WORDS, re.IGNORECASE)
_AUTHORIZATION = r"(?:proxy-)?authorization"
_HIDDEN_KEY = re.compile(
    rf"{_WORDS}|(?:^|[._-])ssl[._-]|keystore|truststore|^{_AUTHORIZATION}$", re.IGNORECASE
)
_DIRECTORIES = frozenset({"PWD", "OLDPWD"})
"""Variables of a shell whose names sound like a password's."""
_PLAIN = frozenset({"true", "false", "none", "null"})

_WORD_BEGINS = re.compile(
    r"(?:^|\W|\\[abfnrtv]|\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|%[0-9a-f]{2}|\x1b\[[0-9;]{0,9}m"
    r"|(?<!\w)-[a-z])\Z",
    re.IGNORECASE,
)
"""The end of the text before a word: an escape may end with a letter, and so may an option."""
_ESCAPE_LENGTH = 12

# A name begins where a word does, so that a long word is searched once.
_START = r"(?<![\w.-])"
_ASSIGNED = re.compile(
    rf"({_START}(?:[\w.-]*(?:{_WORDS})[\w.-]*|{_AUTHORIZATION})[\"'\\]*\s*[=:]\s*)\S.*", re.I
)
"""Everything after the name is hidden, up to the end of the line: a value may contain any sign."""
_OF_SSL = re.compile(r"(\bssl\.[\w.]+\s*[=:]\s*)\S.*")
_WORD = r"(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|(?![=:])\S+)"
_SPACED = re.compile(
    rf"({_START}(?:--?[\w.-]*(?:{_WORDS})[\w.-]*|[\w.]*(?:{_PASSWORD}))\s+(?:(?:is|was)\s+)?)"
    rf"{_WORD}",
    re.IGNORECASE,
)
"""`--password hunter2`, and the same in a sentence."""
_OPTION = re.compile(rf"--?[\w.-]*(?:{_WORDS})[\w.-]*", re.IGNORECASE)
_SCHEME = re.compile(r"(\b(?:[Bb]earer|Basic|Negotiate)\s+)[^\s\"']{8,}")
"""The value of an Authorization header without its name."""
_IN_URL = re.compile(r"(://)[^\s\"]{0,1000}@")
_BEFORE_HOST = re.compile(r"(?<![\w.@/+-])[\w.+-]{1,200}:(?!//)[^\s\"'@,]{1,1000}@(?=[\w\[])")
"""`user:password@host`, as variables for proxies may have it."""
_PEM = re.compile(r"-----BEGIN [^-]*PRIVATE KEY-----.*?(?:-----END [^-]*-----|\Z)", re.DOTALL)

_MODULE = re.compile(r"(LoginModule\s+\w+\s+).*")
_JAAS_USER = re.compile(rf"({_START}user_[\w.-]+\s*=\s*){_WORD}")
_IN_JAAS = re.compile(r"([\w.-]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s;\"']+))")
_SHOWN_IN_JAAS = frozenset({"username", "serviceName"})


class Masker:
    """Masks secrets, among them those that it has learnt."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def learn(self, key: str, value: str) -> None:
        """Remember the value of a key that is a secret."""
        if not _SECRET.search(key) or key in _DIRECTORIES:
            return
        found = {value.strip(), *(line.strip() for line in value.splitlines())}
        for name, double, single, bare in _IN_JAAS.findall(value):
            if name not in _SHOWN_IN_JAAS:
                found |= {double, re.sub(r"\\(.)", r"\1", double), single}
                found |= {bare} if _SECRET.search(name) or name.startswith("user_") else set()
        for secret in found:
            if len(secret) >= MIN_KNOWN and secret.lower() not in _PLAIN:
                # As it is, and as it is written in JSON.
                self._known |= {secret, json.dumps(secret)[1:-1]}

    def value(self, key: str, value: str) -> str:
        """Return the value of a setting or variable as it may be shown."""
        return HIDDEN if value and _HIDDEN_KEY.search(key) else self.text(value)

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        for secret in sorted(self._known, key=len, reverse=True):
            if len(secret) >= MIN_ANYWHERE:
                text = text.replace(secret, HIDDEN)
            elif secret in text:
                text = _without_word(text, secret)
        text = _PEM.sub(HIDDEN, text)
        return "\n".join(map(self._line, text.split("\n")))

    def _line(self, line: str) -> str:
        """Mask a line; in a line of JSON, mask each value by itself."""
        start = line.find("{")
        if start < 0 or _plain(line[: start + 1]) != line[: start + 1]:
            return _plain(line)
        try:
            value = json.loads(line[start:])
            masked = self.json(value)
        except (ValueError, RecursionError):
            return _plain(line)
        if masked == value:
            return line
        return line[:start] + json.dumps(masked, ensure_ascii=False)

    def json(self, value: Any) -> Any:
        """Return a value of JSON without secrets."""
        if isinstance(value, dict):
            return {
                self.text(str(key)): HIDDEN
                if one and _HIDDEN_KEY.search(str(key))
                else self.json(one)
                for key, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [
                HIDDEN if one and _is_option(before) else self.json(one)
                for before, one in zip([None, *value], value, strict=False)
            ]
        return self.text(value) if isinstance(value, str) else value


def _without_word(text: str, secret: str) -> str:
    """Mask a secret where no longer word contains it."""

    def mask(found: re.Match[str]) -> str:
        before = text[max(found.start() - _ESCAPE_LENGTH, 0) : found.start()]
        is_word = not secret[0].isalnum() or _WORD_BEGINS.search(before)
        return HIDDEN if is_word else secret

    ends = r"(?!\w)" if secret[-1].isalnum() else ""
    return re.sub(re.escape(secret) + ends, mask, text)


def _is_option(word: Any) -> bool:
    """Return whether a word of a command line stands before a secret."""
    return isinstance(word, str) and _OPTION.fullmatch(word) is not None


def _plain(line: str) -> str:
    """Mask a line that is not JSON."""
    line = _IN_URL.sub(rf"\1{HIDDEN}@", line)
    line = _BEFORE_HOST.sub(f"{HIDDEN}@", line)
    for pattern in (_OF_SSL, _ASSIGNED, _MODULE, _JAAS_USER, _SPACED, _SCHEME):
        line = pattern.sub(rf"\1{HIDDEN}", line)
    return line
