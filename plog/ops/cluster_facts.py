"""Describes a cluster as JSON: its brokers, topics, groups and transactions, bounded in size.

Reaches the broker of a cluster of one by its bootstrap address: a description is wanted most when
something is wrong, and that may be `advertised.listeners`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from plog.client.admin import BROKER, Admin
from plog.client.group_admin import GroupAdmin
from plog.client.group_survey import SurveyedGroup
from plog.client.metadata import Cluster, Node
from plog.client.transaction_admin import TransactionAdmin
from plog.errors import KafkaError

MAX_TOPICS = 1000
MAX_GROUPS = 200
MAX_MEMBERS = 100
MAX_ERRORS = 100
MAX_TRANSACTIONS = 1000
WAIT_MS = 5_000


def reach(bootstrap: str) -> Cluster:
    """Return a cluster at whose bootstrap address a broker answers.

    Raises:
        KafkaError: no broker answers.
    """
    found = Cluster(
        bootstrap, client_id="plog-admin", request_timeout_ms=WAIT_MS, stays_at_bootstrap=True
    )
    found.refresh([])
    return found


def cluster(reached: Cluster) -> dict[str, Any]:
    """Return the cluster's id, its brokers and its features."""
    with Admin(reached, request_timeout_ms=WAIT_MS) as admin:
        return {
            "cluster_id": admin.cluster_id(),
            "controller_id": admin.controller_id(),
            "brokers": [one._asdict() for one in admin.nodes()],
            "features": _or_error(lambda: [one._asdict() for one in admin.features()]),
        }


def broker_settings(reached: Cluster) -> dict[str, Any]:
    """Return the settings that each broker uses now, and where each comes from."""
    with Admin(reached, request_timeout_ms=WAIT_MS) as admin:
        return {
            str(node.node_id): _or_error(partial(_settings_of, admin, node))
            for node in admin.nodes()
        }


def _settings_of(admin: Admin, node: Node) -> dict[str, Any]:
    entries = admin.describe_configs(BROKER, str(node.node_id))
    return {one.name: {"value": one.value, "source": one.source} for one in entries}


def _or_error(ask: Callable[[], Any]) -> Any:
    """Return an answer, or the reason why a broker gives none."""
    try:
        return ask()
    except KafkaError as error:
        return {"error": str(error)}


def topics(reached: Cluster) -> dict[str, Any]:
    """Return the topics and the state of their partitions."""
    with Admin(reached, request_timeout_ms=WAIT_MS) as admin:
        found = admin.topics()
    return {
        "count": len(found),
        "partitions": sum(len(topic.partitions) for topic in found.values()),
        "topics": [
            {
                "name": topic.name,
                "id": str(topic.topic_id),
                "partitions": {
                    str(index): {
                        "leader": one.leader_id,
                        "epoch": one.leader_epoch,
                        "replicas": one.replicas,
                        "isr": one.isr,
                        "error": one.error_code,
                    }
                    for index, one in sorted(topic.partitions.items())
                },
            }
            for topic in list(found.values())[:MAX_TOPICS]
        ],
    }


def groups(reached: Cluster) -> dict[str, Any]:
    """Return the consumer groups, their members and their lag."""
    with GroupAdmin(reached, request_timeout_ms=WAIT_MS) as admin:
        survey = admin.survey(int(time.time() * 1000))
    return {
        "count": len(survey.groups),
        "groups": [_group(one) for one in survey.groups[:MAX_GROUPS]],
        "errors": list(map(str, survey.faults[:MAX_ERRORS])),
    }


def _group(one: SurveyedGroup) -> dict[str, Any]:
    facts = {
        **one.listed._asdict(),
        "lag": one.total._asdict(),
        "error": None if one.fault is None else str(one.fault),
    }
    if (described := one.description) is None:
        return facts
    return {
        **facts,
        **described._asdict(),
        "coordinator": described.coordinator.node_id,
        "members": [
            {
                **member._asdict(),
                "assigned": list(map(str, member.assigned or ())),
                "target": list(map(str, member.target or ())),
            }
            for member in described.members[:MAX_MEMBERS]
        ],
        "member_count": len(described.members),
    }


def transactions(reached: Cluster) -> dict[str, Any]:
    """Return the transactional ids and their states."""
    with TransactionAdmin(reached, request_timeout_ms=WAIT_MS) as admin:
        listed = admin.transactions()
    return {
        "count": len(listed),
        "transactions": [one._asdict() for one in listed[:MAX_TRANSACTIONS]],
    }
