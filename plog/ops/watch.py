"""Rates, shares and percentiles between two readings of a broker's metrics page.

Owns the arithmetic of `plog top`. Never prints. Relies only on the text of the page: the broker may
be another release, with fewer or more metrics.
"""

from __future__ import annotations

import urllib.request
from bisect import bisect_left
from collections.abc import Mapping
from http.client import HTTPException
from typing import NamedTuple
from urllib.error import HTTPError, URLError

from prometheus_client.parser import text_string_to_metric_families

from plog.ops.metrics.families import BUILD, FAST
from plog.ops.pages.paths import METRICS

PERCENTILES = (0.5, 0.99, 0.999)
READ_TIMEOUT_S = 10.0

Labels = tuple[tuple[str, str], ...]


class Reading(NamedTuple):
    """The page at one time.

    Attributes:
        at_s: time of the monotonic clock.
        samples: values by name, then by sorted labels.
    """

    at_s: float
    samples: Mapping[str, Mapping[Labels, float]]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of a name's samples with these labels; 0 if there are none."""
        wanted = set(labels.items())
        return sum(
            value for found, value in self.samples.get(name, {}).items() if wanted <= set(found)
        )

    def largest(self, name: str, **labels: str) -> float:
        """Return the largest of a name's samples with these labels; 0 if there are none."""
        wanted = set(labels.items())
        return max(
            (value for found, value in self.samples.get(name, {}).items() if wanted <= set(found)),
            default=0.0,
        )

    def labels(self, name: str, key: str) -> list[str]:
        """Return the distinct values of a label in a name's samples, sorted."""
        return sorted({dict(found)[key] for found in self.samples.get(name, {})})

    def having(self, name: str, key: str) -> list[str]:
        """Return the values of a label in a name's samples that are not 0, sorted."""
        samples = self.samples.get(name, {})
        return sorted(dict(found)[key] for found, value in samples.items() if value)


def parse(text: str, at_s: float) -> Reading:
    """Read a page.

    Raises:
        ValueError: the text is not a metrics page.
    """
    samples: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            samples.setdefault(sample.name, {})[labels] = sample.value
    return Reading(at_s, samples)


def read(address: str, at_s: float, timeout_s: float = READ_TIMEOUT_S) -> Reading:
    """Read the page of a broker at host:port.

    Raises:
        OSError: the address does not respond.
        ValueError: the page is not plog's, or the address is invalid.
    """
    # Ignore the environment's proxies: 127.0.0.1 must be this host.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}{METRICS}", timeout=timeout_s) as response:
            reading = parse(response.read().decode(), at_s)
    except HTTPException as error:
        raise ValueError(f"not an HTTP server ({error!r})") from error
    except HTTPError:
        raise
    except OSError as error:
        # urllib wraps the cause, whose own text has the number of the error.
        cause = error.reason if isinstance(error, URLError) else error
        raise OSError(getattr(cause, "strerror", None) or str(cause)) from error
    if BUILD not in reading.samples:
        raise ValueError("this is another program's metrics page")
    return reading


class ApiRate(NamedTuple):
    """One API between two readings. Times in seconds; None without requests."""

    api: str
    per_s: float
    fast_share: float
    percentiles: tuple[float | None, ...]


class Watch(NamedTuple):
    """Two readings of one broker, the earlier first."""

    before: Reading
    after: Reading

    @property
    def seconds(self) -> float:
        """Seconds between the two readings."""
        return self.after.at_s - self.before.at_s

    def rate(self, name: str, **labels: str) -> float:
        """Return a counter's growth per second; 0 if a restart has reset it."""
        grown = self.after.value(name, **labels) - self.before.value(name, **labels)
        return max(grown, 0.0) / self.seconds

    def apis(self) -> list[ApiRate]:
        """Return the APIs with requests between the readings, the busiest first."""
        count = "plog_request_duration_seconds_count"
        found = []
        for api in self.after.labels(count, "api"):
            per_s = self.rate(count, api=api)
            if per_s:
                fast = self.rate(count, api=api, path=FAST) / per_s
                times = self.percentiles("plog_request_duration_seconds", api=api)
                found.append(ApiRate(api, per_s, fast, times))
        return sorted(found, key=lambda one: -one.per_s)

    def percentiles(self, name: str, **labels: str) -> tuple[float | None, ...]:
        """Return the percentiles of the entries that a histogram gained."""
        bounds = sorted((float(text), text) for text in self.after.labels(f"{name}_bucket", "le"))
        counts = [
            self.after.value(f"{name}_bucket", le=text, **labels)
            - self.before.value(f"{name}_bucket", le=text, **labels)
            for _, text in bounds
        ]
        return tuple(_percentile([bound for bound, _ in bounds], counts, p) for p in PERCENTILES)


def _percentile(bounds: list[float], counts: list[float], share: float) -> float | None:
    """Return the time at a share of cumulative counts, interpolated within its bucket."""
    if not counts or counts[-1] <= 0:
        return None
    wanted = share * counts[-1]
    at = bisect_left(counts, wanted)
    if at == len(bounds) - 1:  # the bucket without an upper bound
        return bounds[at - 1] if at else None
    low = bounds[at - 1] if at else 0.0
    below = counts[at - 1] if at else 0.0
    return low + (bounds[at] - low) * (wanted - below) / (counts[at] - below)
