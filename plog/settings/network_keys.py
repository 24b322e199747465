"""The broker's keys about listeners, connections and requests."""

from __future__ import annotations

from plog.settings.keys import BOOLEAN, INT, INT_MAX, LONG, STRING, Settings, Update, key
from plog.settings.listeners import (
    ADDRESS,
    DEFAULT_LISTENERS,
    DEFAULT_PROTOCOL_MAP,
    HOST_CAPS,
)

NO_POOL = "requests are not handed to a pool of threads"


class NetworkKeys(Settings):
    """Listeners, connections and requests."""

    listeners = key(
        "listeners",
        STRING,
        "Where the broker listens: NAME://host:port, more of them with commas between. An empty "
        "host is every interface, and so is 0.0.0.0.",
        default=DEFAULT_LISTENERS,
    )
    advertised_listeners = key(
        "advertised.listeners",
        STRING,
        "What clients are told to connect to, in the form of `listeners`, for brokers that are "
        "reached by another name or through a proxy. Unset, the listeners themselves.",
    )
    listener_security_protocol_map = key(
        "listener.security.protocol.map",
        STRING,
        "Which security protocol each listener name speaks: NAME:PROTOCOL, with commas between.",
        default=DEFAULT_PROTOCOL_MAP,
    )
    inter_broker_listener_name = key(
        "inter.broker.listener.name",
        STRING,
        "The listener that brokers use among themselves. Unset, the one named PLAINTEXT, else "
        "the first.",
    )
    socket_send_buffer_bytes = key(
        "socket.send.buffer.bytes",
        INT,
        "SO_SNDBUF of client connections. -1 leaves it to the operating system, which lets it grow "
        "as a connection needs it; Kafka's default, 102400, slows large fetches.",
        default=-1,
        at_least=1,
        besides=(-1,),
    )
    socket_receive_buffer_bytes = key(
        "socket.receive.buffer.bytes",
        INT,
        "SO_RCVBUF of client connections. -1 leaves it to the operating system, which lets it grow "
        "as a connection needs it; Kafka's default, 102400, slows large batches.",
        default=-1,
        at_least=1,
        besides=(-1,),
    )
    socket_request_max_bytes = key(
        "socket.request.max.bytes",
        INT,
        "The largest request. A connection that announces a larger one is closed.",
        default=104857600,
        at_least=1,
    )
    socket_listen_backlog_size = key(
        "socket.listen.backlog.size",
        INT,
        "How many connections may wait to be accepted; the kernel's somaxconn bounds it.",
        default=50,
        at_least=1,
    )
    socket_sendfile_enable = key(
        "socket.sendfile.enable",
        BOOLEAN,
        "plog's own. Whether records go from files to sockets by sendfile, or through a copy "
        "in memory.",
        default=True,
    )
    fast_path_enable = key(
        "fast.path.enable",
        BOOLEAN,
        "plog's own. Whether ordinary requests are answered by the network threads themselves. "
        "Without it every request takes the way through Python, with the same answers.",
        default=True,
    )
    metrics_listener = key(
        "metrics.listener",
        ADDRESS,
        "plog's own. Where the page for Prometheus is served, as host:port; empty: nowhere. It is "
        "open to whoever reaches it.",
        default=None,
    )
    max_connections = key(
        "max.connections",
        INT,
        "How many connections the broker holds at once; further ones are closed.",
        default=INT_MAX,
        at_least=0,
    )
    max_connections_per_ip = key(
        "max.connections.per.ip",
        INT,
        "How many connections one address may have at once; further ones are closed.",
        default=INT_MAX,
        at_least=0,
    )
    max_connections_per_ip_overrides = key(
        "max.connections.per.ip.overrides",
        HOST_CAPS,
        "What `max.connections.per.ip` is for single hosts, by name or address: host:count, with "
        "commas between; an IPv6 address in brackets. Names are looked up once, at the start.",
        default=(),
    )
    connections_max_idle_ms = key(
        "connections.max.idle.ms",
        LONG,
        "A connection on which nothing passed for so long is closed. Who sends a byte now and "
        "then keeps his, as with Kafka, until memory for requests is short: "
        "`max.connections.per.ip` bounds how many.",
        default=600000,
    )
    num_network_threads = key(
        "num.network.threads",
        INT,
        "Threads that read requests and write answers. They never wait for Python, and one "
        "fills a network card, which is why the default is 1 and not Kafka's 3.",
        default=1,
        at_least=1,
    )
    num_io_threads = key(
        "num.io.threads",
        INT,
        "Kafka's threads that work on requests.",
        default=8,
        at_least=1,
        update=Update.CLUSTER_WIDE,
        no_effect=NO_POOL,
    )
    background_threads = key(
        "background.threads",
        INT,
        "Kafka's threads for background work.",
        default=10,
        at_least=1,
        update=Update.CLUSTER_WIDE,
        no_effect="each log directory has its own threads",
    )
    queued_max_requests = key(
        "queued.max.requests",
        INT,
        "How many requests Python's handlers may have in work at once, those left aside that "
        "only wait: for records, for acks=all, for a slow disk. Further ones wait where they came "
        "in, as they do once those in work have 4 MB between them. Kafka's default is 500.",
        default=100,
        at_least=1,
    )
    queued_max_request_bytes = key(
        "queued.max.request.bytes",
        LONG,
        "Memory that requests in work and half received may take together; at the limit, reading "
        "pauses, but for small requests that have come whole, which may take an eighth more; and "
        "connections are closed whose request comes on by less than 16 KB in 10 s. Answers that "
        "clients do not take may take as much again; beyond, connections are closed, beginning "
        "with the one that has stood still for longest. Kafka's default is -1, no limit; plog "
        "always has one, and takes -1 for its default.",
        default=536870912,
        at_least=1,
        besides=(-1,),
    )
    fetch_max_bytes = key(
        "fetch.max.bytes",
        INT,
        "The most bytes one Fetch answer carries, whatever the consumer asks for; a first batch "
        "that is larger still goes whole.",
        default=57671680,
        at_least=1024,
    )
    max_incremental_fetch_session_cache_slots = key(
        "max.incremental.fetch.session.cache.slots",
        INT,
        "How many fetch sessions (KIP-227) are remembered.",
        default=1000,
        at_least=0,
    )
