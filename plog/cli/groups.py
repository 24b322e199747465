"""`plog groups`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from plog.cli.group_resets import Targets, read_targets, reset_options
from plog.cli.output import (
    bootstrap_option,
    duration_text,
    json_option,
    print_done,
    print_json,
    print_rows,
    raise_all,
    say,
    topic_partitions,
)
from plog.coordinator.consumer_events import GroupState as ConsumerState
from plog.coordinator.group_states import GroupState

if TYPE_CHECKING:
    from plog.client.group_admin import GroupAdmin, GroupDescription, GroupMember
    from plog.errors import KafkaError
    from plog.types import TopicPartition

PARTITION_COLUMNS = [
    *("Topic", "Partition", "Committed", "End", "Lag", "Behind"),
    *("Member", "Client", "Host"),
]
MEMBER_COLUMNS = [
    *("Member", "Client", "Host", "Instance", "Type", "Epoch"),
    *("Count", "Partitions", "Target"),
]
STATES = list(dict.fromkeys(state.value for state in (*GroupState, *ConsumerState)))
"""Those of classic groups and of consumer groups."""


@click.group()
def command() -> None:
    """Show how far consumer groups have read, and change it.

    Consumers that share the name of a group (their setting group.id) share the work: each partition
    of their topics is read by one of them, its members. Now and then the group commits its offset
    in each partition, which is the position of the record that it wants next, and whoever takes a
    partition over goes on from there. Lag is how much a group has still to read.

    One broker, the group's coordinator, keeps all that. It remembers a group that nobody is in
    (Empty) by what it has committed, until that expires (offsets.retention.minutes).
    """


@command.command("list")
@bootstrap_option
@json_option
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only groups in this state; may be given many times.",
)
def list_groups(bootstrap: str, as_json: bool, states: tuple[str, ...]) -> None:
    """List the groups there are.

    A group is Stable while its members read, Empty when it has none; PreparingRebalance and
    CompletingRebalance while its partitions are divided anew (Assigning and Reconciling, where the
    broker divides them). Type is "classic" where the members divide the partitions, "consumer"
    where the broker does (their setting group.protocol). Protocol says what the members are:
    "consumer", "connect" and so on; nothing where offsets were only ever committed from outside.
    """
    from plog.client.group_admin import GroupAdmin

    with GroupAdmin(bootstrap) as admin:
        groups = admin.groups(states)
    rows = [(one.group_id, one.state, one.group_type, one.protocol_type) for one in groups]
    print_rows(rows, ["Group", "State", "Type", "Protocol"], as_json=as_json)


@command.command()
@click.argument("group")
@bootstrap_option
@json_option
@click.option("--members", is_flag=True, help="List the members, each with its partitions.")
def describe(group: str, bootstrap: str, as_json: bool, members: bool) -> None:
    """Show where GROUP is in each partition, and who reads it.

    Committed is the offset that the group wants next, End the one after the last record; Lag is
    what lies between them, and Behind for how long the next record has been waiting. Committed is
    empty where the group has a partition, but has committed nothing yet. What is not known is
    empty, as Behind is where the next record is already deleted.

    Where the broker divides the partitions, group and members have epochs. A member whose epoch is
    below the one that is assigned for is on its way to its Target: it has partitions to give up.
    Type says how a member speaks, for groups whose clients are upgraded one by one.
    """
    from plog.client.group_admin import GroupAdmin

    with GroupAdmin(bootstrap) as admin:
        described = admin.describe(group)
        if members:
            rows = [_member(member) for member in described.members]
        else:
            rows = _partitions(admin, described)
    about = {
        "group": described.group_id,
        "state": described.state,
        "assignor": described.assignor,
        "members": len(described.members),
        "coordinator": described.coordinator.node_id,
        "type": described.group_type,
        "epoch": described.epoch,
        "assignment_epoch": described.assignment_epoch,
    }
    if as_json:
        print_json({**about, ("assignments" if members else "partitions"): rows})
        return
    say(_line(described))
    if not rows:
        say("It has no members." if members else "It has committed nothing.")
        return
    if not members:
        rows = [{**row, "behind_ms": _behind(row["behind_ms"])} for row in rows]
    columns = MEMBER_COLUMNS if members else PARTITION_COLUMNS
    # Terminals are narrow: what is empty everywhere takes no room.
    told = [
        (name, cells)
        for name, *cells in zip(columns, *(row.values() for row in rows), strict=True)
        if any(cell not in (None, "") for cell in cells)
    ]
    names, cells = zip(*told, strict=True)
    print_rows(list(zip(*cells, strict=True)), names, as_json=False)


def _line(group: GroupDescription) -> str:
    from plog.types import counted

    coordinator = group.coordinator
    epochs = ""
    if group.epoch is not None:
        epochs = f" type consumer, epoch {group.epoch}, assigned for {group.assignment_epoch},"
    return (
        f"Group {group.group_id}: {group.state},{epochs} assignor {group.assignor or 'none'},"
        f" {counted(len(group.members), 'member')}, coordinator broker {coordinator.node_id}"
        f" ({coordinator.host}:{coordinator.port})"
    )


def _partitions(admin: GroupAdmin, group: GroupDescription) -> list[dict[str, Any]]:
    """Return what is told of each partition that is committed, or assigned to a member."""
    owners = {at: member for member in group.members for at in member.assigned or ()}
    offsets: dict[TopicPartition, int | None] = dict.fromkeys(owners)
    offsets.update(admin.committed(group.group_id))
    lags = admin.lags(offsets, time.time_ns() // 1_000_000)
    rows = []
    for at in sorted(offsets):
        owner, lag = owners.get(at), lags[at]
        rows.append(
            {
                "topic": at.topic,
                "partition": at.partition,
                "committed": offsets[at],
                "end": lag.log_end,
                "lag": lag.records,
                "behind_ms": lag.age_ms,
                "member": owner.member_id if owner else None,
                "client": owner.client_id if owner else None,
                "host": owner.host if owner else None,
            }
        )
    return rows


def _member(member: GroupMember) -> dict[str, Any]:
    assigned = member.assigned
    return {
        "member": member.member_id,
        "client": member.client_id,
        "host": member.host,
        "instance": member.instance_id,
        "type": member.member_type,
        "epoch": member.epoch,
        "count": None if assigned is None else len(assigned),
        "partitions": None if assigned is None else [str(at) for at in assigned],
        "target": None if member.target is None else [str(at) for at in member.target],
    }


def _behind(age_ms: int | None) -> str:
    return "" if age_ms is None else duration_text(age_ms)


@command.command()
@click.argument("group")
@bootstrap_option
@json_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1,2]",
    help="The partitions of this topic, or some of them; may be given many times.",
)
@click.option("--all-topics", is_flag=True, help="Everything that the group has committed.")
@reset_options
@click.option("--execute", is_flag=True, help="Do it; without this it is only shown.")
def reset(
    group: str,
    bootstrap: str,
    as_json: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    execute: bool,
    **given: Any,
) -> None:
    """Change where GROUP goes on reading.

    Shows from where to where each partition's committed offset goes, and changes nothing unless
    --execute is given. Nobody may be in the group: stop its consumers first, for they would commit
    their own offsets over it. A group that does not exist comes to be. Offsets outside of a log
    become its start or its end.

    \b
      plog groups reset readers --topic flights --to-earliest
      plog groups reset readers --topic flights:0,2 --to-datetime 2013-07-04T12:00 --execute
      plog groups reset readers --all-topics --shift-by -100 --execute
    """
    from plog.client.group_admin import GroupAdmin
    from plog.errors import GroupIdNotFound
    from plog.types import counted

    targets = read_targets(given)
    chosen = (bool(topics), all_topics, targets.from_file is not None)
    if sum(chosen) != 1:
        raise click.UsageError("one of --topic, --all-topics and --from-file says which partitions")
    asked = [topic_partitions(entry, "--topic") for entry in topics]
    with GroupAdmin(bootstrap) as admin:
        exists = True
        try:
            _refuse_members(admin.describe(group))
        except GroupIdNotFound:
            exists = False
        committed = admin.committed(group)
        if targets.from_file is not None:
            partitions = list(targets.from_file)
        elif all_topics:
            partitions = list(committed)
        else:
            partitions = [at for topic, some in asked for at in _some(admin, topic, some)]
        changes = _changes(admin, targets, sorted(set(partitions)), committed)
        if not exists:
            say(f"plog: group {group!r} does not exist yet", err=True)
        if execute and changes:
            admin.commit(group, changes)
    rows = [(at.topic, at.partition, committed.get(at), to) for at, to in changes.items()]
    columns = ["Topic", "Partition", "From", "To"]
    if as_json:
        told = [dict(zip(["topic", "partition", "from", "to"], row, strict=True)) for row in rows]
        print_json({"group": group, "executed": execute and bool(changes), "changes": told})
        return
    print_rows(rows, columns, as_json=False)
    of_group = f"{counted(len(changes), 'offset')} of group {group}"
    if not changes:
        say(f"Group {group} has committed nothing.")
    elif execute:
        say(f"Reset {of_group}.")
    else:
        say(f"Nothing is changed yet: --execute resets {of_group}.")


def _refuse_members(group: GroupDescription) -> None:
    from plog.errors import NonEmptyGroup
    from plog.types import counted

    if group.state != GroupState.EMPTY.value:
        count = counted(len(group.members), "member")
        raise NonEmptyGroup(
            f"group {group.group_id!r} is {group.state} and has {count}; stop its consumers first"
        )


def _changes(
    admin: GroupAdmin,
    targets: Targets,
    partitions: list[TopicPartition],
    committed: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return where each partition goes, and say which would have gone beyond its log."""
    if not partitions:
        return {}
    bounds = admin.bounds(partitions)
    wanted = targets.wanted(admin, bounds, committed)
    changes: dict[TopicPartition, int] = {}
    for at, (start, end) in bounds.items():
        changes[at] = min(max(wanted[at], start), end)
        if changes[at] != wanted[at]:
            say(
                f"plog: {at} has the offsets {start} to {end}: {changes[at]} is taken in place of"
                f" {wanted[at]}",
                err=True,
            )
    return changes


