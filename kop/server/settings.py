"""The settings of listeners and connections. Owns: their names, defaults and limits."""

from __future__ import annotations

from kop.values import INT_MAX, Advertised, Int, Long, OptionalAddress, Settings, SomeAddresses, setting


class ServerSettings(Settings):
    """The settings of listeners and connections: addresses, and limits for each client and for all together."""

    listen: SomeAddresses = setting(
        "listen",
        "127.0.0.1:9092,[::1]:9092",
        "Addresses that Kafka clients connect to: HOST:PORT, comma separated; *:PORT is every address of the machine.",
    )
    advertise: Advertised = setting(
        "advertise",
        "",
        "Address that clients are told to connect to, one for all listeners or one for each; "
        "empty: the address that the client connected to.",
    )
    # 8080 to 8083 are Pulsar's and the Confluent tools', 9090 to 9999 Prometheus's and its exporters' (9308: Kafka's).
    http: OptionalAddress = setting(
        "http", "127.0.0.1:7092", "Address of /metrics, /healthz and /readyz: HOST:PORT; empty: none."
    )
    socket_request_max_bytes: Int = setting(
        "socket.request.max.bytes", 104_857_600, "Largest request in bytes; a larger one closes its connection.", ge=1
    )
    connections_max_idle_ms: Long = setting(
        "connections.max.idle.ms", 600_000, "Milliseconds after which a silent connection is closed; -1: never.", ge=-1
    )
    max_connections: Int = setting("max.connections", INT_MAX, "Connections at a time.", ge=0)
    max_connections_per_ip: Int = setting(
        "max.connections.per.ip", INT_MAX, "Connections at a time from one address.", ge=0
    )
    kop_connection_unread_bytes: Long = setting(
        "kop.connection.unread.bytes",
        16_777_216,
        "Bytes of answers that a client may leave unread before no more of its requests are taken.",
        ge=65_536,
    )
    kop_request_memory_bytes: Long = setting(
        "kop.request.memory.bytes",
        268_435_456,
        "Bytes that requests not yet complete or answered may hold, all connections together, before reading pauses.",
        ge=1_048_576,
    )
    kop_drain_timeout_ms: Int = setting(
        "kop.drain.timeout.ms", 10_000, "Milliseconds that requests in flight get to end at shutdown.", ge=0
    )
