"""The settings of the engine over Pulsar. Owns: their names, defaults and limits."""

from __future__ import annotations

from typing import Final, Literal

from kop.values import AdminUrl, Namespace, Secret, Settings, setting

SYSTEM_TENANT: Final = "pulsar"
"""The tenant of Pulsar's own topics."""


class PulsarOptions(Settings):
    """The settings of the engine over Pulsar that people can set."""

    kop_pulsar_admin_url: AdminUrl = setting(
        "kop.pulsar.admin.url",
        "http://127.0.0.1:8080",
        "Address of Pulsar's admin REST, with store=pulsar://...; with kop.pulsar.auth and store=pulsar+ssl://... it "
        "has to be https.",
    )
    kop_pulsar_namespace: Namespace = setting(
        "kop.pulsar.namespace", "public/default", "TENANT/NAMESPACE whose topics Kafka clients see."
    )
    kop_pulsar_metadata_namespace: Namespace = setting(
        "kop.pulsar.metadata.namespace",
        "public/kafka",
        "TENANT/NAMESPACE of committed offsets and of the gateway's own topic; made when it is not there.",
    )
    kop_pulsar_offsets: Literal["index", "packed"] = setting(
        "kop.pulsar.offsets",
        "index",
        "What offsets are made of: index, the Pulsar brokers' own index of messages; or packed, from message ids.",
    )
    kop_pulsar_auth: Secret = setting(
        "kop.pulsar.auth",
        "",
        "How the gateway proves who it is: token:TOKEN, token-file:PATH, basic:USER:PASSWORD or oauth2:{JSON}.",
        repr=False,
    )
    kop_pulsar_tls_ca_file: str = setting(
        "kop.pulsar.tls.ca.file", "", "PEM file of the authorities that Pulsar's certificates are checked against."
    )
    kop_pulsar_tls_cert_file: str = setting(
        "kop.pulsar.tls.cert.file", "", "PEM file of the gateway's own certificate."
    )
    kop_pulsar_tls_key_file: str = setting("kop.pulsar.tls.key.file", "", "PEM file of that certificate's key.")
    kop_pulsar_tls_verify_host: bool = setting(
        "kop.pulsar.tls.verify.host", True, "Whether the name in Pulsar's certificate has to be the host's."
    )


class PulsarSettings(PulsarOptions):
    """The settings that the engine over Pulsar gets. Sizes in bytes, times in seconds."""

    kop_cache_bytes: int = 64 << 20
    """The bytes for the newest batches, those of open transactions, and entries that readers behind the tails hold, all
    together.
    """
    max_queued_bytes: int = 256 << 20
    tail_seconds: float = 300.0
    """The seconds without a request for a partition after which its tail reader is closed. The next request attaches it
    again.
    """
    idle_seconds: float = 10.0
    """The seconds after which an unused producer of an idempotent producer id is closed, so that another broker may
    open it.
    """
    list_seconds: float = 60.0
    """The seconds between full listings of topics, which find changes that the watcher missed."""