@command.command()
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...")
@bootstrap_option
@json_option
def delete(groups: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Delete groups, and with them all that they have committed.

    Does not ask. A group that somebody is in is left alone, and the others are deleted all the
    same. Consumers that come again with the same group.id begin as a new group does.
    """
    from plog.client.group_admin import GroupAdmin
    from plog.errors import KafkaError

    deleted: list[str] = []
    faults: list[KafkaError] = []
    with GroupAdmin(bootstrap) as admin:
        for group in dict.fromkeys(groups):
            try:
                admin.delete(group)
            except KafkaError as fault:
                faults.append(fault)
            else:
                deleted.append(group)
    if deleted:
        text = "\n".join(f"Deleted group {group}." for group in deleted)
        print_done(text, {"groups": deleted, "deleted": True}, as_json=as_json)
    raise_all(faults)


@command.command("delete-offsets")
@click.argument("group")
@bootstrap_option
@json_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="TOPIC[:0,1,2]",
    help="A topic, or some of its partitions; may be given many times.",
)
def delete_offsets(group: str, bootstrap: str, as_json: bool, topics: tuple[str, ...]) -> None:
    """Make GROUP forget what it has committed of topics.

    Consumers that come to these partitions then begin as their setting auto.offset.reset says.
    Refused for topics that members of the group consume now. A group that nobody is in is gone
    with the last of its offsets.
    """
    from plog.client.group_admin import GroupAdmin
    from plog.types import counted

    asked = [topic_partitions(entry, "--topic") for entry in topics]
    with GroupAdmin(bootstrap) as admin:
        admin.describe(group)
        committed = admin.committed(group)
        partitions: list[TopicPartition] = []
        for (topic, some), entry in zip(asked, topics, strict=True):
            found = [
                at for at in committed if at.topic == topic and (not some or at.partition in some)
            ]
            if not found:
                raise click.ClickException(f"group {group!r} has committed nothing of {entry!r}")
            partitions += found
        partitions = sorted(set(partitions))
        admin.delete_offsets(group, partitions)
    told = [{"topic": at.topic, "partition": at.partition} for at in partitions]
    print_done(
        f"Deleted {counted(len(partitions), 'offset')} of group {group}:"
        f" {', '.join(map(str, partitions))}.",
        {"group": group, "deleted": told},
        as_json=as_json,
    )


def _some(admin: GroupAdmin, topic: str, numbers: Iterable[int]) -> list[TopicPartition]:
    """Return partitions of a topic, all where none are named; the log's bounds tell wrong ones."""
    from plog.types import TopicPartition

    return [TopicPartition(topic, number) for number in numbers] or admin.partitions_of(topic)
