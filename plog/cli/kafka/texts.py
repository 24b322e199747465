"""Kafka's words for errors: texts that scripts around Kafka's scripts look for."""

from __future__ import annotations

from plog.errors import ErrorCode, KafkaError

DEFAULTS: dict[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.GROUP_ID_NOT_FOUND: "The group id does not exist.",
    ErrorCode.NON_EMPTY_GROUP: "The group is not empty.",
}
"""The text of a code, where the broker sends no message with it."""


def reason(fault: Exception) -> str:
    """Return the text of an error as Kafka's client has it, without the words of ours."""
    if isinstance(fault, KafkaError):
        return fault.broker_message or DEFAULTS.get(fault.code) or str(fault)
    return str(fault)
