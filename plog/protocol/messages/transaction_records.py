"""Keys and values of `__transaction_state`, as Kafka's brokers store them. Each is preceded by its
version as an int16.
"""

from plog.protocol.schema import Int8, Int16, Int32, Int64, String, Struct, field, message


@message(versions="0")
class TransactionLogKey(Struct):
    """Key of a transactional id."""

    transactional_id: String = field("The transactional id.")


class PartitionsSchema(Struct):
    """One of `transaction_partitions`."""

    topic: String = field("The topic.")
    partition_ids: list[Int32] = field("The partitions.")


@message(versions="0-1", flexible="1+")
class TransactionLogValue(Struct):
    """A transactional id's producer, and its open or last transaction."""

    producer_id: Int64 = field("The producer id.")
    previous_producer_id: Int64 = field(
        "The previous id, whose epochs are used up; -1 for none (KIP-890).",
        versions="1+",
        tag=0,
        default=-1,
        ignorable=True,
    )
    next_producer_id: Int64 = field(
        "The id that the producer uses next, while its transaction ends; -1 for none.",
        versions="1+",
        tag=1,
        default=-1,
        ignorable=True,
    )
    producer_epoch: Int16 = field("The producer epoch.")
    transaction_timeout_ms: Int32 = field("Timeout of a transaction, in ms.")
    transaction_status: Int8 = field("The state, by its number.")
    transaction_partitions: list[PartitionsSchema] | None = field(
        "The partitions of the transaction; None without a transaction.", nullable="0+"
    )
    transaction_last_update_timestamp_ms: Int64 = field("Time of the last update, in ms.")
    transaction_start_timestamp_ms: Int64 = field(
        "Start time of the transaction, in ms; -1 for none."
    )
    client_transaction_version: Int16 = field(
        "2 for clients that get a new epoch with each transaction.",
        versions="1+",
        tag=2,
        default=0,
        ignorable=True,
    )
