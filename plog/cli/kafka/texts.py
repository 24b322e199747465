"""Kafka's words for errors: texts that scripts around Kafka's scripts look for."""

from __future__ import annotations

from plog.errors import ErrorCode, KafkaError

DEFAULTS: dict[int, str] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        "The requested offset is not within the range of offsets maintained by the server."
    ),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.GROUP_ID_NOT_FOUND: "The group id does not exist.",
    ErrorCode.NON_EMPTY_GROUP: "The group is not empty.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
        "Deleting offsets of a topic is forbidden"
        " while the consumer group is actively subscribed to it."
    ),
}
"""The text of a code, where the broker sends no message with it."""
NAMES: dict[int, str] = {
    ErrorCode.INVALID_CONFIG: "InvalidConfigurationException",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "InvalidTopicException",
    ErrorCode.NON_EMPTY_GROUP: "GroupNotEmptyException",
    ErrorCode.REQUEST_TIMED_OUT: "TimeoutException",
    ErrorCode.TOPIC_ALREADY_EXISTS: "TopicExistsException",
    ErrorCode.UNKNOWN_SERVER_ERROR: "UnknownServerException",
}
"""The name of Kafka's exception, where it does not follow from the code's name."""


def reason(fault: Exception) -> str:
    """Return the text of an error as Kafka's client has it, without the words of ours."""
    if isinstance(fault, KafkaError):
        return fault.broker_message or DEFAULTS.get(fault.code) or str(fault)
    return str(fault)


def java_text(fault: Exception) -> str:
    """Return an error with the name of Kafka's exception, as Java prints it."""
    if not isinstance(fault, KafkaError):
        return str(fault)
    name = NAMES.get(fault.code)
    if name is None:
        words = fault.code.name.split("_")
        name = "".join(word.capitalize() for word in words) + "Exception"
    return f"org.apache.kafka.common.errors.{name}: {reason(fault)}"


def execution_text(fault: Exception) -> str:
    """Return an error of a request as Java prints it."""
    text = java_text(fault)
    is_remote = isinstance(fault, KafkaError)
    return f"java.util.concurrent.ExecutionException: {text}" if is_remote else text
