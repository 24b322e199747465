"""Which plane answered how many requests, from a broker's metrics page."""

from __future__ import annotations

import urllib.request
from collections import Counter
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

DURATIONS, CALLOUTS = "plog_request_duration_seconds_count", "plog_callouts_total"
LOADED_APIS = ("Produce", "Fetch")
TIMEOUT_S = 10.0


class Answered(NamedTuple):
    """Counts, by API and path, and of what the fast path left to Python by the reason."""

    by_path: Counter[tuple[str, str]]
    callouts: Counter[str]

    def since(self, before: Answered) -> Answered:
        """Return what has come since then."""
        return Answered(self.by_path - before.by_path, self.callouts - before.callouts)

    def fast_share(self, api: str) -> float | None:
        """Return the share of an API's requests that Python never saw; None without requests."""
        fast, python = self.by_path[api, "fast"], self.by_path[api, "python"]
        return fast / (fast + python) if fast + python else None


def read_page(text: str) -> Answered:
    """Read the counts of a page; a page of an older release has them, too."""
    found = Answered(Counter(), Counter())
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == DURATIONS:
                found.by_path[sample.labels["api"], sample.labels["path"]] = int(sample.value)
            elif sample.name == CALLOUTS:
                found.callouts[sample.labels["reason"]] = int(sample.value)
    return found


def answered(port: int) -> Answered:
    """Ask the page at a port of 127.0.0.1."""
    url = f"http://127.0.0.1:{port}/metrics?name[]={DURATIONS}&name[]={CALLOUTS}"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as page:
        return read_page(page.read().decode())


def shares(found: Answered) -> dict[str, float | None]:
    """Return the shares of the APIs that carry records, by names in lower case."""
    return {f"fast_{api.lower()}": found.fast_share(api) for api in LOADED_APIS}
