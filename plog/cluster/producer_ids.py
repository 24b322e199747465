"""Producer ids, from blocks of a thousand taken in the coordination store.

Owns the broker's present block. A block is written down before its first id is given
out, so that no id is ever given twice, by whichever broker; ids of a block that a
broker did not use up before it stopped are lost.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from plog.cluster.store import BadVersion, Store, Unreachable
from plog.cluster.znodes import PRODUCER_ID_BLOCK, MalformedNode, ProducerIdBlock, broker_path
from plog.errors import BrokerIdNotRegistered, StaleBrokerEpoch, UnknownServerError

log = logging.getLogger(__name__)

BLOCK_SIZE = 1000
LARGEST_PRODUCER_ID = 2**63 - 1
UNUSED_PRODUCER_IDS = 1_000_000
"""Ids that clients may hold without having written: a thousand blocks of them."""


class ProducerIds:
    """Gives out producer ids. Safe from any thread."""

    def __init__(self, store: Store, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._lock = threading.Lock()
        self._next = 0
        self._end = 0
        self._reported: int | None = None

    def next(self) -> int:
        """Return an id that nobody has had; once in a thousand calls, a write to the store.

        Raises:
            StoreError: a block was needed and the store cannot be written.
            UnknownServerError: all ids there can be are used up, or the last block is unreadable.
        """
        with self._lock:
            if self._next == self._end:
                self._begin_block()
            self._next += 1
            return self._next - 1

    def reserve(self) -> None:
        """Have a block ready, so that ids can be given out while the store is away.

        Raises:
            StoreError: the store cannot be written.
        """
        with self._lock, suppress(UnknownServerError):  # logged; a client hears of it
            if self._next == self._end:
                self._begin_block()

    def _begin_block(self) -> None:
        block = self._take_block(self._broker_id)
        self._next, self._end = block.first, block.last + 1

    def spare(self) -> int | None:
        """Return an id of the present block without a call of the store; None: `next` needs one."""
        # If the block is used up, the thread that holds the lock may wait for the store.
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._next == self._end:
                return None
            self._next += 1
            return self._next - 1
        finally:
            self._lock.release()

    def take_block(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """Take a block for another broker.

        Raises:
            BrokerIdNotRegistered, StaleBrokerEpoch: the broker is not registered in this epoch.
            StoreError, UnknownServerError: as `next`.
        """
        found = self._store.exists(broker_path(broker_id))
        if found is None:
            raise BrokerIdNotRegistered(f"broker {broker_id} is not registered")
        if found.czxid != broker_epoch:
            raise StaleBrokerEpoch(f"stale broker epoch {broker_epoch}, it is {found.czxid} now")
        return self._take_block(broker_id)

    def _take_block(self, broker_id: int) -> ProducerIdBlock:
        while True:
            data, stat = self._store.get(PRODUCER_ID_BLOCK)
            try:
                first = ProducerIdBlock.decode(data).last + 1 if data else 0
            except MalformedNode as fault:
                if self._reported != stat.mzxid:
                    self._reported = stat.mzxid
                    log.error("no producer can get an id: %s: %s", PRODUCER_ID_BLOCK, fault)
                raise UnknownServerError(f"{PRODUCER_ID_BLOCK}: {fault}") from fault
            if first > LARGEST_PRODUCER_ID - BLOCK_SIZE + 1:
                raise UnknownServerError("every producer id has been used")
            block = ProducerIdBlock(broker_id, first, first + BLOCK_SIZE - 1)
            try:
                self._store.set(PRODUCER_ID_BLOCK, block.encode(), stat.version)
            except (BadVersion, Unreachable):
                # Another broker took this block, or it may be ours: then its ids are lost.
                continue
            return block


def raise_producer_ids(store: Store, broker_id: int, largest: int) -> None:
    """Make the next block lie above every id seen, where the store knows less than the logs.

    The store may be new, or an older copy. Producers may also hold ids that are in no log yet,
    those in `__transaction_state` among them: hence the distance.

    Raises:
        StoreError: the block cannot be read.
    """
    first = largest + 1 + UNUSED_PRODUCER_IDS - BLOCK_SIZE
    block = ProducerIdBlock(broker_id, first, first + BLOCK_SIZE - 1)
    if block.last > LARGEST_PRODUCER_ID // 2:
        return  # no broker has counted so far: a client has made the id up
    while True:
        data, stat = store.get(PRODUCER_ID_BLOCK)
        try:
            if data and largest <= ProducerIdBlock.decode(data).last:
                return
        except MalformedNode:
            return  # no id is given out before it is repaired
        try:
            store.set(PRODUCER_ID_BLOCK, block.encode(), stat.version)
        except (BadVersion, Unreachable):
            continue  # another broker has written it, or this one
        log.warning("producer ids go on after %d: the logs have some up to %d", block.last, largest)
        return
