"""Steps between the command lines of `script_cases`: they give a broker records and members."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from plog.client.producer import Producer
from tests.servers import BrokerProcess

STAMP = 1_700_000_000_000
SECOND_MS = 1000
"""Between the timestamps of two records."""


def write_records(
    broker: BrokerProcess, _: ExitStack, topic: str, count: str, partition: str = "0"
) -> None:
    """Write records with keys, values, headers and timestamps."""
    with Producer(broker.bootstrap) as producer:
        for n in range(int(count)):
            producer.send(
                topic,
                b"v%d" % n,
                key=b"k%d" % n,
                headers=[("h", b"%d" % n)],
                partition=int(partition),
                timestamp_ms=STAMP + n * SECOND_MS,
            )


STEPS: dict[str, Callable[..., None]] = {"records": write_records}
