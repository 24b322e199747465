"""What a group may be called: all but nothing, where a member or an administrator names it."""

from __future__ import annotations

from plog.errors import InvalidGroupId


def check_group_id(group_id: str) -> None:
    """Check a group's id. Commits, and who looks for them, may do without one: as in Kafka.

    Raises:
        InvalidGroupId: it is empty.
    """
    if not group_id:
        raise InvalidGroupId("the group id must not be empty")
