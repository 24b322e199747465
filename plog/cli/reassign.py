"""`plog reassign`: plan, begin, watch and give up moves of partitions to other brokers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from plog.cli.output import bootstrap_option, json_option, print_json, print_rows, say

if TYPE_CHECKING:
    from plog.client.reassignments import BrokerDisks, ReassignmentAdmin
    from plog.ops.reassign_plan import Plan, Planner, Room
    from plog.types import TopicPartition

MOVE_COLUMNS = ["Partition", "Replicas", "New replicas", "Bytes to copy"]
BROKER_COLUMNS = ["Broker", "Bytes now", "Bytes then", "Bytes to copy", "Free bytes"]
STATUS_COLUMNS = ["Partition", "Replicas", "Adding", "Removing", "Copied bytes", "Of"]
LOOK_S = 1.0
PATIENCE_MS = 3_000
"""How long a broker may take to say what it has copied."""
VERSION = 1


@click.group()
def command() -> None:
    """Move partitions to other brokers, without a pause for clients.

    A new replica copies from the leader and joins the in-sync set. Once all new replicas are in
    sync, the old ones go. A plan is a file as Kafka's kafka-reassign-partitions reads and writes
    it. A broker that has joined gets its share by --balance; one that is to leave is drained:

    \b
      plog reassign plan --balance
      plog reassign plan --drain 3 --json > plan.json
      plog reassign apply plan.json
      plog reassign status --wait
    """


@command.command("plan")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@bootstrap_option
@json_option
@click.option("--drain", multiple=True, type=int, metavar="BROKER", help="Leave nothing there.")
@click.option("--replace", multiple=True, metavar="OLD=NEW", help="Give OLD's replicas to NEW.")
@click.option("--factor", type=click.IntRange(1), help="Give each partition so many replicas.")
@click.option("--balance", is_flag=True, help="Move replicas from full brokers to empty ones.")
def plan_moves(
    topics: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
    drain: tuple[int, ...],
    replace: tuple[str, ...],
    factor: int | None,
    balance: bool,
) -> None:
    """Show which partitions would move, of all topics or of these; nothing is changed.

    --json prints the plan for `plog reassign apply`. Replicas on a broker that has left the cluster
    move, too. Sizes are those of the replicas on disk. Racks are kept apart where that is possible.
    Exit status 1 means that a disk is too small for the plan.
    """
    from plog.client.reassignments import ReassignmentAdmin
    from plog.errors import PlogError
    from plog.ops.reassign_plan import shortages

    with ReassignmentAdmin(bootstrap) as admin:
        planner, rooms = _planner(admin, topics, drain)
    for pair in replace:
        planner.replace(*_pair(pair))
    if factor is not None:
        planner.set_factor(factor)
    planner.vacate()
    if balance:
        planner.balance()
    plan = planner.plan()
    if as_json:
        print_json(_file_of(plan))
    else:
        _print(plan, rooms)
    short = [
        f"broker {one} gets {size:,} bytes and has {free:,} free"
        for one, (size, free) in shortages(plan, rooms).items()
    ]
    if short:
        raise PlogError("; ".join(short))


def _pair(text: str) -> tuple[int, int]:
    old, _, new = text.partition("=")
    if not (old.isdecimal() and new.isdecimal()):
        raise click.BadParameter(f"{text!r} is not OLD=NEW, two broker ids", param_hint="--replace")
    return int(old), int(new)


def _planner(
    admin: ReassignmentAdmin, topics: Sequence[str], drained: Sequence[int]
) -> tuple[Planner, Mapping[int, Room]]:
    from plog.errors import PlogError, UnknownTopicOrPartition
    from plog.ops.reassign_plan import Partition, Planner, Room
    from plog.types import TopicPartition

    disks = admin.disks()
    known = admin.topics()
    for name in topics:
        if name not in known:
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
    nodes = admin.nodes()
    live = {node.node_id for node in nodes}
    for broker_id in drained:
        if broker_id not in live and not _has_replicas(known, broker_id):
            raise PlogError(
                f"broker {broker_id} is not in the cluster, and has no replica; the brokers are"
                f" {_ids(sorted(live))}"
            )
    partitions = {
        (at := TopicPartition(name, index)): Partition(tuple(part.replicas), _size(disks, at))
        for name, topic in known.items()
        for index, part in topic.partitions.items()
    }
    rooms = {
        node.node_id: Room(node.rack, disks[node.node_id].free_bytes)
        for node in nodes
        if node.node_id not in drained
    }
    chosen = [at for at in partitions if not topics or at.topic in topics]
    return Planner(partitions, rooms, chosen), rooms


def _has_replicas(topics: Mapping[str, Any], broker_id: int) -> bool:
    return any(
        broker_id in part.replicas
        for topic in topics.values()
        for part in topic.partitions.values()
    )


def _size(disks: Mapping[int, BrokerDisks], at: TopicPartition) -> int:
    """Return the size of the largest replica."""
    return max((one.sizes.get(at, 0) for one in disks.values()), default=0)


def _print(plan: Plan, rooms: Mapping[int, Room]) -> None:
    if not plan.moves:
        say("Nothing has to move.")
        return
    rows = [
        [str(one.partition), _ids(one.before), _ids(one.after), one.copied_bytes]
        for one in plan.moves
    ]
    print_rows(rows, MOVE_COLUMNS, as_json=False)
    brokers = sorted({*plan.bytes_before, *plan.bytes_after, *rooms})
    figures = [
        [
            one,
            plan.bytes_before.get(one, 0),
            plan.bytes_after.get(one, 0),
            plan.copied_bytes.get(one, 0),
            rooms[one].free_bytes if one in rooms else None,
        ]
        for one in brokers
    ]
    print_rows(figures, BROKER_COLUMNS, as_json=False)
    say("Nothing was changed. `plog reassign apply` begins the moves that --json prints.")


def _file_of(plan: Plan) -> dict[str, Any]:
    return {
        "version": VERSION,
        "partitions": [
            {
                "topic": one.partition.topic,
                "partition": one.partition.partition,
                "replicas": list(one.after),
            }
            for one in plan.moves
        ],
    }


def _ids(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))


@command.command("apply")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@bootstrap_option
@json_option
@click.option("--dry-run", is_flag=True, help="Check the file and do not begin.")
def apply_plan(file: IO[str], bootstrap: str, as_json: bool, dry_run: bool) -> None:
    """Begin the moves of a plan in FILE, - for standard input.

    The command returns once the controller has begun: `plog reassign status` shows the progress. A
    move of a partition that moves already takes its place.

    \b
      plog reassign plan --drain 3 --json | plog reassign apply -
    """
    from plog.client.reassignments import ReassignmentAdmin
    from plog.types import counted

    targets = _targets(file)
    with ReassignmentAdmin(bootstrap) as admin:
        known = admin.topics()
        for at, replicas in targets.items():
            _check(at, replicas, known, {node.node_id for node in admin.nodes()})
        if not dry_run:
            admin.reassign(targets)
    if as_json:
        print_json({"partitions": [str(at) for at in sorted(targets)], "dry_run": dry_run})
        return
    say(f"{counted(len(targets), 'partition')} {'could move' if dry_run else 'begin to move'}.")


def _targets(file: IO[str]) -> dict[TopicPartition, list[int]]:
    """Read Kafka's form of a plan. Raises PlogError with the reason."""
    from plog.errors import PlogError
    from plog.types import TopicPartition

    try:
        plan = json.load(file)
        return {
            TopicPartition(str(one["topic"]), int(one["partition"])): [
                int(broker) for broker in one["replicas"]
            ]
            for one in plan["partitions"]
        }
    except (ValueError, KeyError, TypeError) as fault:
        raise PlogError(
            f"{file.name}: not a plan as `plog reassign plan --json` prints one ({fault!r}): it"
            " needs partitions, each with topic, partition and replicas"
        ) from fault


