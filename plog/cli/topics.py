"""`plog topics`: list, describe, create, change and delete topics."""

from __future__ import annotations

import click

from plog.cli.output import (
    bootstrap_option,
    confirm,
    each,
    json_option,
    names_text,
    print_done,
    print_objects,
    print_rows,
    raise_all,
    say,
    yes_option,
)
from plog.cli.topic_views import describe, offsets


def _configs(entries: tuple[str, ...]) -> dict[str, str]:
    parsed: dict[str, str] = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{entry!r} is not KEY=VALUE", param_hint="--config")
        if key.strip() in parsed:
            raise click.BadParameter(f"{key.strip()} appears twice", param_hint="--config")
        parsed[key.strip()] = value.strip()
    return parsed


@click.group()
def command() -> None:
    """List, describe, create, change and delete topics.

    A topic is a named log of records, stored in one or more partitions. Records keep their order
    within a partition.
    """


@command.command("list")
@bootstrap_option
@json_option
@click.option("--internal", is_flag=True, help="Also list the broker's own topics.")
def list_topics(bootstrap: str, as_json: bool, internal: bool) -> None:
    """List topics with their numbers of partitions and replicas."""
    from plog.client.admin import Admin

    with Admin(bootstrap) as admin:
        topics = [t for t in admin.topics().values() if internal or not t.is_internal]
    print_rows(
        [
            (
                topic.name,
                len(topic.partitions),
                max((len(p.replicas) for p in topic.partitions.values()), default=0),
            )
            for topic in topics
        ],
        ["Topic", "Partitions", "Replicas"],
        as_json=as_json,
    )


command.add_command(describe)
command.add_command(offsets)


@command.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@bootstrap_option
@json_option
@click.option(
    "--partitions", type=click.IntRange(1), help="Number of partitions [default: the broker's]."
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 32767),
    help="Replicas of each partition [default: the broker's].",
)
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="A topic setting, such as retention.ms=86400000. Repeatable.",
)
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic already exists.")
@click.option(
    "--dry-run", is_flag=True, help="Check whether topics can be created, and do not create them."
)
def create(
    topics: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
) -> None:
    """Create topics.

    Several topics get the same partitions and settings. A topic that cannot be created does not
    stop the others.
    """
    from plog.client.admin import BROKER_DEFAULT, Admin
    from plog.errors import TopicAlreadyExists

    settings = _configs(configs)
    with Admin(bootstrap) as admin:

        def create_one(topic: str) -> tuple[bool, str]:
            try:
                admin.create_topic(
                    topic,
                    partitions=partitions or BROKER_DEFAULT,
                    replication_factor=replication_factor or BROKER_DEFAULT,
                    configs=settings,
                    validate_only=dry_run,
                )
            except TopicAlreadyExists:
                if not if_not_exists:
                    raise
                return False, f"Topic {topic} already exists."
            if dry_run:
                return False, f"Not created yet: topic {topic} can be created."
            return True, f"Created topic {topic}."

        outcomes, faults = each(topics, create_one)
    if as_json:
        objects = [{"topic": topic, "created": made} for topic, (made, _) in outcomes.items()]
        print_objects(objects, several=len(topics) > 1)
    else:
        for _, line in outcomes.values():
            say(line)
    raise_all(faults)


@command.command("add-partitions")
@click.argument("topic")
@click.argument("count", type=click.IntRange(1))
@bootstrap_option
@json_option
def add_partitions(topic: str, count: int, bootstrap: str, as_json: bool) -> None:
    """Raise the number of partitions of TOPIC to COUNT.

    The number cannot be lowered again. Keys map to other partitions afterwards, so new records may
    not be in the partition of older records with the same key.
    """
    from plog.client.admin import Admin
    from plog.types import counted

    with Admin(bootstrap) as admin:
        admin.create_partitions(topic, count)
    text = f"Topic {topic} now has {counted(count, 'partition')}."
    print_done(text, {"topic": topic, "partitions": count}, as_json=as_json)


@command.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@bootstrap_option
@json_option
@yes_option
def delete(topics: tuple[str, ...], bootstrap: str, as_json: bool, yes: bool) -> None:
    """Delete topics and all their records.

    A topic that cannot be deleted does not stop the others.
    """
    from plog.client.admin import Admin

    its = "its" if len(topics) == 1 else "their"
    question = f"Delete {names_text(topics, 'topic')} and all {its} records?"
    confirm(question, "Not deleted.", yes=yes)
    with Admin(bootstrap) as admin:
        deleted, faults = each(topics, admin.delete_topic)
    if as_json:
        objects = [{"topic": topic, "deleted": True} for topic in deleted]
        print_objects(objects, several=len(topics) > 1)
    else:
        for topic in deleted:
            say(f"Deleted topic {topic}.")
    raise_all(faults)


@command.command("delete-records", context_settings={"ignore_unknown_options": True})
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(-1))
@bootstrap_option
@json_option
@yes_option
def delete_records(
    topic: str, partition: int, offset: int, bootstrap: str, as_json: bool, yes: bool
) -> None:
    """Delete the records of a PARTITION of TOPIC below OFFSET.

    OFFSET -1 deletes all records of the partition.
    """
    from plog.client.admin import END, Admin
    from plog.types import TopicPartition

    where = TopicPartition(topic, partition)
    which = "all records" if offset == END else f"the records below offset {offset}"
    confirm(f"Delete {which} of partition {where}?", "Not deleted.", yes=yes)
    with Admin(bootstrap) as admin:
        start = admin.delete_records({where: offset})[where]
    print_done(
        f"{where} now starts at offset {start}.",
        {"topic": topic, "partition": partition, "log_start_offset": start},
        as_json=as_json,
    )
