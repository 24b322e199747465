"""Subscriptions and assignments of `consumer` groups, which the coordinator passes on (KIP-429).
Each is preceded by its version as an int16; a newer one is read as the newest that is known.
"""

from plog.protocol.schema import Bytes, Int32, String, Struct, field, message


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic: String = field("The topic.")
    partitions: list[Int32] = field("The partitions.")


@message(versions="0-3")
class ConsumerProtocolSubscription(Struct):
    """A member's subscription. V1 owned partitions (KIP-429), v2 generation (KIP-792), v3 rack."""

    topics: list[String] = field("The topics.")
    user_data: Bytes | None = field("Data of the assignor.", nullable="0+", default=None)
    owned_partitions: list[TopicPartitions] = field(
        "Partitions that the member owns and wants to keep.",
        versions="1+",
        default=[],
        ignorable=True,
    )
    generation_id: Int32 = field(
        "The generation of the assignment.", versions="2+", default=-1, ignorable=True
    )
    rack_id: String | None = field(
        "The member's rack, or None.", versions="3+", nullable="3+", default=None, ignorable=True
    )


@message(versions="0-3")
class ConsumerProtocolAssignment(Struct):
    """A member's assignment."""

    assigned_partitions: list[TopicPartitions] = field("The partitions.")
    user_data: Bytes | None = field("Data of the assignor.", nullable="0+", default=None)


@message(versions="0-1")
class StickyUserData(Struct):
    """The `user_data` of the eager sticky assignor; no version precedes it."""

    previous_assignment: list[TopicPartitions] = field("The member's previous assignment.")
    generation: Int32 = field("The generation of `owned_partitions`.", versions="1+", default=-1)
