"""The security of a listener, made of its settings.

Owns: which settings say what of TLS, of mechanisms of SASL and of the login between brokers; the warnings about
listeners that anybody may use.
Must not know: sockets, users themselves, how a login or a handshake goes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kop import clock
from kop.errors import ConfigError
from kop.handlers.access import ANONYMOUS
from kop.security.dialing import Dialer, broker_login
from kop.security.jaas import parse_jaas
from kop.security.keystores import Store
from kop.security.listener import ListenerSecurity
from kop.security.login import Offer
from kop.security.login_turns import LoginTurns
from kop.security.passwords import Passwords
from kop.security.principal import MappingRules, name_of
from kop.security.sasl.exchange import ClientIdentity, Exchange
from kop.security.sasl.oauthbearer import OAuthBearerExchange, TokenCheck
from kop.security.sasl.plain import PlainExchange
from kop.security.sasl.scram import ScramExchange
from kop.security.state import SecurityState
from kop.security.tenant_membership import TenantMembership
from kop.security.tenants import HOME, Space
from kop.security.tls import TlsContext, TlsFiles, client_context, server_context
from kop.security.token_keys import KeySources
from kop.security.token_logins import Bearers
from kop.security.users import Mechanism
from kop.server.endpoints import Endpoint
from kop.server.settings import ListenerSettings, ServerSettings
from kop.values import MECHANISMS

_nonce = partial(clock.token_hex, 18)
"""Returns text for a login that nobody guesses."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoginParts:
    """The parts that the logins of all listeners share."""

    security: SecurityState
    passwords_at_once: LoginTurns
    keys: KeySources
    check_pulsar_token: TokenCheck | None = None
    """Says whose a token of Pulsar is; None: none is taken."""
    bearers: Bearers | None = None
    """Delegation tokens; None: none is taken."""
    membership: TenantMembership | None = None
    """Says to which tenant clients belong; None: all are of the home space."""
    tenant_claim: str = ""
    """The claim of tokens that has the namespace of their bearer; empty: none does."""


def listener_security(
    endpoint: Endpoint,
    settings: ListenerSettings,
    server: ServerSettings,
    parts: LoginParts,
    of_mechanism: Callable[[str], ListenerSettings],
) -> ListenerSecurity:
    """Return the TLS and login rules of a listener; log a warning if others than this machine reach it without a login,
    or log in without TLS. ConfigError if its certificate cannot be read, or a mechanism cannot be offered.

    `of_mechanism` returns the listener's settings for a mechanism.
    """
    mechanisms = _mechanisms(endpoint, settings, parts, of_mechanism) if endpoint.has_sasl else {}
    if endpoint.name and not endpoint.is_local:
        if not endpoint.has_sasl and not (endpoint.has_tls and settings.ssl_client_auth == "required"):
            log.warning("listener %s takes all who reach %s: no login is asked", endpoint.name, endpoint.address)
        elif endpoint.has_sasl and not endpoint.has_tls:
            log.warning("listener %s asks for a login without TLS: who listens in reads all records", endpoint.name)
    return ListenerSecurity(
        endpoint.name,
        TlsContext(endpoint.name, _tls_files(settings), server_context) if endpoint.has_tls else None,
        mechanisms,
        server.sasl_server_max_receive_size,
        _name_of(endpoint, settings),
        parts.membership,
        HOME if parts.membership is None or endpoint.has_sasl else _space_of_anybody(parts.membership),
    )


def _space_of_anybody(membership: TenantMembership) -> Space:
    """Return the space of clients that do not identify themselves. ConfigError if the rules for it are wrong."""
    try:
        return membership.at_once(ANONYMOUS)
    except ValueError as error:
        raise ConfigError([str(error)]) from None


def _mechanisms(
    endpoint: Endpoint,
    settings: ListenerSettings,
    parts: LoginParts,
    of_mechanism: Callable[[str], ListenerSettings],
) -> dict[str, Offer]:
    names = settings.sasl_enabled_mechanisms
    unknown = [name for name in names if name not in MECHANISMS]
    if unknown:
        raise ConfigError([f"sasl.enabled.mechanisms has {', '.join(unknown)}; there are {', '.join(MECHANISMS)}"])
    if not names:
        raise ConfigError([f"sasl.enabled.mechanisms is empty: nobody could log in at listener {endpoint.name}"])

    security = parts.security

    def scram(mechanism: Mechanism, host: str) -> Exchange:
        find = partial(security.users.scram, mechanism)
        return ScramExchange(mechanism.text, find, security.secret, _nonce(), parts.bearers, host)

    begins: dict[str, Callable[[str], Exchange]] = {
        mechanism.text: partial(scram, mechanism) for mechanism in Mechanism
    }
    if "PLAIN" in names:
        own = _plain_users(endpoint, of_mechanism("PLAIN").sasl_jaas_config)
        check = Passwords(security.users, own.get, parts.passwords_at_once).check
        begins["PLAIN"] = lambda host: PlainExchange(partial(check, host=host), parts.check_pulsar_token)
    if "OAUTHBEARER" in names:
        check_token = _token_check(endpoint, settings, parts)
        begins["OAUTHBEARER"] = lambda _: OAuthBearerExchange(check_token)
    return {name: Offer(begins[name], of_mechanism(name).connections_max_reauth_ms) for name in names}


