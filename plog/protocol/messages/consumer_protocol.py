"""What members of `consumer` groups tell each other through the coordinator: KIP-429's formats.
Each is preceded by its version as an int16; a newer one is read as the newest that is known.
"""

from plog.protocol.schema import Bytes, Int32, String, Struct, field, message


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic: String = field("The topic.")
    partitions: list[Int32] = field("The partitions.")


@message(versions="0-3")
class ConsumerProtocolSubscription(Struct):
    """What a member wants. V1 what it owns (KIP-429), v2 since when (KIP-792), v3 its rack."""

    topics: list[String] = field("The topics.")
    user_data: Bytes | None = field("The assignor's own.", nullable="0+", default=None)
    owned_partitions: list[TopicPartitions] = field(
        "What the member has and would keep.", versions="1+", default=[], ignorable=True
    )
    generation_id: Int32 = field(
        "The generation that gave it to the member.", versions="2+", default=-1, ignorable=True
    )
    rack_id: String | None = field(
        "Where the member is.", versions="3+", nullable="3+", default=None, ignorable=True
    )


@message(versions="0-3")
class ConsumerProtocolAssignment(Struct):
    """What a member is to consume."""

    assigned_partitions: list[TopicPartitions] = field("The partitions.")
    user_data: Bytes | None = field("The assignor's own.", nullable="0+", default=None)


@message(versions="0-1")
class StickyUserData(Struct):
    """What members of the eager sticky assignor tell in `user_data`; no version precedes it."""

    previous_assignment: list[TopicPartitions] = field("What the member had.")
    generation: Int32 = field("Since when.", versions="1+", default=-1)
