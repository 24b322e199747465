"""The broker's keys about listeners, connections and requests."""

from __future__ import annotations

from plog.settings.keys import BOOLEAN, INT, INT_MAX, LONG, STRING, Settings, Update, key
from plog.settings.listeners import (
    ADDRESS,
    DEFAULT_LISTENERS,
    DEFAULT_PROTOCOL_MAP,
    HOST_CAPS,
)

NO_POOL = "plog does not use a thread pool for requests"


class NetworkKeys(Settings):
    """Listeners, connections and requests."""

    listeners = key(
        "listeners",
        STRING,
        "Addresses that the broker listens on: NAME://host:port, separated by "
        "commas. An empty host or 0.0.0.0 means every interface.",
        default=DEFAULT_LISTENERS,
    )
    advertised_listeners = key(
        "advertised.listeners",
        STRING,
        "Addresses that clients connect to, in the form of `listeners`, for brokers"
        " behind another name or a proxy. Defaults to the listeners.",
    )
    listener_security_protocol_map = key(
        "listener.security.protocol.map",
        STRING,
        "Security protocol of each listener: NAME:PROTOCOL, separated by commas.",
        default=DEFAULT_PROTOCOL_MAP,
    )
    inter_broker_listener_name = key(
        "inter.broker.listener.name",
        STRING,
        "The listener that brokers use between themselves. Defaults to the one "
        "named PLAINTEXT, else the first.",
    )
    socket_send_buffer_bytes = key(
        "socket.send.buffer.bytes",
        INT,
        "SO_SNDBUF of client connections. With -1 the operating system adapts it to"
        " the connection. Kafka's default, 102400, slows large fetches.",
        default=-1,
        at_least=1,
        besides=(-1,),
    )
    socket_receive_buffer_bytes = key(
        "socket.receive.buffer.bytes",
        INT,
        "SO_RCVBUF of client connections. With -1 the operating system adapts it to"
        " the connection. Kafka's default, 102400, slows large batches.",
        default=-1,
        at_least=1,
        besides=(-1,),
    )
    socket_request_max_bytes = key(
        "socket.request.max.bytes",
        INT,
        "Maximum size of a request. The broker closes a connection that announces a larger one.",
        default=104857600,
        at_least=1,
    )
    socket_listen_backlog_size = key(
        "socket.listen.backlog.size",
        INT,
        "Maximum number of connections waiting to be accepted; limited by the kernel's somaxconn.",
        default=50,
        at_least=1,
    )
    socket_sendfile_enable = key(
        "socket.sendfile.enable",
        BOOLEAN,
        "plog's own. Send records from file to socket by sendfile instead of "
        "copying them through memory.",
        default=True,
    )
    fast_path_enable = key(
        "fast.path.enable",
        BOOLEAN,
        "plog's own. Older releases answered every request in Python without it.",
        default=True,
        no_effect="network threads always answer Produce and Fetch",
    )
    metrics_listener = key(
        "metrics.listener",
        ADDRESS,
        "plog's own. Address of the metrics page for Prometheus and of the health "
        "checks, as host:port; empty for none. The pages have no authentication.",
        default=None,
    )
    metrics_max_group_topics = key(
        "metrics.max.group.topics",
        INT,
        "plog's own. Maximum number of pairs of a consumer group and a topic whose lag "
        "the metrics page shows. Pairs with the largest lag come first.",
        default=1000,
        at_least=0,
    )
    max_connections = key(
        "max.connections",
        INT,
        "Maximum number of connections; the broker closes further ones.",
        default=INT_MAX,
        at_least=0,
    )
    max_connections_per_ip = key(
        "max.connections.per.ip",
        INT,
        "Maximum number of connections from one address; the broker closes further ones.",
        default=INT_MAX,
        at_least=0,
    )
    max_connections_per_ip_overrides = key(
        "max.connections.per.ip.overrides",
        HOST_CAPS,
        "Exceptions from `max.connections.per.ip`: host:count, separated by commas,"
        " with IPv6 addresses in brackets. Names are resolved once, at the start.",
        default=(),
    )
    connections_max_idle_ms = key(
        "connections.max.idle.ms",
        LONG,
        "The broker closes a connection that is idle for this long. A client that "
        "sends a byte now and then keeps its connection, as in Kafka, until request"
        " memory is short. `max.connections.per.ip` limits the number of such "
        "connections.",
        default=600000,
    )
    num_network_threads = key(
        "num.network.threads",
        INT,
        "Threads that read requests and write responses. They never wait for "
        "Python. One thread can fill a network card, so the default is 1; Kafka's "
        "is 3.",
        default=1,
        at_least=1,
    )
    num_io_threads = key(
        "num.io.threads",
        INT,
        "Kafka's request handler threads. At run time the value may at most double or halve.",
        default=8,
        at_least=1,
        update=Update.CLUSTER_WIDE,
        no_effect=NO_POOL,
    )
    background_threads = key(
        "background.threads",
        INT,
        "Kafka's background threads. At run time the value may at most double or halve.",
        default=10,
        at_least=1,
        update=Update.CLUSTER_WIDE,
        no_effect="each log directory has its own threads",
    )
    queued_max_requests = key(
        "queued.max.requests",
        INT,
        "Maximum number of requests that Python handlers execute at once. Requests "
        "that only wait for records, acks=all, a slow disk, ZooKeeper or another broker do "
        "not count. Further requests wait. They also wait while the executing ones exceed 4 MB "
        "together. As many requests may wait for ZooKeeper; while it does not answer, further "
        "ones are refused. Kafka's default is 500.",
        default=100,
        at_least=1,
    )
    queued_max_request_bytes = key(
        "queued.max.request.bytes",
        LONG,
        "Memory for requests that are being received or executed. At the limit the "
        "broker stops reading; complete small requests may use an eighth more. It "
        "then closes connections that receive less than 16 KB in 10 s. Unsent "
        "responses may use the same amount again; beyond it the broker closes the "
        "slowest reader. Kafka's default, -1, means no limit; plog then uses its "
        "own default.",
        default=536870912,
        at_least=1,
        besides=(-1,),
    )
    fetch_max_bytes = key(
        "fetch.max.bytes",
        INT,
        "Maximum bytes in one Fetch response, whatever the consumer requests. A "
        "larger first batch is still returned whole.",
        default=57671680,
        at_least=1024,
    )
    max_incremental_fetch_session_cache_slots = key(
        "max.incremental.fetch.session.cache.slots",
        INT,
        "Maximum number of fetch sessions (KIP-227).",
        default=1000,
        at_least=0,
    )
