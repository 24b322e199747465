from typing import NamedTuple

class SequencedBatch(NamedTuple):
    """What is remembered of one of a producer's last five batches."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int  # last_offset - base_offset
    timestamp: int

class ProducerEntry(NamedTuple):
    """State of one producer id in one partition. `version` changes at every change of the entry in
    the struct.
    """

    producer_id: int
    producer_epoch: int
    batches: tuple[
        SequencedBatch, ...
    ]  # oldest first, at most five; empty: any sequence may come next
    last_timestamp: int
    coordinator_epoch: int  # -1 if no marker was seen
    current_txn_first_offset: int  # -1 outside a transaction
    version: int = 0
