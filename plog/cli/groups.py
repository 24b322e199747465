"""`plog groups`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from plog.cli.group_resets import Targets, read_targets, reset_options
from plog.cli.group_views import describe, list_groups
from plog.cli.output import (
    bootstrap_option,
    confirm,
    each,
    execute_option,
    json_option,
    names_text,
    print_done,
    print_json,
    print_rows,
    raise_all,
    say,
    topic_partitions,
    yes_option,
)
from plog.coordinator.group_states import GroupState

if TYPE_CHECKING:
    from plog.client.group_admin import GroupAdmin
    from plog.client.group_descriptions import GroupDescription
    from plog.types import TopicPartition


@click.group()
def command() -> None:
    """Show the progress and lag of consumer groups; reset and delete their offsets.

    Consumers with the same setting group.id are the members of one group and share the work: one
    member reads each partition. The group regularly commits its offset in each partition, which is
    the offset of the next record to read. A member that takes over a partition continues there. Lag
    is the number of records that the group has not read yet.

    One broker, the group's coordinator, stores the group. It keeps the offsets of a group without
    members (state Empty) until they expire (offsets.retention.minutes).
    """


command.add_command(list_groups)
command.add_command(describe)


@command.command()
@click.argument("group")
@bootstrap_option
@json_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1,2]",
    help="Reset this topic, or some of its partitions. Repeatable.",
)
@click.option("--all-topics", is_flag=True, help="Reset all partitions with a committed offset.")
@reset_options
@execute_option
@click.option("--dry-run", is_flag=True, help="Show the change and do not make it.")
def reset(
    group: str,
    bootstrap: str,
    as_json: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    yes: bool,
    dry_run: bool,
    **given: Any,
) -> None:
    """Change the committed offsets of GROUP: where it continues to read.

    Shows the old and the new offset of each partition, then asks for confirmation. The group must
    not have members: stop its consumers first, because their commits would overwrite the new
    offsets. A group that does not exist is created. An offset outside the log is replaced by the
    nearer end of the log.

    \b
      plog groups reset readers --topic flights --to-earliest
      plog groups reset readers --topic flights:0,2 --to-datetime 2013-07-04T12:00 --yes
      plog groups reset readers --all-topics --shift-by -100 --dry-run
    """
    from plog.client.group_admin import GroupAdmin
    from plog.errors import GroupIdNotFound
    from plog.types import counted

    targets = read_targets(given)
    chosen = (bool(topics), all_topics, targets.from_file is not None)
    if sum(chosen) != 1:
        raise click.UsageError("specify --topic, --all-topics or --from-file")
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
            partitions = [at for topic, some in asked for at in admin.partitions_of(topic, some)]
        changes = _changes(admin, targets, sorted(set(partitions)), committed)
        if not exists:
            say(f"plog: group {group!r} does not exist yet", err=True)
        rows = [(at.topic, at.partition, committed.get(at), to) for at, to in changes.items()]
        if not as_json:
            print_rows(rows, ["Topic", "Partition", "From", "To"], as_json=False)
        of_group = f"{counted(len(changes), 'offset')} of group {group}"
        if changes and not dry_run:
            sys.stdout.flush()  # the plan, before the question
            confirm(f"Reset {of_group}?", "Not reset.", yes=yes)
            admin.commit(group, changes)
    if as_json:
        keys = ["topic", "partition", "from", "to"]
        objects = [dict(zip(keys, row, strict=True)) for row in rows]
        print_json({"group": group, "executed": bool(changes) and not dry_run, "changes": objects})
    elif not changes:
        say(f"Group {group} has no committed offsets.")
    elif dry_run:
        say(f"Nothing is changed: without --dry-run the command resets {of_group}.")
    else:
        say(f"Reset {of_group}.")


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
    """Return the new offset of each partition; report those limited to the log's bounds."""
    if not partitions:
        return {}
    bounds = admin.bounds(partitions)
    wanted = targets.wanted(admin, bounds, committed)
    changes: dict[TopicPartition, int] = {}
    for at, (start, end) in bounds.items():
        changes[at] = min(max(wanted[at], start), end)
        if changes[at] != wanted[at]:
            say(
                f"plog: {at} has the offsets {start} to {end}: using {changes[at]} instead of"
                f" {wanted[at]}",
                err=True,
            )
    return changes


@command.command()
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...")
@bootstrap_option
@json_option
@yes_option
def delete(groups: tuple[str, ...], bootstrap: str, as_json: bool, yes: bool) -> None:
    """Delete groups and their committed offsets.

    A group with members is not deleted; the others are. Consumers that later join with the same
    group.id form a new group.
    """
    from plog.client.group_admin import GroupAdmin

    its = "its" if len(groups) == 1 else "their"
    question = f"Delete {names_text(groups, 'group')} and {its} committed offsets?"
    confirm(question, "Not deleted.", yes=yes)
    with GroupAdmin(bootstrap) as admin:
        deleted, faults = each(groups, admin.delete)
    if deleted:
        lines = [f"Deleted group {group}." for group in deleted]
        print_done(lines, {"groups": list(deleted), "deleted": True}, as_json=as_json)
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
    help="Delete the offsets of this topic, or of some of its partitions. Repeatable.",
)
@yes_option
def delete_offsets(
    group: str, bootstrap: str, as_json: bool, topics: tuple[str, ...], yes: bool
) -> None:
    """Delete committed offsets of GROUP for some topics.

    Consumers then start in these partitions by their setting auto.offset.reset. The broker refuses
    topics to which members of the group are subscribed. A group without members disappears with its
    last offset.
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
                raise click.ClickException(
                    f"group {group!r} has no committed offsets for {entry!r}"
                )
            partitions += found
        partitions = sorted(set(partitions))
        offsets = counted(len(partitions), "offset")
        named = names_text(partitions, "partition")
        confirm(f"Delete {offsets} of group {group} in {named}?", "Not deleted.", yes=yes)
        admin.delete_offsets(group, partitions)
    deleted = [{"topic": at.topic, "partition": at.partition} for at in partitions]
    print_done(
        f"Deleted {offsets} of group {group}: {', '.join(map(str, partitions))}.",
        {"group": group, "deleted": deleted},
        as_json=as_json,
    )
