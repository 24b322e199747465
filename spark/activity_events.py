"""Generates an activity stream: JSON events of people, crawlers and abusers of a web site.

Generated from a seed, in columns: ten million events take seconds, and a seed always gives the same
events. Each event is one record: the user as key, JSON as value, the arrival as timestamp. Some
events arrive long after their own time; a few, from clients with wrong clocks, before it.
`expected_report` and `expected_alerts` compute the expected results without Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TOPIC = "activity"
KINDS = ("view", "search", "click")
VIEW, SEARCH, CLICK = range(3)
MINUTE_MS = 60_000
PAGES, QUERIES = 10_000, 2_000
BOTS = 4
EVENTS_PER_SESSION = 12
PAUSE_MS = 20_000
"""Mean pause between two events of a session."""
CHUNK = 200_000
"""Approximate number of events generated at a time."""


@dataclass(frozen=True)
class Traffic:
    """The parameters of the stream.

    Attributes:
        burst_every_s: interval between bursts, alternately of a crawler and an abuser.
    """

    seed: int = 1
    events_per_s: float = 100.0
    users: int = 50_000
    start_ms: int = 1_767_225_600_000  # 2026-01-01
    burst_every_s: int = 1_200
    chunk: int = CHUNK


class Burst(NamedTuple):
    """A burst of a bot. Bots take turns, so that each is quiet for long between its bursts."""

    bot: int
    start_ms: int
    end_ms: int
    events_per_s: float

    @property
    def is_crawler(self) -> bool:
        """Whether the bot is a crawler, which only views; an abuser searches and clicks."""
        return self.bot % 2 == 0

    @property
    def user(self) -> str:
        """The key of its events."""
        return bot_name(self.bot)


class Events(NamedTuple):
    """Columns of int64: times in ms since 1970, the others are indexes; `names` has the users."""

    time: np.ndarray
    arrival: np.ndarray
    user: np.ndarray
    session: np.ndarray
    kind: np.ndarray
    page: np.ndarray

    def take(self, which: Any) -> Events:
        """Return the events selected by a slice, a mask or an index array."""
        return Events(*(column[which] for column in self))


class Row(NamedTuple):
    """The report's numbers for one kind of event in one window."""

    events: int
    visitors: int
    late: int


class Alert(NamedTuple):
    """The alert for a burst: the window in which it was detected, and its events."""

    user: str
    reason: str
    window_start_ms: int
    events: int


def bot_name(bot: int) -> str:
    """Return the user name of a bot."""
    return f"{'crawler' if bot % 2 == 0 else 'abuser'}-{bot}"


def names(traffic: Traffic) -> list[str]:
    """Return the user names by index; bots come last."""
    return [f"u{n}" for n in range(traffic.users)] + [bot_name(n) for n in range(BOTS)]


# -- generating events -----------------------------------------------------------------------------


def bursts(traffic: Traffic) -> Iterator[Burst]:
    """Yield the bursts in order of their start, without end."""
    number = 0
    while True:
        chance = np.random.default_rng([traffic.seed, 1, number])
        start_ms = traffic.start_ms + (number + 1) * traffic.burst_every_s * 1000
        start_ms += int(chance.integers(MINUTE_MS))
        # Every third burst is longer than the wait for late events.
        minutes = 25 if number % 3 == 2 else chance.uniform(1.5, 4)
        bot = number % BOTS
        pace = chance.uniform(1.3, 1.6) if bot % 2 == 0 else chance.uniform(4, 6)
        yield Burst(bot, start_ms, start_ms + int(minutes * MINUTE_MS), float(pace))
        number += 1


def chunks(traffic: Traffic, count: int) -> Iterator[Events]:
    """Yield `count` events in the order of arrival."""
    slice_ms = max(int(traffic.chunk / traffic.events_per_s * 1000), 1000)
    to_come = bursts(traffic)
    burst = next(to_come)
    waiting: list[Events] = []
    number = sessions = 0
    while count > 0:
        start_ms = traffic.start_ms + number * slice_ms
        end_ms = start_ms + slice_ms
        chance = np.random.default_rng([traffic.seed, 0, number])
        begun = max(round(traffic.events_per_s * slice_ms / 1000 / EVENTS_PER_SESSION), 1)
        waiting.append(_people(chance, traffic, start_ms, slice_ms, begun, sessions))
        sessions += begun
        while burst.start_ms < end_ms:
            waiting.append(_bot(chance, traffic, burst, sessions))
            sessions += 1
            burst = next(to_come)
        made = Events(*(np.concatenate(columns) for columns in zip(*waiting, strict=True)))
        has_arrived = made.arrival < end_ms
        waiting = [made.take(~has_arrived)]
        arrived = made.take(has_arrived)
        arrived = arrived.take(np.argsort(arrived.arrival, kind="stable")).take(slice(count))
        count -= len(arrived.time)
        yield arrived
        number += 1


