"""The broker's keys about itself and its cluster: identity, replicas, the controller, ZooKeeper."""

from __future__ import annotations

from plog.settings.keys import BOOLEAN, CLASS, INT, LONG, PASSWORD, STRING, Settings, Update, key
from plog.settings.zookeeper_connect import CONNECT

NO_POLICIES = "policies are Java classes"


class ClusterKeys(Settings):
    """The broker, its replicas and its cluster."""

    broker_id = key(
        "broker.id",
        INT,
        "The broker's id in the cluster. With -1 the broker generates an id above "
        "`reserved.broker.max.id` at its first start and keeps it; the first "
        "generated id is 1001, as in Kafka.",
        default=-1,
        at_least=-1,
    )
    broker_id_generation_enable = key(
        "broker.id.generation.enable",
        BOOLEAN,
        "Allow the broker to generate its id. Without it `broker.id` must be set.",
        default=True,
    )
    reserved_broker_max_id = key(
        "reserved.broker.max.id",
        INT,
        "The largest id that `broker.id` may set. Generated ids are above it.",
        default=1000,
        at_least=0,
    )
    broker_rack = key(
        "broker.rack",
        STRING,
        "The broker's rack. Replicas of a partition are spread over racks.",
    )
    default_replication_factor = key(
        "default.replication.factor",
        INT,
        "Replication factor of a topic that is created without one.",
        default=1,
        at_least=1,
    )
    min_insync_replicas = key(
        "min.insync.replicas",
        INT,
        "Minimum number of in-sync replicas that must have a record before acks=all"
        " is acknowledged. With fewer in sync the write is refused. A topic with "
        "fewer replicas than this requires all of them.",
        default=1,
        at_least=1,
        update=Update.CLUSTER_WIDE,
    )
    unclean_leader_election_enable = key(
        "unclean.leader.election.enable",
        BOOLEAN,
        "Allow a replica that lacks acknowledged records to lead when no other replica is left.",
        default=False,
        update=Update.CLUSTER_WIDE,
    )
    replica_high_watermark_checkpoint_interval_ms = key(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        "How often high watermarks are written to disk.",
        default=5000,
        at_least=1,
    )
    replica_lag_time_max_ms = key(
        "replica.lag.time.max.ms",
        LONG,
        "A follower that has lacked records of the leader for this long leaves the in-sync set.",
        default=30_000,
        at_least=1,
    )
    num_replica_fetchers = key(
        "num.replica.fetchers",
        INT,
        "Threads that copy from each leader. Each copies a share of the partitions.",
        default=1,
        at_least=1,
        update=Update.CLUSTER_WIDE,
    )
    replica_fetch_wait_max_ms = key(
        "replica.fetch.wait.max.ms",
        INT,
        "How long a leader without new records lets a follower wait for some. Must be less than"
        " `replica.lag.time.max.ms`.",
        default=500,
        at_least=0,
    )
    replica_fetch_min_bytes = key(
        "replica.fetch.min.bytes",
        INT,
        "Bytes that end such a wait.",
        default=1,
        at_least=0,
    )
    replica_fetch_max_bytes = key(
        "replica.fetch.max.bytes",
        INT,
        "Bytes of a partition in a follower's fetch. A larger first batch is sent all the same.",
        default=1024 * 1024,
        at_least=0,
    )
    replica_fetch_response_max_bytes = key(
        "replica.fetch.response.max.bytes",
        INT,
        "Bytes of a whole response to a follower's fetch, with the same exception.",
        default=10 * 1024 * 1024,
        at_least=0,
    )
    replica_fetch_backoff_ms = key(
        "replica.fetch.backoff.ms",
        INT,
        "How long a follower waits at most after an error before it fetches a partition again."
        " It waits for 20 ms at first, and twice as long each time.",
        default=1000,
        at_least=0,
    )
    replica_socket_timeout_ms = key(
        "replica.socket.timeout.ms",
        INT,
        "How long a leader may take to answer a follower's fetch.",
        default=30_000,
        at_least=1,
    )
    controlled_shutdown_enable = key(
        "controlled.shutdown.enable",
        BOOLEAN,
        "Move leadership to other brokers before this one stops.",
        default=True,
    )
    auto_leader_rebalance_enable = key(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "Move leadership back to the preferred replicas automatically.",
        default=True,
    )
    leader_imbalance_per_broker_percentage = key(
        "leader.imbalance.per.broker.percentage",
        INT,
        "Percentage of a broker's preferred partitions that other brokers may lead "
        "before leadership moves back.",
        default=10,
    )
    leader_imbalance_check_interval_seconds = key(
        "leader.imbalance.check.interval.seconds",
        LONG,
        "How often that percentage is checked.",
        default=300,
        at_least=1,
    )
    create_topic_policy_class_name = key(
        "create.topic.policy.class.name",
        CLASS,
        "Java class that Kafka consults before it creates a topic.",
        no_effect=NO_POLICIES,
    )
    alter_config_policy_class_name = key(
        "alter.config.policy.class.name",
        CLASS,
        "Java class that Kafka consults before it changes settings.",
        no_effect=NO_POLICIES,
    )
    zookeeper_connect = key(
        "zookeeper.connect",
        CONNECT,
        "ZooKeeper servers of the cluster: host:port separated by commas, with an "
        "optional path once, after the last one. The default port is 2181. Unset, the broker runs "
        "alone, with a store of its own in its log directories.",
    )
    zookeeper_session_timeout_ms = key(
        "zookeeper.session.timeout.ms",
        INT,
        "ZooKeeper session timeout: after this time without contact a broker counts as dead. "
        "minSessionTimeout and maxSessionTimeout of the ZooKeeper servers bound it. A request "
        "without a timeout of its own waits no longer than this for an answer of ZooKeeper, or "
        "of a lone broker's own store, and then fails with REQUEST_TIMED_OUT.",
        default=18000,
        at_least=1,
    )
    zookeeper_connection_timeout_ms = key(
        "zookeeper.connection.timeout.ms",
        INT,
        "How long a starting broker tries to reach ZooKeeper. Defaults to the session timeout.",
        at_least=1,
    )
    zookeeper_digest = key(
        "zookeeper.digest",
        PASSWORD,
        "User and password by which the broker authenticates at ZooKeeper (scheme digest), as "
        "user:password. All brokers of a cluster need the same. plog's own key.",
    )
    zookeeper_set_acl = key(
        "zookeeper.set.acl",
        BOOLEAN,
        "Whether only the user of `zookeeper.digest` may change the nodes that the broker creates "
        "in ZooKeeper; others may read them. Nodes that are there already stay as they are.",
        default=False,
    )