def _token_check(endpoint: Endpoint, settings: ListenerSettings, parts: LoginParts) -> TokenCheck:
    """Return the function that checks a listener's tokens: by the keys at a URL, by Pulsar, or, with a warning in the
    log, not at all. ConfigError if the settings for it are incomplete or contradict one another.
    """
    # 20 ms of imports, for those who want it.
    from kop.security import tokens  # noqa: PLC0415

    url, issuer = settings.sasl_oauthbearer_jwks_endpoint_url, settings.sasl_oauthbearer_expected_issuer
    audiences = settings.sasl_oauthbearer_expected_audience
    rules = tokens.TokenRules(
        issuer=issuer or None,
        audiences=tuple(audiences),
        name_claim=settings.sasl_oauthbearer_sub_claim_name,
        scope_claim=settings.sasl_oauthbearer_scope_claim_name,
        namespace_claim=parts.tenant_claim,
        skew=settings.sasl_oauthbearer_clock_skew_seconds,
        longest=settings.kop_oauthbearer_max_token_seconds,
    )
    if settings.kop_oauthbearer_allow_unsecured_tokens:
        if url:
            raise ConfigError(
                ["kop.oauthbearer.allow.unsecured.tokens is set beside sasl.oauthbearer.jwks.endpoint.url: one of them"]
            )
        log.warning("listener %s takes tokens that nobody has signed: anybody may be anybody", endpoint.name)

        async def unsecured(token: str) -> ClientIdentity:
            return tokens.unsecured(token, rules, clock.wall())

        return unsecured
    if parts.check_pulsar_token is not None and not url:
        return parts.check_pulsar_token
    missing = [
        f"sasl.oauthbearer.{name}"
        for name, value in (("jwks.endpoint.url", url), ("expected.issuer", issuer), ("expected.audience", audiences))
        if not value
    ]
    if missing:
        raise ConfigError([f"OAUTHBEARER at listener {endpoint.name} needs {', '.join(missing)}"])
    try:
        source = parts.keys.source(url, settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000)
    except ValueError as error:
        raise ConfigError([f"sasl.oauthbearer.jwks.endpoint.url {error}"]) from None

    async def check(token: str) -> ClientIdentity:
        if tokens.is_of_unknown_key(token, source.keys):
            source.ask(clock.monotonic())
        return tokens.checked(token, source.keys, rules, clock.wall())

    return check


def _plain_users(endpoint: Endpoint, jaas: str) -> dict[str, str]:
    """Return the passwords, by user, in Kafka's JAAS text for PlainLoginModule; none if the text is empty or for
    another module. ConfigError if it is malformed.
    """
    setting = f"listener.name.{endpoint.key}.plain.sasl.jaas.config"
    if not jaas:
        return {}
    try:
        module = parse_jaas(jaas)
        if module.name != "PlainLoginModule":
            return {}  # it is for SCRAM between brokers
        users = {key.removeprefix("user_"): value for key, value in module.options.items() if key.startswith("user_")}
        if not all(users) or not all(users.values()):
            raise ValueError("a user without a name or a password")
    except ValueError as error:
        raise ConfigError([f"{setting}: {error}"]) from None
    return users


def dialer(between: Endpoint, settings: ListenerSettings, *, alone: bool) -> Dialer:
    """Return the object that opens connections to the listener between brokers; `alone`: there are no other brokers.

    ConfigError if the login of brokers is wrong, or the CAs that they trust cannot be read.
    """
    if alone:
        return Dialer(None, None, _nonce)
    login = None
    if between.has_sasl:
        login = broker_login(settings.sasl_mechanism_inter_broker_protocol, settings.sasl_jaas_config)
    tls = TlsContext(between.name, _tls_files(settings), client_context) if between.has_tls else None
    return Dialer(tls, login, _nonce)


def _tls_files(settings: ListenerSettings) -> TlsFiles:
    return TlsFiles(
        keystore=Store(
            kind="keystore",
            type=settings.ssl_keystore_type,
            location=settings.ssl_keystore_location,
            certificates=settings.ssl_keystore_certificate_chain,
            key=settings.ssl_keystore_key,
            password=settings.ssl_keystore_password,
        ),
        key_password=settings.ssl_key_password,
        truststore=Store(
            kind="truststore",
            type=settings.ssl_truststore_type,
            location=settings.ssl_truststore_location,
            certificates=settings.ssl_truststore_certificates,
            password=settings.ssl_truststore_password,
        ),
        client_auth=settings.ssl_client_auth,
        enabled_protocols=settings.ssl_enabled_protocols,
        cipher_suites=settings.ssl_cipher_suites,
        check_hostname=bool(settings.ssl_endpoint_identification_algorithm),
    )


def _name_of(endpoint: Endpoint, settings: ListenerSettings) -> Callable[[str], str] | None:
    """Return the function that makes a client's name of the subject of its certificate; None if clients have no
    certificates, or log in besides: then the login gives the name. ConfigError if the rules for names are wrong.
    """
    if not endpoint.has_tls or endpoint.has_sasl or settings.ssl_client_auth == "none":
        return None
    try:
        return partial(name_of, MappingRules(settings.ssl_principal_mapping_rules))
    except ValueError as error:
        raise ConfigError([f"listener {endpoint.name}: ssl.principal.mapping.rules {error}"]) from None