def _people(
    chance: np.random.Generator,
    traffic: Traffic,
    start_ms: int,
    slice_ms: int,
    sessions: int,
    first_session: int,
) -> Events:
    """Return the sessions that begin in a slice of time."""
    lengths = chance.geometric(1 / EVENTS_PER_SESSION, sessions)
    count = int(lengths.sum())
    firsts = np.cumsum(lengths) - lengths
    pauses = chance.exponential(PAUSE_MS, count)
    pauses[firsts] = chance.uniform(0, slice_ms, sessions)
    sums = np.cumsum(pauses)
    times = start_ms + (sums - np.repeat(sums[firsts] - pauses[firsts], lengths)).astype(np.int64)
    # Some come often, most seldom.
    users = (traffic.users * chance.random(sessions) ** 1.5).astype(np.int64)
    kinds = chance.choice(len(KINDS), count, p=(0.7, 0.12, 0.18)).astype(np.int64)
    pages = (PAGES * chance.random(count) ** 3).astype(np.int64)

    delays = chance.exponential(1_500, count)
    fate = chance.random(count)
    slow, offline, wrong = fate < 0.03, fate > 0.995, (fate > 0.994) & (fate <= 0.995)
    delays[slow] += chance.exponential(90_000, int(slow.sum()))
    delays[offline] += chance.uniform(15 * MINUTE_MS, 120 * MINUTE_MS, int(offline.sum()))
    arrivals = times + delays.astype(np.int64)
    times[wrong] += chance.integers(MINUTE_MS, 60 * MINUTE_MS, int(wrong.sum()))
    return Events(
        times,
        arrivals,
        np.repeat(users, lengths),
        np.repeat(first_session + np.arange(sessions), lengths),
        kinds,
        pages,
    )


