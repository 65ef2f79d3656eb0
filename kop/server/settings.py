"""The settings of listeners and connections. Owns: their names, defaults and limits."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator

from kop.values import (
    INT_MAX,
    PROTOCOLS,
    Advertised,
    Int,
    Listeners,
    Long,
    OptionalAddress,
    Protocols,
    Secret,
    Settings,
    SomeAddresses,
    Texts,
    setting,
)


def _store_type(value: str) -> str:
    if value.upper() in {"JKS", "JCEKS"}:
        raise ValueError(
            "is Java's own form, which is not read here; convert it: keytool -importkeystore -srckeystore STORE "
            "-destkeystore STORE.p12 -deststoretype PKCS12, then set PKCS12"
        )
    return value.upper()


of_listener = partial(setting, by_listener=True)
"""Declares a setting of which a listener may have a value of its own."""
StoreType: TypeAlias = Annotated[Literal["PEM", "PKCS12"], "string", BeforeValidator(_store_type)]
ClientAuth: TypeAlias = Annotated[Literal["none", "requested", "required"], "string", BeforeValidator(str.lower)]
_LISTEN = "127.0.0.1:9092,[::1]:9092"


class ServerSettings(Settings):
    """The settings of listeners and connections: addresses, and limits for each client and for all together."""

    listen: SomeAddresses = setting(
        "listen",
        _LISTEN,
        "Addresses that Kafka clients connect to: HOST:PORT, comma separated; *:PORT is every address of the machine.",
    )
    advertise: Advertised = setting(
        "advertise",
        "",
        "Address that clients are told to connect to, one for all listeners or one for each; "
        "empty: the address that the client connected to.",
    )
    listeners: Listeners = setting(
        "listeners",
        "",
        "Named listeners, instead of listen: NAME://HOST:PORT, comma separated; see listener.security.protocol.map.",
    )
    advertised_listeners: Listeners = setting(
        "advertised.listeners",
        "",
        "Addresses that clients of the listeners are told to connect to; empty: the address that the client connected "
        "to.",
    )
    listener_security_protocol_map: Protocols = setting(
        "listener.security.protocol.map",
        ",".join(f"{name}:{name}" for name in PROTOCOLS),
        "The protocol of each listener: NAME:PROTOCOL, comma separated.",
    )
    inter_broker_listener_name: str = setting(
        "inter.broker.listener.name", "", "Listener by which brokers call one another; empty: the first one."
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
    sasl_server_max_receive_size: Int = of_listener(
        "sasl.server.max.receive.size",
        524_288,
        "Bytes of the largest request of a client that has not authenticated.",
        ge=1024,
    )
    kop_drain_timeout_ms: Int = setting(
        "kop.drain.timeout.ms", 10_000, "Milliseconds that requests in flight get to end at shutdown.", ge=0
    )

    def problems(self) -> Iterable[str]:
        """Yield a line for each contradiction between listeners."""
        yield from super().problems()
        if not self.listeners:
            if self.advertised_listeners or self.inter_broker_listener_name:
                yield "advertised.listeners and inter.broker.listener.name need listeners: with listen it is advertise"
            return
        if self.advertise or ",".join(map(str, self.listen)) != _LISTEN:
            yield "listeners is given beside listen or advertise: one form or the other"
        names = [listener.name for listener in self.listeners]
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                yield f"listeners has {name} more than once"
            if name not in self.listener_security_protocol_map:
                yield f"listener.security.protocol.map has no protocol for listener {name}"
        for name, address in self.advertised_listeners:
            if name not in names:
                yield f"advertised.listeners has {name}, which is none of listeners"
            elif not address.host or address.host in {"0.0.0.0", "::"}:
                yield f"advertised.listeners: {name} has to be an address that clients can connect to, not a wildcard"
        between = self.inter_broker_listener_name.upper()
        if between and between not in names:
            yield f"inter.broker.listener.name: {between} is none of listeners"


class ListenerSettings(Settings):
    """The settings of TLS and SASL of a listener. Each listener may have its own."""

    ssl_keystore_type: StoreType = of_listener("ssl.keystore.type", "PEM", "Form of the keystore: PEM or PKCS12.")
    ssl_keystore_location: str = of_listener(
        "ssl.keystore.location", "", "File with the certificate chain and its key."
    )
    ssl_keystore_password: Secret = of_listener(
        "ssl.keystore.password", "", "Password of a keystore of type PKCS12, and of the key in it."
    )
    ssl_keystore_certificate_chain: str = of_listener(
        "ssl.keystore.certificate.chain", "", "The certificate chain itself, in PEM, instead of a file."
    )
    ssl_keystore_key: Secret = of_listener(
        "ssl.keystore.key", "", "The key itself, with ssl.keystore.certificate.chain."
    )
    ssl_key_password: Secret = of_listener("ssl.key.password", "", "Password of the key in PEM; empty: it has none.")
    ssl_truststore_type: StoreType = of_listener("ssl.truststore.type", "PEM", "Form of the truststore: PEM or PKCS12.")
    ssl_truststore_location: str = of_listener(
        "ssl.truststore.location",
        "",
        "File with the CAs of clients' certificates, and of those of brokers when they call one another; empty: the "
        "system's for the latter.",
    )
    ssl_truststore_password: Secret = of_listener(
        "ssl.truststore.password", "", "Password of a truststore of type PKCS12."
    )
    ssl_truststore_certificates: str = of_listener(
        "ssl.truststore.certificates", "", "The CAs themselves, in PEM, instead of a file."
    )
    ssl_client_auth: ClientAuth = of_listener(
        "ssl.client.auth",
        "none",
        "Certificates of clients: none, requested (who shows one is its subject, others are ANONYMOUS), or required.",
    )
    ssl_principal_mapping_rules: str = of_listener(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "Rules that make a client's name of its certificate's subject: RULE:PATTERN/REPLACEMENT/[LU], comma separated; "
        "DEFAULT: the subject.",
    )
    ssl_enabled_protocols: Texts = of_listener(
        "ssl.enabled.protocols", "TLSv1.2,TLSv1.3", "Versions of TLS: TLSv1.2 and TLSv1.3."
    )
    ssl_cipher_suites: Texts = of_listener(
        "ssl.cipher.suites", "", "Cipher suites, by Java's or OpenSSL's names; empty: OpenSSL's choice."
    )
    ssl_endpoint_identification_algorithm: str = of_listener(
        "ssl.endpoint.identification.algorithm",
        "https",
        "Set to https: brokers look for each other's names in certificates; empty: they do not.",
    )
    sasl_enabled_mechanisms: Texts = of_listener(
        "sasl.enabled.mechanisms",
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "Mechanisms of SASL that clients may use: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        "sasl.mechanism.inter.broker.protocol",
        "SCRAM-SHA-256",
        "Mechanism by which brokers log in at one another.",
    )
    sasl_jaas_config: Secret = setting(
        "sasl.jaas.config",
        "",
        "Kafka's line for a login module: name and password by which brokers log in at one another; users of PLAIN.",
        by_mechanism=True,
    )
    connections_max_reauth_ms: Long = setting(
        "connections.max.reauth.ms",
        0,
        "Milliseconds after which clients have to log in again on their connection; 0: at the end of a token only.",
        ge=0,
        by_mechanism=True,
    )
    sasl_oauthbearer_jwks_endpoint_url: str = of_listener(
        "sasl.oauthbearer.jwks.endpoint.url", "", "JWKS with the keys that sign tokens: file:///PATH, or https:."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Long = of_listener(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        "Milliseconds from one fetch of these keys to the next.",
        ge=1000,
    )
    sasl_oauthbearer_expected_issuer: str = of_listener(
        "sasl.oauthbearer.expected.issuer", "", "The issuer (iss) that a token has to have."
    )
    sasl_oauthbearer_expected_audience: Texts = of_listener(
        "sasl.oauthbearer.expected.audience",
        "",
        "Audiences (aud), comma separated, one of which a token has to be for.",
    )
    sasl_oauthbearer_sub_claim_name: str = of_listener(
        "sasl.oauthbearer.sub.claim.name", "sub", "The claim of a token that has the user's name."
    )
    sasl_oauthbearer_scope_claim_name: str = of_listener(
        "sasl.oauthbearer.scope.claim.name",
        "scope",
        "The claim of a token that has its scope: a text or a list of texts, if it is there.",
    )
    sasl_oauthbearer_clock_skew_seconds: Int = of_listener(
        "sasl.oauthbearer.clock.skew.seconds", 30, "Seconds by which clocks may differ.", ge=0
    )
    kop_oauthbearer_max_token_seconds: Long = of_listener(
        "kop.oauthbearer.max.token.seconds", 86_400, "Seconds from now on within which a token has to end (exp).", ge=1
    )
    kop_oauthbearer_allow_unsecured_tokens: bool = of_listener(
        "kop.oauthbearer.allow.unsecured.tokens",
        False,
        "Take tokens that nobody has signed, so that anybody may be anybody: for trying out alone.",
    )
