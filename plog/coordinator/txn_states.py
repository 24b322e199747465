"""The states of a transactional id, and what may be asked in each: tables, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from plog.errors import ErrorCode


class TxnState(IntEnum):
    """Kafka's states of a transactional id, by the numbers that its records hold."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name that clients are told, such as `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


BY_LABEL: Mapping[str, TxnState] = {state.label: state for state in TxnState}

EMPTY, ONGOING = TxnState.EMPTY, TxnState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT

AT_REST = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""No transaction is open."""

PREPARED: Mapping[TxnState, bool] = {PREPARE_COMMIT: True, PREPARE_ABORT: False}
"""Decided, and its markers are on their way: whether to commit."""

NEXT_STATES: Mapping[TxnState, frozenset[TxnState]] = {
    EMPTY: frozenset({EMPTY, ONGOING, PREPARE_ABORT}),
    ONGOING: frozenset({ONGOING, PREPARE_COMMIT, PREPARE_ABORT}),
    PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
    PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
    COMPLETE_COMMIT: frozenset({EMPTY, ONGOING, PREPARE_ABORT}),
    COMPLETE_ABORT: frozenset({EMPTY, ONGOING, PREPARE_ABORT}),
}
"""What may follow a state. An abort without a transaction raises the epoch (KIP-890)."""

OF_OUTCOME: Mapping[bool, tuple[TxnState, TxnState]] = {
    True: (PREPARE_COMMIT, COMPLETE_COMMIT),
    False: (PREPARE_ABORT, COMPLETE_ABORT),
}
"""By whether to commit: decided, and done."""

END_ANSWERS: Mapping[tuple[TxnState, bool], ErrorCode | None] = {
    (EMPTY, True): ErrorCode.INVALID_TXN_STATE,
    (EMPTY, False): ErrorCode.INVALID_TXN_STATE,
    (ONGOING, True): None,
    (ONGOING, False): None,
    (PREPARE_COMMIT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (PREPARE_COMMIT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
    (PREPARE_ABORT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (PREPARE_ABORT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
    (COMPLETE_COMMIT, True): ErrorCode.NONE,
    (COMPLETE_COMMIT, False): ErrorCode.INVALID_TXN_STATE,
    (COMPLETE_ABORT, True): ErrorCode.INVALID_TXN_STATE,
    (COMPLETE_ABORT, False): ErrorCode.NONE,
}
"""What EndTxn is answered by state and whether to commit; None: the transaction is ended.

Of version 1, where a producer keeps its epoch from one transaction to the next, so that whoever
asks again must be told of the one that has ended. While the markers are written it is to come
again: what it ends may be the next transaction, which it has begun and not written to. (Kafka 4.1
and Java's clients go by that: INVALID_TXN_STATE would be the end of the producer.)
"""
