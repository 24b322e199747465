"""A whole topic, as plog's consumer reads it."""

from __future__ import annotations

from plog.client.consumer import Consumer, ConsumerRecord
from tests.waiting import until


def read_topic(
    bootstrap: str, topic: str, isolation_level: str = "read_committed"
) -> list[ConsumerRecord]:
    """Return the records that readers see, once no transaction is open."""
    found: list[ConsumerRecord] = []
    with (
        Consumer(bootstrap) as everything,
        Consumer(bootstrap, isolation_level="read_committed") as committed,
        Consumer(bootstrap, isolation_level=isolation_level) as reader,
    ):
        at = everything.partitions_for(topic)
        until(lambda: committed.end_offsets(at) == everything.end_offsets(at), "nothing open")
        ends = everything.end_offsets(at)
        reader.assign(at)
        reader.seek_to_beginning()
        while any(reader.position(one) < ends[one] for one in at):
            found += reader.poll(100)
    return found
