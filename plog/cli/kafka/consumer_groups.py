"""kafka-consumer-groups: list, describe, reset and delete consumer groups.

Owns the options; `group_tables` prints descriptions, `group_resets` computes offsets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from plog.cli.kafka import group_resets, group_tables
from plog.cli.kafka.config import Clients
from plog.cli.kafka.options import LONG_BITS, Given, OptionFault, Options, UsageFault
from plog.cli.kafka.texts import execution_text, java_text
from plog.client.group_descriptions import CONSUMER_PROTOCOL, DEAD, GroupDescription
from plog.errors import ErrorCode, GroupIdNotFound, KafkaError, PlogError
from plog.types import TopicPartition

OPTIONS = Options(
    "List, describe, reset and delete consumer groups.",
    """
    --bootstrap-server HOST:PORT  Address of a broker. Required.
    --command-config FILE         Properties of the client.
    --list                        List groups.
    --describe                    Describe groups: their offsets and lag, members or state.
    --delete                      Delete groups without members.
    --delete-offsets              Delete the offsets of a group in topics.
    --reset-offsets               Plan new offsets for groups, and set them with --execute.
    --group GROUP                 The group. Repeatable.
    --all-groups                  Every group.
    --topic TOPIC                 TOPIC or TOPIC:0,1,2. Repeatable.
    --all-topics                  Every topic with offsets of the group.
    --offsets                     Describe offsets and lag, the default.
    --members                     Describe members.
    --state [STATES]              Describe the state; list only groups in these states.
    --type [TYPES]                List types; list only groups of these types.
    --verbose                     Describe the assignments of members, too.
    --timeout MS                  Accepted; the client's properties set the timeout.
    --dry-run                     Only print the new offsets.
    --execute                     Set the new offsets.
    --export                      Print the new offsets as CSV.
    --from-file FILE              Read the new offsets from CSV.
    --to-earliest                 Go to the start of each partition.
    --to-latest                   Go to the end of each partition.
    --to-current                  Stay at the current offsets.
    --to-offset OFFSET            Go to an offset.
    --shift-by NUMBER             Move offsets forward, or back by a negative number.
    --to-datetime TIME            Go to a time such as 2026-01-31T12:00:00.000.
    --by-duration DURATION        Go back by a duration such as PT1H.
    """,
)
ACTIONS = ("list", "describe", "delete", "reset-offsets", "delete-offsets")
VIEWS = ("members", "offsets", "state")
STATES = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
)
TYPES = ("Consumer", "Classic")
DRY_RUN_WARNING = (
    "WARN: No action will be performed as the --execute option is missing."
    "In a future major release, the default behavior of this command will be to prompt the user"
    " before executing the reset rather than doing a dry run. You should add the --dry-run option"
    " explicitly if you are scripting this command and want to keep the current default behavior"
    " without prompting."
)
NONE = "-"
MIN_WIDTH = 15
WIDE, WIDER = 20, 25


def run(given: Given) -> int:
    """Run the script. Failed commands have status 0, too, as in Kafka; only usage has 1."""
    _check(given)
    if sum(map(given.has, ACTIONS)) != 1:
        actions = ", ".join(f"--{name}" for name in ACTIONS)
        raise UsageFault(f"Command must include exactly one action: {actions}")
    (action,) = (name for name in ACTIONS if given.has(name))
    try:
        given.integer("timeout", bits=LONG_BITS)
        with Clients(given) as clients:
            ACTION[action](given, clients)
    except (OptionFault, PlogError, ValueError) as fault:
        _error(f"Executing consumer group command failed due to {execution_text(fault)}")
    return 0


def _check(given: Given) -> None:
    """Raise UsageFault if the options do not fit together."""
    given.require("bootstrap-server")
    has_group = given.has("group") or given.has("all-groups")
    if given.has("describe"):
        if not has_group:
            raise UsageFault(
                "Option [describe] takes one of these options:"
                " [reset-offsets], [describe], [delete], [list]"
            )
        if sum(map(given.has, VIEWS)) > 1:
            raise UsageFault(
                "Option [describe] takes at most one of these options:"
                " [members], [offsets], [state]"
            )
        if given.values("state"):
            raise UsageFault("Option [describe] does not take a value for [state]")
    if given.has("delete"):
        if not has_group:
            raise UsageFault("Option [delete] takes one of these options: [all-groups], [group]")
        if given.has("topic"):
            raise UsageFault(
                "The consumer does not support topic-specific offset deletion from a consumer"
                " group."
            )
    if given.has("delete-offsets") and not (given.has("group") and given.has("topic")):
        raise UsageFault(
            "Option [delete-offsets] takes the following options: [all-groups], [group]"
        )
    if given.has("reset-offsets"):
        _check_reset(given, has_group=has_group)
    given.refuse("group", "all-groups", "list")
    given.refuse("all-groups", "list")
    given.refuse("topic", "list", "describe", "delete")


def _check_reset(given: Given, *, has_group: bool) -> None:
    if given.has("dry-run") and given.has("execute"):
        raise UsageFault("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if not given.has("dry-run") and not given.has("execute"):
        sys.stderr.write(f"{DRY_RUN_WARNING}\n")
    if not has_group:
        raise UsageFault("Option [reset-offsets] takes one of these options: [all-groups], [group]")
    for one in group_resets.SCENARIOS:
        given.refuse(one, *(other for other in group_resets.SCENARIOS if other != one))


def _error(text: str) -> None:
    print(f"\nError: {text}")


def _groups(given: Given, clients: Clients) -> list[str]:
    if given.has("all-groups"):
        return [group.group_id for group in clients.groups.groups()]
    return list(dict.fromkeys(given.values("group")))


# -- listing -----------------------------------------------------------------------------------


def _list(given: Given, clients: Clients) -> None:
    states = _filter(given, "state", STATES)
    types = _filter(given, "type", TYPES, plural="types")
    groups = [
        group
        for group in clients.groups.groups(states or ())
        if group.protocol_type in ("", CONSUMER_PROTOCOL)
        and (not types or group.group_type.lower() in {one.lower() for one in types})
    ]
    if states is None and types is None:
        for group in groups:
            print(group.group_id)
        return
    heads = ["GROUP"] + ["TYPE"] * (types is not None) + ["STATE"] * (states is not None)
    rows = [
        [group.group_id]
        + [group.group_type.capitalize()] * (types is not None)
        + [group.state] * (states is not None)
        for group in groups
    ]
    width = max([WIDER, *(len(row[0]) for row in rows)])
    for row in (heads, *rows):
        print(" ".join((row[0].ljust(width), *(cell.ljust(WIDE) for cell in row[1:]))))


def _filter(
    given: Given, option: str, known: Sequence[str], *, plural: str = "state"
) -> list[str] | None:
    """Return the states or types that --list selects: [] for all, None without the option."""
    if not given.has(option):
        return None
    text = given.value(option)
    if text is None:
        return []
    by_name = {name.lower(): name for name in known}
    wanted = [by_name.get(word.strip().lower()) for word in text.split(",")]
    found = [name for name in wanted if name is not None]
    if len(found) < len(wanted):
        raise UsageFault(
            f"Invalid {plural} list '{text}'. Valid {plural if plural == 'types' else 'states'}"
            f" are: {', '.join(known)}"
        )
    return found


# -- description -------------------------------------------------------------------------------


def _describe(given: Given, clients: Clients) -> None:
    described: list[tuple[str, GroupDescription | None]] = []
    for group in _groups(given, clients):
        try:
            described.append((group, clients.groups.describe(group)))
        except GroupIdNotFound:
            described.append((group, None))
    verbose = given.has("verbose")
    for group, found in described:
        if found is None:
            _error(f"Consumer group '{group}' does not exist.")
        else:
            _announce(found)
        if given.has("members"):
            group_tables.print_members(found, verbose=verbose)
        elif found is not None and given.has("state"):
            group_tables.print_state(found)
        elif found is not None:
            group_tables.print_offsets(found, clients)


def _announce(group: GroupDescription) -> None:
    """Write to stderr that a group has no members, or that it rebalances."""
    if group.state == "Empty":
        sys.stderr.write(f"\nConsumer group '{group.group_id}' has no active members.\n")
    elif group.state in ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"):
        sys.stderr.write(f"\nWarning: Consumer group '{group.group_id}' is rebalancing.\n")


# -- changes -----------------------------------------------------------------------------------


def _reset(given: Given, clients: Clients) -> None:
    planned: dict[str, dict[TopicPartition, int]] = {}
    for group in _groups(given, clients):
        state = _state(clients, group)
        if state not in ("Empty", DEAD):
            _error(
                f"Assignments can only be reset if the group '{group}' is inactive,"
                f" but the current state is {state}."
            )
            continue
        offsets = group_resets.plan(given, clients, group)
        if given.has("execute"):
            clients.groups.commit(group, offsets)
        planned[group] = offsets
    if given.has("export"):
        print(group_resets.to_csv(planned))
        return
    print(f"\n{'GROUP':<30} {'TOPIC':<30} {'PARTITION':<10} {'NEW-OFFSET':<15}")
    for group, offsets in planned.items():
        for at, offset in sorted(offsets.items()):
            print(f"{group:<30} {at.topic:<30} {at.partition:<10} {offset:<15}")


def _state(clients: Clients, group: str) -> str:
    try:
        return clients.groups.describe(group).state
    except GroupIdNotFound:
        return DEAD


def _delete(given: Given, clients: Clients) -> None:
    faults: dict[str, KafkaError] = {}
    deleted = []
    for group in _groups(given, clients):
        try:
            clients.groups.delete(group)
            deleted.append(group)
        except KafkaError as fault:
            faults[group] = fault
    names = ", ".join(f"'{group}'" for group in deleted)
    if not faults:
        print(f"Deletion of requested consumer groups ({names or chr(39) * 2}) was successful.")
        return
    _error("Deletion of some consumer groups failed:")
    for group, why in faults.items():
        print(f"* Group '{group}' could not be deleted due to: {execution_text(why)}")
    if deleted:
        print(f"\nThese consumer groups were deleted successfully: {names}")


def _delete_offsets(given: Given, clients: Clients) -> None:
    group = given.text("group")
    topics = given.values("topic")
    is_there = _state(clients, group) != DEAD
    rows: list[tuple[str, str, str]] = []
    has_faults = False
    for entry in topics:
        topic, numbers = group_resets.topic_entry(entry)
        try:
            wanted = numbers or [at.partition for at in clients.groups.partitions_of(topic)]
        except KafkaError as fault:
            rows.append((topic, "Not Provided", f"Error: :{java_text(fault)}"))
            continue
        status = "Successful"
        try:
            clients.groups.delete_offsets(group, [TopicPartition(topic, one) for one in wanted])
        except KafkaError as fault:
            # A group disappears with its last offset.
            if not is_there or fault.code != ErrorCode.GROUP_ID_NOT_FOUND:
                status = f"Error: :{java_text(fault)}"
                has_faults = True
        rows += [(topic, str(number), status) for number in wanted]
    if not is_there:
        _error(f"'{group}' does not exist.")
    elif has_faults:
        _error("Encounter some partition level error, see the follow-up details:")
    else:
        print(f"Request succeed for deleting offsets with topic {', '.join(topics)} group {group}")
    print(f"\n{'TOPIC':<30} {'PARTITION':<15} {'STATUS':<15}")
    for row in rows:
        print("{:<30} {:<15} {:<15}".format(*row))


ACTION: dict[str, Callable[[Given, Clients], None]] = {
    "list": _list,
    "describe": _describe,
    "delete": _delete,
    "reset-offsets": _reset,
    "delete-offsets": _delete_offsets,
}
