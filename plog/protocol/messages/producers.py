"""Producer ids, and the producers of partitions."""

from plog.protocol.schema import Int16, Int32, Int64, String, Struct, field, message


@message(api_key=22, versions="0-5", flexible="2+")
class InitProducerIdRequest(Struct):
    """Asks for a producer id and epoch. V3 raises the epoch of a known id (KIP-360)."""

    transactional_id: String | None = field("The transactional producer, or None.", nullable="0+")
    transaction_timeout_ms: Int32 = field("Timeout of a transaction, in ms.")
    producer_id: Int64 = field("The producer id.", versions="3+", default=-1)
    producer_epoch: Int16 = field("The producer epoch.", versions="3+", default=-1)


@message(api_key=22, versions="0-5", flexible="2+")
class InitProducerIdResponse(Struct):
    """The producer id and epoch."""

    throttle_time_ms: Int32 = field(
        "How long a quota throttles the client, in ms.", default=0, ignorable=True
    )
    error_code: Int16 = field("Error code, 0 for success.")
    producer_id: Int64 = field("The producer id.", default=-1)
    producer_epoch: Int16 = field("The producer epoch.")


class TopicRequest(Struct):
    """One of `topics`."""

    name: String = field("The topic.")
    partition_indexes: list[Int32] = field("The partitions.")


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersRequest(Struct):
    """Asks a leader for the active producers of partitions (KIP-664)."""

    topics: list[TopicRequest] = field("The topics.")


class ProducerState(Struct):
    """One of `active_producers`."""

    producer_id: Int64 = field("The producer id.")
    producer_epoch: Int32 = field("The producer epoch.")
    last_sequence: Int32 = field("Last sequence number of the producer, -1 for none.", default=-1)
    last_timestamp: Int64 = field("Time of its last record, in ms; -1 for none.", default=-1)
    coordinator_epoch: Int32 = field("Epoch of the transaction coordinator.")
    current_txn_start_offset: Int64 = field(
        "First offset of its open transaction, -1 for none.", default=-1
    )


class PartitionResponse(Struct):
    """One of `partitions`."""

    partition_index: Int32 = field("The partition.")
    error_code: Int16 = field("Error code, 0 for success.")
    error_message: String | None = field("Error message, or None.", nullable="0+", default=None)
    active_producers: list[ProducerState] = field("The active producers of the partition.")


class TopicResponse(Struct):
    """One of `topics`."""

    name: String = field("The topic.")
    partitions: list[PartitionResponse] = field("The partitions.")


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersResponse(Struct):
    """The producers of each partition."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    topics: list[TopicResponse] = field("The topics.")


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsRequest(Struct):
    """A broker asks the controller for a block of producer ids (KIP-730)."""

    broker_id: Int32 = field("The broker.")
    broker_epoch: Int64 = field("The broker's epoch.", default=-1)


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsResponse(Struct):
    """The block."""

    throttle_time_ms: Int32 = field("How long a quota throttles the client, in ms.", default=0)
    error_code: Int16 = field("Error code, 0 for success.")
    producer_id_start: Int64 = field("First id of the block.")
    producer_id_len: Int32 = field("Number of ids in the block.")
