"""An end that comes while the markers of the transaction before are written, beside Kafka 4.1.

It is that of the next transaction, which a client may give up before it has sent anything of it:
Java's asks for its end all the same by version 2, and a refusal would be its own end.
"""

from __future__ import annotations

from contextlib import closing

import pytest

from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.compat.against_kafka.pair import Pair
from tests.handlers.wire import create_topic, fresh_name, speak
from tests.transactions.transactor import Transactor
from tests.waiting import until

PARTITIONS = 400
"""So that their markers take a while."""


@pytest.mark.parametrize("own_epochs", [False, True], ids=["v1", "v2"])
def test_end_amid_the_markers_is_to_come_again(pair: Pair, own_epochs: bool) -> None:
    name, topic = fresh_name(), fresh_name()  # both list them from now on
    for side in pair.sides:
        with closing(speak(side.port)) as wire:
            create_topic(wire, topic, partitions=PARTITIONS)
            partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            one = Transactor(wire, name, own_epochs=own_epochs).start()
            until(lambda one=one, of=partitions: own_epochs or not any(one.add(*of)), "joined")
            for at in partitions:
                # Kafka tells of a new topic before it takes records.
                until(lambda one=one, at=at: one.produce(at).error_code == ErrorCode.NONE, "taken")
            assert one.end(commit=True) is ErrorCode.NONE
            met: list[ErrorCode] = []

            def is_done(one: Transactor = one, met: list[ErrorCode] = met) -> bool:
                met.append(one.end(commit=False))
                return met[-1] is not ErrorCode.CONCURRENT_TRANSACTIONS

            until(is_done, "the markers")
            last = ErrorCode.NONE if own_epochs else ErrorCode.INVALID_TXN_STATE
            assert met[0] is ErrorCode.CONCURRENT_TRANSACTIONS
            assert met[-1] is last
