"""Declares metric families and makes their samples one at a time, while the page is written.

Owns the rule for names: units are seconds and bytes, and only counters end in _total. Names that
other modules read from a page are here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.samples import Sample

from plog._native.histogram import Histogram, upper_bounds
from plog.printable import printable

BUILD = "plog_build_info"
FAST, PYTHON = "fast", "python"
"""Paths that answer a request."""

BOUNDS = range(19, 103, 2)
"""Indexes of the histogram buckets that the page shows: two per octave, from 64 us to two minutes.
The other buckets count in the next shown one."""

SAMPLES_AT_ONCE = 16
"""A large page takes its thread a tenth of a second, in which the event loop must not wait."""

Row = tuple[Sequence[str], float]
"""Label values and the value of a sample."""


@dataclass(frozen=True)
class Family:
    """A gauge, or a counter if its name ends in _total."""

    name: str
    text: str
    labels: tuple[str, ...] = ()

    def declared(self) -> Metric:
        """Return the family without samples."""
        name = self.name.removesuffix("_total")
        return Metric(name, self.text, "gauge" if name == self.name else "counter")

    def of(self, rows: Iterable[Row]) -> Metric:
        """Return the family with a sample for each row."""
        metric = self.declared()
        # A page of thousands of topics has tens of thousands of samples. As objects that exist
        # together they would make the garbage collector look through the whole broker.
        metric.samples = cast("list[Sample]", self._samples(rows))
        return metric

    def one(self, value: float) -> Metric:
        """Return the family with one sample without labels."""
        return self.of([((), value)])

    def _samples(self, rows: Iterable[Row]) -> Iterator[Sample]:
        for number, (values, value) in enumerate(rows):
            if number % SAMPLES_AT_ONCE == 0:
                time.sleep(0)  # another thread may take the interpreter lock
            yield Sample(self.name, dict(zip(self.labels, values, strict=True)), value)


@dataclass(frozen=True)
class TimesFamily:
    """A histogram of durations in seconds."""

    name: str
    text: str
    labels: tuple[str, ...] = ()

    def declared(self) -> Metric:
        """Return the family without samples."""
        return HistogramMetricFamily(self.name, self.text, labels=self.labels)

    def of(self, rows: Iterable[tuple[Sequence[str], Histogram]]) -> Metric:
        """Return the family with the buckets of each histogram that has counted something."""
        family = HistogramMetricFamily(self.name, self.text, labels=self.labels)
        uppers = upper_bounds()
        for values, histogram in rows:
            below = list(accumulate(histogram.counts))
            if below[-1]:
                buckets = [(str((uppers[index] + 1) / 1e6), below[index]) for index in BOUNDS]
                buckets.append(("+Inf", below[-1]))
                family.add_metric(values, buckets, histogram.total_us / 1e6)
        return family


class Collector:
    """One part of the page.

    `describe` names the families, so that a reader who asks for some names costs no other part.
    """

    families: Sequence[Family | TimesFamily] = ()

    def describe(self) -> Iterator[Metric]:
        """Yield the families without samples."""
        for family in self.families:
            yield family.declared()

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples. Callable from any thread."""
        raise NotImplementedError


def label(value: object) -> str:
    """Return a label value; text from a client cannot hold a line break or a control character."""
    return printable(str(value))