def _check(
    at: TopicPartition, replicas: Sequence[int], known: Mapping[str, Any], brokers: set[int]
) -> None:
    from plog.errors import InvalidReplicaAssignment, UnknownTopicOrPartition

    if at.topic not in known or at.partition not in known[at.topic].partitions:
        raise UnknownTopicOrPartition(f"partition {at} does not exist")
    if not replicas or len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment(f"{at}: {replicas} is empty or names a broker twice")
    if unknown := sorted(set(replicas) - brokers):
        raise InvalidReplicaAssignment(f"{at}: brokers {_ids(unknown)} are not in the cluster")


@command.command("status")
@bootstrap_option
@json_option
@click.option("--wait", is_flag=True, help="Wait until no partition moves.")
def show_status(bootstrap: str, as_json: bool, wait: bool) -> None:
    """Show the partitions that move, and how much their new replicas have copied."""
    from plog.client.reassignments import ReassignmentAdmin

    with ReassignmentAdmin(bootstrap) as admin:
        rows = _status(admin, bootstrap)
        while wait and rows:
            if sys.stderr.isatty():
                left = sum(row[5] - row[4] for row in rows)
                say(f"{len(rows)} partitions move, {left:,} bytes are left", err=True)
            time.sleep(LOOK_S)
            rows = _status(admin, bootstrap)
    if as_json or rows:
        print_rows(rows, STATUS_COLUMNS, as_json=as_json)
    else:
        say("No partition moves.")


