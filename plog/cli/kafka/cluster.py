"""kafka-cluster: print the id of a cluster."""

from __future__ import annotations

from plog.cli.kafka.commands import CommandFault, Commands, Words
from plog.cli.kafka.config import Clients

COMMON = """
    --bootstrap-server HOST:PORT      Address of a broker. Required.
    --bootstrap-controller HOST:PORT  Refused: plog's controller is a broker.
    --config FILE                  Properties of the client.
"""
OPTIONS = Commands(
    "kafka-cluster",
    "Print the id of a cluster.",
    "",
    {
        "cluster-id": ("Print the id of the cluster.", COMMON),
        "unregister": (
            "Remove a broker from the cluster. Not supported by plog.",
            COMMON + "--id! ID:Integer  The broker. Required.",
        ),
    },
)


def run(given: Words) -> int:
    """Run the script; return its exit status."""
    if given.has("bootstrap-controller"):
        raise ValueError("--bootstrap-controller is not supported: use --bootstrap-server")
    if not given.has("bootstrap-server"):
        raise CommandFault(
            "one of the arguments --bootstrap-server --bootstrap-controller is required"
        )
    with Clients(given, config="config") as clients:
        if given.command == "unregister":
            print("The target cluster does not support the broker unregistration API.")
            return 0
        cluster_id = clients.admin.cluster_id()
    if cluster_id is None:
        print("No cluster ID found. The Kafka version is probably too old.")
    else:
        print(f"Cluster ID: {cluster_id}")
    return 0