def _bot(chance: np.random.Generator, traffic: Traffic, burst: Burst, session: int) -> Events:
    times = np.arange(burst.start_ms, burst.end_ms, 1000 / burst.events_per_s).astype(np.int64)
    count = len(times)
    if burst.is_crawler:
        kinds = np.full(count, VIEW)
        # A short pause, which does not split the burst.
        times[count // 2 :] += MINUTE_MS // 2
    else:
        kinds = np.where(chance.random(count) < 0.8, SEARCH, CLICK)
    return Events(
        times,
        times + chance.integers(1_000, size=count),
        np.full(count, traffic.users + burst.bot),
        np.full(count, session),
        kinds,
        np.arange(count) % PAGES,
    )


# -- writing events --------------------------------------------------------------------------------


class Writer:
    """Writes events as records of a topic."""

    def __init__(self, producer: Any, topic: str, traffic: Traffic) -> None:
        self._producer, self._topic = producer, topic
        users = names(traffic)
        self._users = pa.array(users)
        # Two users of a household share one address.
        households = [number // 2 for number in range(len(users))]
        self._addresses = pa.array([f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in households])
        self._pages = pa.array(
            [f"/page/{n}" for n in range(PAGES)] + [f"/search?q={n}" for n in range(QUERIES)]
        )
        self._kinds = pa.array(KINDS)

    def write(self, events: Events) -> None:
        """Pass events to the producer."""
        from plog.client.producer import RowColumns

        keys = self._users.take(pa.array(events.user))
        pages = np.where(events.kind == SEARCH, PAGES + events.page % QUERIES, events.page)
        values = pc.binary_join_element_wise(
            '{"time":',
            pa.array(events.time).cast(pa.string()),
            ',"user":"',
            keys,
            '","session":"s',
            pa.array(events.session).cast(pa.string()),
            '","kind":"',
            self._kinds.take(pa.array(events.kind)),
            '","page":"',
            self._pages.take(pa.array(pages)),
            '","address":"',
            self._addresses.take(pa.array(events.user)),
            '"}',
            "",
        )
        arrays = {"key": keys, "value": values, "timestamp_ms": pa.array(events.arrival)}
        self._producer.send_rows(
            self._topic,
            RowColumns(len(keys), {name: array.buffers() for name, array in arrays.items()}),
        )


def load(
    bootstrap: str,
    topic: str,
    events: Iterable[Events],
    traffic: Traffic,
    progress: Callable[[int], object] = lambda _count: None,
) -> int:
    """Produce events and return their number, once all are acknowledged.

    Args:
        progress: called with the number of events in each chunk.
    """
    from plog.client.producer import Producer

    count = 0
    with Producer(
        bootstrap, linger_ms=50, batch_size=512 * 1024, compression_type="lz4"
    ) as producer:
        writer = Writer(producer, topic, traffic)
        for chunk in events:
            writer.write(chunk)
            count += len(chunk.time)
            progress(len(chunk.time))
    return count


def at_their_time(events: Iterable[Events]) -> Iterator[Events]:
    """Yield each chunk when its last event arrives, by this machine's clock."""
    for chunk in events:
        if len(chunk.time):
            time.sleep(max(chunk.arrival[-1] / 1000 - time.time(), 0))
        yield chunk


# -- expected results ------------------------------------------------------------------------------


def happened(events: Events, late_after_ms: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which events are late, and the time at which each event counts.

    An event in time counts at its own time, but at most at its arrival; a late one at its arrival.
    """
    late = events.arrival - events.time > late_after_ms
    return late, np.where(late, events.arrival, np.minimum(events.time, events.arrival))


def expected_report(
    events: Iterable[Events], *, window_ms: int, slide_ms: int, late_after_ms: int
) -> dict[tuple[int, str], Row]:
    """Compute the report by window start, in ms, and kind of event."""
    keys = ["start", "kind", "user"]
    parts = []
    for chunk in events:
        late, when = happened(chunk, late_after_ms)
        for shift_ms in range(0, window_ms, slide_ms):
            columns = [when // slide_ms * slide_ms - shift_ms, chunk.kind, chunk.user]
            columns += [~late, late]
            table = pa.table([*map(pa.array, columns)], names=[*keys, "events", "late"])
            sums = table.group_by(keys).aggregate([("events", "sum"), ("late", "sum")])
            parts.append(sums.rename_columns([*keys, "events", "late"]))
    of_users = (
        pa.concat_tables(parts).group_by(keys).aggregate([("events", "sum"), ("late", "sum")])
    )
    of_users = of_users.append_column("seen", pc.greater(of_users.column("events_sum"), 0))
    rows = of_users.group_by(["start", "kind"]).aggregate(
        [("events_sum", "sum"), ("seen", "sum"), ("late_sum", "sum")]
    )
    return {
        (row["start"], KINDS[row["kind"]]): Row(
            row["events_sum_sum"], row["seen_sum"], row["late_sum_sum"]
        )
        for row in rows.to_pylist()
    }


def expected_alerts(
    events: Sequence[Events],
    traffic: Traffic,
    *,
    window_ms: int,
    slide_ms: int,
    quiet_ms: int,
    limit: int,
    crawl_limit: int,
    late_after_ms: int,
) -> list[Alert]:
    """Compute the alerts, in order for each user."""
    kept = []
    least = min(limit, crawl_limit)
    for chunk in events:
        late, when = happened(chunk, late_after_ms)
        kept.append(chunk._replace(time=when).take(~late))
    whole = Events(*(np.concatenate(columns) for columns in zip(*kept, strict=True)))
    # If a window is over the limit, one of its halves is over half of it.
    halves = whole.user * 2**32 + (whole.time - traffic.start_ms) // (window_ms // 2) + 2**20
    found, counts = np.unique(halves, return_counts=True)
    busy = set((found[counts >= least // 3] >> 32).tolist())
    who = names(traffic)
    alerts = []
    for user in sorted(busy):
        mine = whole.take(whole.user == user)
        mine = mine.take(np.argsort(mine.time, kind="stable"))
        first, last = mine.time[0] // slide_ms * slide_ms - window_ms, mine.time[-1]
        starts = np.arange(first, last + 1, slide_ms)
        of = {kind: mine.time[mine.kind == kind] for kind in range(len(KINDS))}
        count = {
            kind: np.searchsorted(times, starts + window_ms) - np.searchsorted(times, starts)
            for kind, times in of.items()
        }
        total = count[VIEW] + count[SEARCH] + count[CLICK]
        crawls = (count[VIEW] >= crawl_limit) & (count[CLICK] == 0)
        quiet_since = -(10**15)
        for at in np.flatnonzero(crawls | (total >= limit)):
            if starts[at] - quiet_since > quiet_ms:
                reason = "crawler" if crawls[at] else "abuse"
                alerts.append(Alert(who[user], reason, int(starts[at]), int(total[at])))
            quiet_since = starts[at]
    return alerts


@click.command()
@click.option(
    "--bootstrap-server",
    default="127.0.0.1:9092",
    show_default=True,
    envvar="PLOG_BOOTSTRAP_SERVER",
    show_envvar=True,
    help="A broker's host:port.",
)
@click.option("--topic", default=TOPIC, show_default=True, help="Topic for the events.")
@click.option("--events", "count", default=1_000_000, show_default=True, help="Number of events.")
@click.option("--seed", default=1, show_default=True, help="Seed of the random generator.")
@click.option("--rate", default=100.0, show_default=True, help="Events per second of their time.")
@click.option("--live", is_flag=True, help="Start now, and write each event when it arrives.")
def main(bootstrap_server: str, topic: str, count: int, seed: int, rate: float, live: bool) -> None:
    """Fill TOPIC with events of people and bots on a web site.

    Creates the topic, without retention, if it does not exist.
    """
    from plog.client.admin import Admin
    from plog.errors import TopicAlreadyExists

    traffic = Traffic(seed, rate)
    if live:
        traffic = Traffic(seed, rate, start_ms=int(time.time() * 1000), chunk=max(int(rate), 1))
    with Admin(bootstrap_server) as admin:
        try:
            # Events keep their own timestamps: time-based retention would delete old ones.
            admin.create_topic(topic, partitions=6, configs={"retention.ms": "-1"})
        except TopicAlreadyExists:
            click.echo(f"Topic {topic} exists; adding the events to it.")
    events = chunks(traffic, count)
    if live:
        events = at_their_time(events)
    written = load(bootstrap_server, topic, events, traffic)
    click.echo(f"{written:,} events acknowledged.")


if __name__ == "__main__":
    main()
