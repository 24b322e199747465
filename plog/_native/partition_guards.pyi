from typing import Final, NamedTuple

from plog._native.partition_log import PartitionLog

MOST_GRANTED_AHEAD: Final = 256
"""So many producers of a partition are granted a guard ahead."""

class TxnGuard(NamedTuple):
    """The guard of a producer that is about to begin a transaction in a partition (KIP-890).

    `from_zero`: the epoch is the transaction's own, so that nothing may come before sequence 0.
    """

    origin: int
    number: int
    producer_id: int
    producer_epoch: int
    from_zero: bool

def ask(
    log: PartitionLog, producer_id: int, producer_epoch: int, *, from_zero: bool = False
) -> TxnGuard:
    """Return the guard of a producer and epoch, while the transaction's coordinator is asked.

    Several requests may hold the same.

    None of these functions waits for a disk, or for the lock of an append.
    """

def approve(log: PartitionLog, guard: TxnGuard) -> None:
    """Grant it, unless it is lost. Those of earlier epochs are lost by that."""

def refuse(log: PartitionLog, guard: TxnGuard) -> None:
    """Take it from one of those who hold it."""

def is_granted(log: PartitionLog, guard: TxnGuard, producer_id: int, producer_epoch: int) -> bool:
    """Return whether it lets a producer begin."""

def is_of(log: PartitionLog, guard: TxnGuard) -> bool:
    """Return whether a guard was asked for in this log, or in that whose place it has taken."""

def grant_ahead(
    log: PartitionLog,
    producer_id: int,
    producer_epoch: int,
    transactional_id: bytes,
    connection: int,
) -> bool:
    """Let the next batch of a producer begin a transaction, if it comes by this connection.

    The partition is in the transaction already. Whatever else becomes of the producer revokes it: a
    decided append, `put_producer`, `load_producers`, `remove_producer` (these three: of all
    producers), a change of leadership.

    Returns:
        False: there is no memory, or no transactional id, or too many guards; or the producer was
        granted one in a later epoch.
    """

def revoke(log: PartitionLog, producer_id: int) -> None:
    """Have a producer asked about after all, if it was granted something ahead."""

def end(log: PartitionLog, producer_id: int, last_epoch: int) -> None:
    """End the guards of a producer up to an epoch: used, or lost to a marker."""

def succeed(log: PartitionLog, before: PartitionLog) -> None:
    """Share the guards of the log in whose place this one comes."""

def guard_count(log: PartitionLog) -> int:
    """Return how many guards there are."""