def _status(admin: ReassignmentAdmin, bootstrap: str) -> list[list[Any]]:
    from plog.client.reassignments import ReassignmentAdmin

    moves = admin.moves()
    if not moves:
        return []
    # A broker that hangs is why a move does not end: it must not hide the others.
    with ReassignmentAdmin(bootstrap, request_timeout_ms=PATIENCE_MS) as hurried:
        disks = hurried.disks(all_must_answer=False)
    rows: list[list[Any]] = []
    for at, move in sorted(moves.items()):
        sizes = [disks[one].sizes.get(at, 0) if one in disks else 0 for one in move.adding]
        whole = _size(disks, at) * len(move.adding)
        ids = [_ids(one) for one in (move.replicas, move.adding, move.removing)]
        rows.append([str(at), *ids, min(sum(sizes), whole), whole])
    return rows


@command.command("cancel")
@click.argument("partitions", nargs=-1, metavar="[TOPIC-PARTITION]...")
@bootstrap_option
@json_option
@click.option("--all", "every", is_flag=True, help="All that move.")
def cancel_moves(partitions: tuple[str, ...], bootstrap: str, as_json: bool, every: bool) -> None:
    """Give up the moves of partitions: their new replicas go, the old ones stay.

    \b
      plog reassign cancel flights-0 flights-1
    """
    from plog.client.reassignments import ReassignmentAdmin
    from plog.types import counted

    if bool(partitions) == every:
        raise click.UsageError("name partitions, or all of them with --all")
    with ReassignmentAdmin(bootstrap) as admin:
        named = list(admin.moves()) if every else [_partition(one) for one in partitions]
        if named:
            admin.reassign(dict.fromkeys(named))
    if as_json:
        print_json({"partitions": [str(at) for at in sorted(named)]})
        return
    say(f"{counted(len(named), 'move')} given up.")


def _partition(text: str) -> TopicPartition:
    from plog.types import TopicPartition

    topic, _, index = text.rpartition("-")
    if not topic or not index.isdecimal():
        raise click.BadParameter(f"{text!r} is not TOPIC-PARTITION", param_hint="TOPIC-PARTITION")
    return TopicPartition(topic, int(index))
