"""`plog groups list` and `plog groups describe`: progress, lag and members of groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from plog.cli.output import (
    MOST_NAMED,
    bootstrap_option,
    distinct,
    duration_text,
    each,
    json_option,
    print_columns,
    print_json,
    print_objects,
    raise_all,
    say,
)
from plog.coordinator.consumer_events import GroupState as ConsumerState
from plog.coordinator.group_states import GroupState
from plog.types import counted

if TYPE_CHECKING:
    from plog.client.group_admin import GroupAdmin
    from plog.client.group_descriptions import GroupDescription, GroupMember
    from plog.client.group_lag import PartitionLag
    from plog.client.group_survey import SurveyedGroup
    from plog.errors import KafkaError
    from plog.types import TopicPartition

LIST_COLUMNS = ["Group", "State", "Type", "Protocol", "Members", "Lag", "Behind", "Unknown"]
PARTITION_COLUMNS = [
    *("Topic", "Partition", "Committed", "End", "Lag", "Behind"),
    *("Member", "Client", "Host"),
]
MEMBER_COLUMNS = [
    *("Member", "Client", "Host", "Instance", "Type", "Epoch"),
    *("Count", "Partitions", "Target"),
]
STATES = list(dict.fromkeys(state.value for state in (*GroupState, *ConsumerState)))
"""States of classic groups and of consumer groups."""
SORTS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "lag": lambda row: (-_size(row["lag"]), -_size(row["behind_ms"]), row["group"]),
    "behind": lambda row: (-_size(row["behind_ms"]), -_size(row["lag"]), row["group"]),
    "name": lambda row: row["group"],
}


def _size(figure: int | None) -> int:
    return -1 if figure is None else figure


@click.command("list")
@bootstrap_option
@json_option
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="List only groups in this state. Repeatable.",
)
@click.option(
    "--sort",
    type=click.Choice(list(SORTS)),
    default="lag",
    show_default=True,
    help="Order of the groups: largest lag first, longest behind first, or by name.",
)
def list_groups(bootstrap: str, as_json: bool, states: tuple[str, ...], sort: str) -> None:
    """List consumer groups with their lag, the largest first.

    Lag is the number of records that the group has not read yet in all its partitions. Behind is
    how long ago the oldest of them was written. Both are empty if the group has not committed an
    offset. Behind takes at most 200 fetches and 64 MiB, for the groups with the largest lag first.
    A line on stderr counts the groups left out, whose Behind is empty.

    Unknown is the number of partitions whose lag is not known. Such a partition has no leader, its
    topic is deleted, or it is assigned to a member and has no committed offset. Exit status 1 means
    that a broker, a group or a partition gave no answer.

    A group is Stable while its members read and Empty when it has no members. While partitions are
    reassigned, it is PreparingRebalance or CompletingRebalance (type classic), or Assigning or
    Reconciling (type consumer). In a classic group a member assigns the partitions; in a consumer
    group the broker does (the members' setting group.protocol). Protocol is the kind of members:
    "consumer", "connect" and so on. It is empty if the group never had members, only offsets.
    """
    from plog.client.group_admin import GroupAdmin

    with GroupAdmin(bootstrap) as admin:
        survey = admin.survey(_now_ms(), states)
    rows = sorted(map(_overview, survey.groups), key=SORTS[sort])
    if as_json:
        print_json(rows)
    else:
        cells = [[*row.values()] for row in rows]
        for row in cells:
            row[-2], row[-1] = _behind(row[-2]), row[-1] or None
        print_columns(cells, LIST_COLUMNS, optional=["Unknown"])
    _warn_of_omitted(survey.without_ages)
    faults = [one.fault for one in survey.groups if one.fault is not None]
    raise_all(distinct([*faults, *survey.faults]), most=MOST_NAMED)


def _overview(group: SurveyedGroup) -> dict[str, Any]:
    listed, total = group.listed, group.total
    return {
        "group": listed.group_id,
        "state": listed.state,
        "type": listed.group_type,
        "protocol": listed.protocol_type,
        "members": None if group.description is None else len(group.description.members),
        "lag": total.records,
        "behind_ms": total.age_ms,
        "unknown": total.unknown,
    }


@click.command()
@click.argument("groups", nargs=-1, metavar="[GROUP...]")
@bootstrap_option
@json_option
@click.option("--all", "all_groups", is_flag=True, help="Describe all groups.")
@click.option("--members", is_flag=True, help="List the members with their partitions.")
def describe(
    groups: tuple[str, ...], bootstrap: str, as_json: bool, all_groups: bool, members: bool
) -> None:
    """Show the committed offsets, the lag and the members of groups.

    Committed is the offset that the group reads next, and End the offset after the last record. Lag
    is the difference. Behind is how long the next record has been waiting. Committed is empty if
    the group has not committed an offset yet; Behind is empty if the next record was deleted. With
    --all, Behind takes at most 200 fetches and 64 MiB, for the groups with the largest lag first. A
    line on stderr counts the groups left out, whose Behind is empty.

    In a consumer group (KIP-848), group and members have epochs. A member whose epoch is below the
    group's assignment epoch still has to give up partitions before it gets its Target. Type is the
    protocol of a member: classic or consumer, while a group's clients are being upgraded.

    Exit status 1 means that a group, or a partition such as one without a leader, gave no answer.

    With --json, one GROUP gives an object; several, or --all, give a list of such objects.
    """
    from plog.client.group_admin import GroupAdmin

    if all_groups == bool(groups):
        raise click.UsageError(f"specify GROUP... or --all{', not both' if groups else ''}")
    with GroupAdmin(bootstrap) as admin:
        if all_groups:
            survey = admin.survey(_now_ms())
            omitted = survey.without_ages
            found = [
                _Described(one.description, one.offsets, one.lags)
                for one in survey.groups
                if one.description is not None
            ]
            faults = distinct([one.fault for one in survey.groups if one.fault] + survey.faults)
        else:
            omitted = set()
            results, faults = each(groups, lambda group: _described(admin, group, members=members))
            found = list(results.values())
            faults += distinct([fault for one in found for fault in one.faults])
    if as_json:
        objects = [one.as_json(members=members) for one in found]
        print_objects(objects, several=all_groups or len(groups) > 1)
    elif all_groups and not found and not faults:
        say("No groups.")
    else:
        for number, one in enumerate(found):
            if number:
                say("")
            _print(one, members=members)
    if not members:
        _warn_of_omitted(omitted)
    raise_all(faults, most=max(len(groups), MOST_NAMED))


def _warn_of_omitted(groups: Collection[str]) -> None:
    """Print a line about the groups that the limits of the fetches left without Behind."""
    if groups:
        count = counted(len(groups), "group")
        say(
            f"plog: Behind is empty for {count} with a smaller lag: looking it up takes many"
            " fetches; use `plog groups describe NAME`",
            err=True,
        )


class _Described(NamedTuple):
    """A group with the offsets and the lag of its partitions."""

    group: GroupDescription
    offsets: Mapping[TopicPartition, int | None]
    lags: Mapping[TopicPartition, PartitionLag]
    faults: Sequence[KafkaError] = ()

    def as_json(self, *, members: bool) -> dict[str, Any]:
        """Return the object that --json prints."""
        group = self.group
        return {
            "group": group.group_id,
            "state": group.state,
            "assignor": group.assignor,
            "members": len(group.members),
            "coordinator": group.coordinator.node_id,
            "type": group.group_type,
            "epoch": group.epoch,
            "assignment_epoch": group.assignment_epoch,
            ("assignments" if members else "partitions"): self.rows(members=members),
        }

    def rows(self, *, members: bool) -> list[dict[str, Any]]:
        """Return a row for each member, or for each partition that is committed or assigned."""
        if members:
            return [_member(member) for member in self.group.members]
        owners = {at: member for member in self.group.members for at in member.assigned or ()}
        rows = []
        for at in sorted(self.offsets):
            owner, lag = owners.get(at), self.lags[at]
            rows.append(
                {
                    "topic": at.topic,
                    "partition": at.partition,
                    "committed": self.offsets[at],
                    "end": lag.log_end,
                    "lag": lag.records,
                    "behind_ms": lag.age_ms,
                    "member": owner.member_id if owner else None,
                    "client": owner.client_id if owner else None,
                    "host": owner.host if owner else None,
                }
            )
        return rows


def _described(admin: GroupAdmin, name: str, *, members: bool) -> _Described:
    group = admin.describe(name)
    if members:
        return _Described(group, {}, {})
    offsets: dict[TopicPartition, int | None] = {
        at: None for member in group.members for at in member.assigned or ()
    }
    offsets.update(admin.committed(name))
    return _Described(group, offsets, *admin.measure_lags(offsets, _now_ms()))


def _print(described: _Described, *, members: bool) -> None:
    say(_line(described.group))
    rows = described.rows(members=members)
    if not rows:
        say("The group has no members." if members else "The group has no committed offsets.")
        return
    cells: list[Sequence[Any]] = []
    for row in rows:
        if not members:
            row["behind_ms"] = _behind(row["behind_ms"])
        cells.append(list(row.values()))
    columns = MEMBER_COLUMNS if members else PARTITION_COLUMNS
    print_columns(cells, columns, optional=columns)
    if not members:
        say(_total(described))


def _line(group: GroupDescription) -> str:
    coordinator = group.coordinator
    epochs = ""
    if group.epoch is not None:
        epochs = f" type consumer, epoch {group.epoch}, assignment epoch {group.assignment_epoch},"
    return (
        f"Group {group.group_id}: {group.state},{epochs} assignor {group.assignor or 'none'},"
        f" {counted(len(group.members), 'member')}, coordinator broker {coordinator.node_id}"
        f" ({coordinator.host}:{coordinator.port})"
    )


def _total(described: _Described) -> str:
    from plog.client.group_survey import total_lag

    total = total_lag(described.offsets, described.lags)
    lag = "unknown" if total.records is None else counted(total.records, "record")
    text = f"Total: lag {lag} in {counted(len(described.offsets), 'partition')}"
    if total.age_ms:
        text += f", behind {duration_text(total.age_ms)}"
    if total.uncommitted:
        text += f"; {counted(total.uncommitted, 'partition')} without a commit"
    lost = total.unknown - total.uncommitted
    if lost and total.records is not None:
        text += f"; the lag of {counted(lost, 'partition')} is not known"
    return f"{text}."


def _member(member: GroupMember) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "client": member.client_id,
        "host": member.host,
        "instance": member.instance_id,
        "type": member.member_type,
        "epoch": member.epoch,
        "count": None if member.assigned is None else len(member.assigned),
        "partitions": _names(member.assigned),
        "target": _names(member.target),
    }


def _names(partitions: Iterable[TopicPartition] | None) -> list[str] | None:
    return None if partitions is None else [str(at) for at in partitions]


def _behind(age_ms: int | None) -> str:
    return "" if age_ms is None else duration_text(age_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
