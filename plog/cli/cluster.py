"""`plog cluster`: brokers, controller, versions, features and partitions in trouble."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from plog.cli.output import (
    MAX_LISTED,
    bootstrap_option,
    distinct,
    json_option,
    names_text,
    print_columns,
    print_json,
    print_rows,
    raise_all,
    say,
    some_text,
)

if TYPE_CHECKING:
    from plog.client.cluster_admin import BrokerOverview, ClusterOverview
    from plog.errors import KafkaError
    from plog.types import TopicPartition

BROKER_COLUMNS = [
    "Broker",
    "Address",
    "Rack",
    "Software",
    "APIs",
    "Partitions",
    "Listeners",
    "Advertised",
]
LOOK_S = 0.5
"""How often a cluster is looked at until a broker may be restarted."""
FEATURE_COLUMNS = ["Feature", "Lowest", "Highest", "In force"]


@click.group(invoke_without_command=True)
@bootstrap_option
@json_option
@click.option("--apis", "show_apis", is_flag=True, help="List the API versions of each broker.")
@click.pass_context
def command(context: click.Context, bootstrap: str, as_json: bool, show_apis: bool) -> None:
    """Show the cluster: brokers, controller, coordination, features and partitions in trouble.

    Address is the one that the broker names to this client. Listeners and Advertised are its
    settings listeners and advertised.listeners. APIs is the number of APIs that it supports; --apis
    lists their versions. Partitions is the number of partitions that it has a replica of. A feature
    is in force at a level between the lowest and the highest that the brokers support (see `plog
    features`).

    A partition without a leader is offline: clients cannot write or read it. Nor can they if the
    leader is unreachable, as one that was just killed: the controller does not know it yet. An
    under-replicated partition has replicas that are not in sync. One with fewer in sync than
    min.insync.replicas refuses producers with acks=all. A line names each broker that has
    replicas but is not in the cluster at present, and brokers with few partitions, as one that has
    just joined. Another line names the brokers that get no answer from ZooKeeper. Exit status 1
    means that a broker did not answer.
    """
    if context.invoked_subcommand is not None:
        return
    from plog.client.cluster_admin import ClusterAdmin

    with ClusterAdmin(bootstrap) as admin:
        cluster = admin.overview()
    under_min = _under_min_isr(bootstrap, cluster)
    if as_json:
        print_json(_json(cluster, under_min))
    else:
        _print(cluster, under_min, show_apis=show_apis)
    faults = [_fault(broker) for broker in cluster.brokers] + [cluster.features_fault]
    raise_all(distinct(fault for fault in faults if fault is not None))


@command.command("restart-check")
@click.argument("broker", type=int, required=False)
@bootstrap_option
@json_option
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SECONDS",
    help="Wait at most so long until it may.",
)
def restart_check(broker: int | None, bootstrap: str, as_json: bool, wait_s: float) -> None:
    """Tell whether BROKER may be restarted now; without a number, whether any may.

    It may while every broker is there, all replicas are in sync, and each of its partitions keeps
    min.insync.replicas without it. Exit status 1 means that it may not, and each reason is printed.
    Partitions that have no other replica are offline during the restart in any case.

    \b
      plog cluster restart-check 2 --wait 600 && ssh host2 systemctl restart plog
    """
    from plog.client.restart_check import alone_on
    from plog.types import counted

    cluster, found = _awaited_obstacles(bootstrap, broker, wait_s)
    alone = [] if broker is None else alone_on(cluster, broker)
    if as_json:
        print_json({"may_restart": not found, "reasons": found, "alone": [*map(str, alone)]})
    else:
        for one in found[:MAX_LISTED]:
            say(one)
        if (more := len(found) - MAX_LISTED) > 0:
            say(f"{counted(more, 'further reason')}: --json lists all")
        if alone:
            say(f"Offline during the restart, as there is no other replica: {some_text(alone)}")
        if not found:
            say("Any broker may be restarted." if broker is None else "It may be restarted.")
    if found:
        sys.exit(1)


def _awaited_obstacles(
    bootstrap: str, broker: int | None, wait_s: float
) -> tuple[ClusterOverview, list[str]]:
    """Look until there are none; also while a broker that has just started is not known yet."""
    from plog.errors import KafkaError

    ends_at = time.monotonic() + wait_s
    while True:
        try:
            cluster, found = _restart_obstacles(bootstrap, broker)
        except KafkaError:
            if time.monotonic() >= ends_at:
                raise
        else:
            if not found or time.monotonic() >= ends_at:
                return cluster, found
        time.sleep(LOOK_S)


def _restart_obstacles(bootstrap: str, broker: int | None) -> tuple[ClusterOverview, list[str]]:
    from plog.client.admin import Admin
    from plog.client.cluster_admin import ClusterAdmin
    from plog.client.min_in_sync import least_in_sync
    from plog.client.restart_check import obstacles

    with ClusterAdmin(bootstrap) as admin:
        cluster = admin.overview()
    with Admin(bootstrap) as admin:
        least = least_in_sync(admin, cluster.topics)
    return cluster, obstacles(cluster, least, broker)


def _fault(broker: BrokerOverview) -> KafkaError | None:
    """Return why a broker is not described, and what to do about one of this cluster."""
    from plog.client.connection import BrokerUnreachable
    from plog.errors import NetworkException

    if not isinstance(broker.fault, BrokerUnreachable):
        return broker.fault
    text = f"broker {broker.node.node_id} does not answer: {broker.fault} (start it again)"
    return NetworkException(text)


def _under_min_isr(bootstrap: str, cluster: ClusterOverview) -> list[TopicPartition] | None:
    """Return the partitions with too few replicas in sync; None: no broker returns the settings.

    Only topics that lack replicas in sync are asked about.
    """
    from plog.client.admin import Admin
    from plog.client.min_in_sync import least_in_sync, under_min_isr
    from plog.errors import KafkaError

    names = {at.topic for at in cluster.under_replicated}
    topics = [topic for topic in cluster.topics if topic.name in names]
    if not topics:
        return []
    try:
        with Admin(bootstrap) as admin:
            return under_min_isr(topics, least_in_sync(admin, topics))
    except KafkaError:
        return None


def _json(cluster: ClusterOverview, under_min: list[TopicPartition] | None) -> dict[str, Any]:
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id if cluster.controller_id >= 0 else None,
        "coordination": cluster.coordination,
        "without_zookeeper": cluster.without_zookeeper,
        "brokers": [
            {
                **_broker_json(broker),
                "partitions": cluster.replicas_on(broker.node.node_id),
            }
            for broker in cluster.brokers
        ],
        "away": [
            {"broker": broker_id, "partitions": count} for broker_id, count in cluster.away.items()
        ],
        "features": [
            {
                "feature": one.name,
                "lowest": one.lowest,
                "highest": one.highest,
                "in_force": one.level,
            }
            for one in cluster.features
        ],
        "topics": sum(not topic.is_internal for topic in cluster.topics),
        "internal_topics": sum(topic.is_internal for topic in cluster.topics),
        "partitions": sum(len(topic.partitions) for topic in cluster.topics),
        "offline": [str(at) for at in cluster.offline],
        "leader_unreachable": [str(at) for at in cluster.leader_unreachable],
        "under_replicated": [str(at) for at in cluster.under_replicated],
        "under_min_isr": None if under_min is None else [str(at) for at in under_min],
    }


def _broker_json(broker: BrokerOverview) -> dict[str, Any]:
    from plog.client.cluster_admin import ADVERTISED, LISTENERS
    from plog.protocol.api_keys import api_name

    node = broker.node
    return {
        "broker": node.node_id,
        "host": node.host,
        "port": node.port,
        "rack": node.rack,
        "software": broker.software,
        "listeners": _addresses(broker.configs.get(LISTENERS)),
        "advertised_listeners": _addresses(broker.configs.get(ADVERTISED)),
        "apis": {api_name(key): list(versions) for key, versions in sorted(broker.apis.items())},
    }


def _addresses(setting: str | None) -> list[str]:
    return [one.strip() for one in (setting or "").split(",") if one.strip()]


def _print(
    cluster: ClusterOverview, under_min: list[TopicPartition] | None, *, show_apis: bool
) -> None:
    from plog.client.cluster_admin import ADVERTISED, LISTENERS
    from plog.client.connection import address_of
    from plog.types import counted

    controller = f"broker {cluster.controller_id}" if cluster.controller_id >= 0 else "none"
    say(
        f"Cluster {cluster.cluster_id}: controller {controller}, coordination"
        f" {cluster.coordination or 'unknown'}"
    )
    if cluster.without_zookeeper:
        say(
            f"ZooKeeper does not answer {names_text(cluster.without_zookeeper, 'broker')}:"
            " topics and settings cannot be changed"
        )
    rows = [
        [
            broker.node.node_id,
            address_of(broker.node.host, broker.node.port),
            broker.node.rack,
            broker.software,
            len(broker.apis) or None,
            cluster.replicas_on(broker.node.node_id),
            broker.configs.get(LISTENERS),
            broker.configs.get(ADVERTISED),
        ]
        for broker in cluster.brokers
    ]
    print_columns(rows, BROKER_COLUMNS, optional=BROKER_COLUMNS)
    figures = _json(cluster, under_min)
    say(
        f"{counted(figures['topics'], 'topic')},"
        f" {counted(figures['internal_topics'], 'internal topic')},"
        f" {counted(figures['partitions'], 'partition')}:"
        f" {len(cluster.offline)} offline, {len(cluster.under_replicated)} under-replicated"
    )
    for broker_id, count in cluster.away.items():
        say(f"Broker {broker_id} is away: {counted(count, 'partition')}")
    for name, partitions in (
        ("Offline", cluster.offline),
        ("Leader unreachable", cluster.leader_unreachable),
        ("Under-replicated", cluster.under_replicated),
        ("Below min.insync.replicas", under_min),
    ):
        if partitions:
            say(f"{name}: {some_text(partitions)}")
    if cluster.sparse_brokers:
        say(_few_text(cluster))
    if cluster.features:
        print_rows([tuple(one) for one in cluster.features], FEATURE_COLUMNS, as_json=False)
    if show_apis:
        _print_apis(cluster)


def _few_text(cluster: ClusterOverview) -> str:
    from plog.types import counted

    few = [
        f"broker {one} has {counted(count, 'partition') if count else 'no partitions'}"
        for one, count in cluster.sparse_brokers.items()
    ]
    return f"{', '.join(few).capitalize()}: `plog reassign plan --balance` shows its share"


def _print_apis(cluster: ClusterOverview) -> None:
    """Print a row for each API and a column for each broker."""
    from plog.protocol.api_keys import api_name

    keys = sorted({key for broker in cluster.brokers for key in broker.apis})
    columns = [f"Broker {broker.node.node_id}" for broker in cluster.brokers]
    rows = [
        [
            api_name(key),
            *(
                "{}-{}".format(*broker.apis[key]) if key in broker.apis else None
                for broker in cluster.brokers
            ),
        ]
        for key in keys
    ]
    print_rows(rows, ["API", *columns], as_json=False)
