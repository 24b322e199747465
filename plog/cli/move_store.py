"""`plog move-store`: move a broker's own coordination store to ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import click

from plog.cli.output import confirm, json_option, print_done, yes_option
from plog.cli.properties import takes_properties, zookeeper_option
from plog.types import counted


@click.command()
@takes_properties
@zookeeper_option("Where the store goes: the future zookeeper.connect.")
@click.option("--execute", is_flag=True, help="Move the store; without it, only check.")
@yes_option
@json_option
def command(
    properties: str | None,
    overrides: tuple[str, ...],
    environment: Mapping[str, str] | None,
    zookeeper: str,
    execute: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Move the coordination store of a stopped broker to ZooKeeper, so that others can join it.

    PROPERTIES is the broker's file, without zookeeper.connect. Records stay in place. Topics,
    settings and the cluster id go to an unused path of ZooKeeper:

    \b
      plog move-store --zookeeper zk1:2181/plog /etc/plog/server.properties
      plog move-store --zookeeper zk1:2181/plog --execute /etc/plog/server.properties

    Then set zookeeper.connect in PROPERTIES and start the broker. An interrupted move can be run
    again; until then no broker starts with that zookeeper.connect. The old store stays in the log
    directories under another name (plog-store.sqlite.moved), and no broker starts on it.
    """
    from plog.ops.move_store import move, plan_move
    from plog.settings import load

    settings = load(properties, overrides, environment)
    plan = plan_move(settings, zookeeper)
    what = {"nodes": plan.nodes, "topics": plan.topics, "zookeeper": zookeeper}
    described = f"{counted(plan.nodes, 'node')} of {counted(plan.topics, 'topic')}"
    if not execute:
        state = "an interrupted move begins again" if plan.was_interrupted else "the path is unused"
        print_done(
            f"Nothing is changed yet: --execute moves {described} to {zookeeper} ({state}).",
            {**what, "moved": False},
            as_json=as_json,
        )
        return
    confirm(f"Move {described} to {zookeeper}?", "Not moved.", yes=yes)
    with _progress(plan.nodes) as advance:
        kept = [str(path) for path in move(settings, zookeeper, advance)]
    print_done(
        f"Moved {described} to {zookeeper}. Set zookeeper.connect={zookeeper} and start the"
        f" broker. The old store is kept: {', '.join(kept)}.",
        {**what, "moved": True, "kept": kept},
        as_json=as_json,
    )


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show on stderr how many nodes are copied; the caller is given what counts them."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("nodes", total=total)
        yield lambda count: shown.advance(task, count)
