"""The broker's keys about itself and its cluster: identity, replicas, the controller, ZooKeeper."""

from __future__ import annotations

from plog.settings.keys import BOOLEAN, CLASS, INT, LONG, STRING, Settings, Update, key

ALONE = "a broker runs alone yet"
NO_POLICIES = "policies are Java classes"


class ClusterKeys(Settings):
    """The broker, its replicas and its cluster."""

    broker_id = key(
        "broker.id",
        INT,
        "The broker's number in the cluster. -1 lets it take one above `reserved.broker.max.id` "
        "at its first start and keep it: the first broker that does so is 1001, as in Kafka.",
        default=-1,
        at_least=-1,
    )
    broker_id_generation_enable = key(
        "broker.id.generation.enable",
        BOOLEAN,
        "Whether a broker may take a number by itself; without it `broker.id` must be set.",
        default=True,
    )
    reserved_broker_max_id = key(
        "reserved.broker.max.id",
        INT,
        "The largest number that `broker.id` may name; numbers above are taken by brokers "
        "themselves.",
        default=1000,
        at_least=0,
    )
    broker_rack = key(
        "broker.rack",
        STRING,
        "Where the broker stands. Replicas of a partition are spread over racks.",
    )
    default_replication_factor = key(
        "default.replication.factor",
        INT,
        "Replicas of a topic that is created without saying how many.",
        default=1,
        at_least=1,
    )
    min_insync_replicas = key(
        "min.insync.replicas",
        INT,
        "The fewest replicas that must have a record before a producer that asked for acks=all "
        "is answered; with fewer in sync it is refused. A topic with fewer replicas than that "
        "asks for all it has.",
        default=1,
        at_least=1,
        update=Update.CLUSTER_WIDE,
    )
    unclean_leader_election_enable = key(
        "unclean.leader.election.enable",
        BOOLEAN,
        "Whether a replica that lacks acknowledged records may lead when no other is left.",
        default=False,
        update=Update.CLUSTER_WIDE,
    )
    replica_high_watermark_checkpoint_interval_ms = key(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        "How often high watermarks are written.",
        default=5000,
        at_least=1,
    )
    controlled_shutdown_enable = key(
        "controlled.shutdown.enable",
        BOOLEAN,
        "Whether a broker that stops hands its leaderships over first.",
        default=True,
        no_effect=ALONE,
    )
    auto_leader_rebalance_enable = key(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "Whether leadership goes back to the preferred replicas by itself.",
        default=True,
        no_effect=ALONE,
    )
    leader_imbalance_per_broker_percentage = key(
        "leader.imbalance.per.broker.percentage",
        INT,
        "The share of a broker's partitions that others may lead before they are moved back.",
        default=10,
        no_effect=ALONE,
    )
    leader_imbalance_check_interval_seconds = key(
        "leader.imbalance.check.interval.seconds",
        LONG,
        "How often that share is looked at.",
        default=300,
        at_least=1,
        no_effect=ALONE,
    )
    create_topic_policy_class_name = key(
        "create.topic.policy.class.name",
        CLASS,
        "The class that Kafka asks before it creates a topic.",
        no_effect=NO_POLICIES,
    )
    alter_config_policy_class_name = key(
        "alter.config.policy.class.name",
        CLASS,
        "The class that Kafka asks before it changes settings.",
        no_effect=NO_POLICIES,
    )
    zookeeper_connect = key(
        "zookeeper.connect",
        STRING,
        "The ZooKeeper servers that hold the cluster together: host:port with commas between, "
        "and a path after the last.",
        refused="plog cannot join a cluster yet; unset, it keeps a store of its own in its log "
        "directories",
    )
    zookeeper_session_timeout_ms = key(
        "zookeeper.session.timeout.ms",
        INT,
        "A broker that ZooKeeper does not hear of for so long counts as gone.",
        default=18000,
        no_effect=ALONE,
    )
    zookeeper_connection_timeout_ms = key(
        "zookeeper.connection.timeout.ms",
        INT,
        "How long the broker tries to reach ZooKeeper when it starts. Unset, the session timeout.",
        no_effect=ALONE,
    )
