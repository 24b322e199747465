"""`plog features`: list the cluster's features, and change their finalized levels."""

from __future__ import annotations

import click

from plog.cli.output import (
    bootstrap_option,
    confirm,
    json_option,
    print_done,
    print_rows,
    yes_option,
)
from plog.client.admin import Admin

COLUMNS = ["Feature", "Lowest", "Highest", "In force"]


@click.group()
def command() -> None:
    """List the cluster's features, and change their levels.

    A feature must be supported by every broker before the cluster may use it. The level in force
    (Kafka's finalized level) selects what the cluster uses; at 0 the feature is off. A new cluster
    starts at the highest levels. A cluster that Kafka created keeps its levels.

    \b
      transaction.version
        0, 1  a producer keeps its epoch from one transaction to the next
        2     each transaction has its own epoch (KIP-890), with clients that support it
      group.version
        0     consumer groups (KIP-848) are off; their members' heartbeats are refused
        1     groups may use the consumer protocol
    """


@command.command("list")
@bootstrap_option
@json_option
def list_features(bootstrap: str, as_json: bool) -> None:
    """List the features, the levels that brokers support, and those in force."""
    with Admin(bootstrap) as admin:
        rows = [tuple(one) for one in admin.features()]
    print_rows(rows, COLUMNS, as_json=as_json)


@command.command("set")
@click.argument("feature")
@click.argument("level", type=click.IntRange(0, 32767))
@bootstrap_option
@json_option
@click.option("--lower", is_flag=True, help="Allow LEVEL to be below the level in force.")
@click.option("--dry-run", is_flag=True, help="Check the change and do not make it.")
@yes_option
def set_feature(
    feature: str, level: int, bootstrap: str, as_json: bool, lower: bool, dry_run: bool, yes: bool
) -> None:
    """Set FEATURE to LEVEL in the whole cluster, at once; 0 turns it off.

    Asks for confirmation before it lowers a level, because clients may use the higher levels.

    \b
      plog features set transaction.version 1 --lower
    """
    if lower and not dry_run:
        question = (
            f"Lower {feature} to level {level} in the whole cluster? Clients can then no longer"
            " use the levels above it."
        )
        confirm(question, "Not lowered.", yes=yes)
    with Admin(bootstrap) as admin:
        admin.set_feature(feature, level, lower=lower, validate_only=dry_run)
    text = f"{feature} {'could be' if dry_run else 'is'} at level {level}"
    print_done(text, {"feature": feature, "level": level, "dry_run": dry_run}, as_json=as_json)
