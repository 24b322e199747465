"""Masks secrets in settings, variables and log lines, before a file leaves the host.

Owns two rules. A value is a secret if its key's name says so. Once a secret is known, it is masked
wherever it occurs. The rules prefer to hide too much.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

HIDDEN: Final = "[hidden]"
MIN_KNOWN: Final = 4
"""Shorter secrets are not searched for in other texts: they occur in every text."""
_WORDS = r"passw(?:or)?d|passphrase|secret|token|credential|jaas|private.?key|api.?key|master.?key"
_SECRET = re.compile(_WORDS, re.IGNORECASE)
_HIDDEN_KEY = re.compile(rf"{_WORDS}|(?:^|[._-])ssl[._-]|keystore|truststore", re.IGNORECASE)
_ASSIGNED = re.compile(rf"([\w.-]*(?:{_WORDS})[\w.-]*[\"'\\]*\s*[=:]\s*)\S.*", re.IGNORECASE)
"""Everything after the name is hidden, up to the end of the line: a value may contain any sign."""
_OF_SSL = re.compile(r"(\bssl\.[\w.]+\s*[=:]\s*)\S.*")
_IN_URL = re.compile(r"(://[^/\s:@]*:)[^@/\s]+@")
_PEM = re.compile(r"-----BEGIN [^-]*PRIVATE KEY-----.*?(?:-----END [^-]*-----|\Z)", re.DOTALL)
_IN_JAAS = re.compile(rf"\w*(?:{_WORDS})\w*\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s;]+))", re.I)
_PLAIN = frozenset({"true", "false", "none", "null"})


class Masker:
    """Masks secrets, among them those that it has learnt."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def learn(self, key: str, value: str) -> None:
        """Remember the value of a key that is a secret."""
        if not _SECRET.search(key):
            return
        found = {value.strip(), *(part for parts in _IN_JAAS.findall(value) for part in parts)}
        found |= {line.strip() for line in value.splitlines()}
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
            text = text.replace(secret, HIDDEN)
        text = _PEM.sub(HIDDEN, text)
        text = _IN_URL.sub(rf"\1{HIDDEN}@", text)
        text = _OF_SSL.sub(rf"\1{HIDDEN}", text)
        return _ASSIGNED.sub(rf"\1{HIDDEN}", text)

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
            return [self.json(one) for one in value]
        return self.text(value) if isinstance(value, str) else value
