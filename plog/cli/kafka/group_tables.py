"""The tables in which kafka-consumer-groups describes a group."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from plog.cli.kafka.config import Clients
from plog.client.group_descriptions import GroupDescription, GroupMember
from plog.types import TopicPartition

NONE = "-"
MIN_WIDTH = 15
WIDE = 25


def print_state(group: GroupDescription) -> None:
    """Print the coordinator, assignor, state and number of members."""
    node = group.coordinator
    coordinator = f"{node.host}:{node.port}  ({node.node_id})"
    width = max(WIDE, len(group.group_id))
    place = max(WIDE, len(coordinator))
    heads = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")
    row = (group.group_id, coordinator, group.assignor, group.state, str(len(group.members)))
    print()
    for cells in (heads, row):
        one, two, three, four, five = cells
        print(f"{one:<{width}} {two:<{place}} {three:<20} {four:<15} {five}")


def print_offsets(group: GroupDescription, clients: Clients) -> None:
    """Print the offset and lag of each partition, with its member; nothing for an empty group."""
    owners = {at: member for member in group.members for at in member.assigned or ()}
    offsets: dict[TopicPartition, int | None] = dict.fromkeys(owners)
    offsets.update(clients.groups.committed(group.group_id))
    lags = clients.groups.lags(offsets, int(time.time() * 1000))
    heads = [
        *("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
        *("CONSUMER-ID", "HOST", "CLIENT-ID"),
    ]
    rows = []
    for at, offset in sorted(offsets.items()):
        lag = lags.get(at)
        end = None if lag is None else lag.log_end
        rows.append(
            [
                *(group.group_id, at.topic, at.partition, offset, end),
                None if offset is None or end is None else end - offset,
                *_owner(owners.get(at)),
            ]
        )
    idle = [member for member in group.members if not member.assigned]
    rows += [[group.group_id, *[None] * 5, *_owner(member)] for member in idle]
    if not rows:
        return
    texts = [heads, *([NONE if cell is None else str(cell) for cell in row] for row in rows)]
    widths = [*(_width(texts, column) for column in (0, 1)), 10, 15, 15, 15]
    widths += [_width(texts, column) for column in (6, 7)]
    print()
    for row in texts:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print(" ".join((*cells, row[-1])))


def _owner(member: GroupMember | None) -> list[str | None]:
    if member is None:
        return [None] * 3
    return [member.member_id, f"/{member.host.lstrip('/')}", member.client_id]


def _width(rows: Iterable[Sequence[str]], column: int) -> int:
    return max(MIN_WIDTH, *(len(row[column]) for row in rows))


def print_members(group: GroupDescription | None, *, verbose: bool) -> None:
    """Print the members; with `verbose` also their partitions."""
    members = group.members if group is not None else []
    has_instances = any(member.instance_id for member in members)
    heads = ["GROUP", "CONSUMER-ID"] + ["GROUP-INSTANCE-ID"] * has_instances
    rows = [[*heads, "HOST", "CLIENT-ID", "#PARTITIONS"]]
    for member in sorted(members, key=lambda one: -len(one.assigned or ())):
        assert group is not None
        rows.append(
            [group.group_id, member.member_id]
            + [member.instance_id or ""] * has_instances
            + [f"/{member.host.lstrip('/')}", member.client_id, str(len(member.assigned or ()))]
        )
    widths = [_width(rows, column) for column in range(len(rows[0]) - 1)] + [MIN_WIDTH]
    if has_instances:
        widths[2] = max(17, widths[2])
    assignments = ["ASSIGNMENT", *(_assignment(one) for one in members)]
    print()
    for row, assignment in zip(rows, assignments, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print(" ".join((*cells, assignment * verbose)))


def _assignment(member: GroupMember) -> str:
    topics: dict[str, list[int]] = {}
    for at in sorted(member.assigned or ()):
        topics.setdefault(at.topic, []).append(at.partition)
    texts = (f"{topic}({','.join(map(str, numbers))})" for topic, numbers in topics.items())
    return ", ".join(texts) or NONE
