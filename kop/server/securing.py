"""The security of a listener, made of its settings.

Owns: which settings say what of TLS, of mechanisms of SASL and of the login between brokers; the warnings about
listeners that anybody may use.
Must not know: sockets, users themselves, how a login or a handshake goes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from kop import clock
from kop.errors import ConfigError
from kop.security.dialing import Dialer, broker_login
from kop.security.keystores import Store
from kop.security.listener import ListenerSecurity
from kop.security.principal import MappingRules, name_of
from kop.security.sasl.exchange import Exchange
from kop.security.sasl.scram import ScramExchange
from kop.security.state import SecurityState
from kop.security.tls import TlsFiles, of_caller, of_listener
from kop.security.users import Mechanism
from kop.server.endpoints import Endpoint
from kop.server.settings import ListenerSettings, ServerSettings

_nonce = partial(clock.token_hex, 18)
"""Returns text for a login that nobody guesses."""

log = logging.getLogger(__name__)


def listener_security(
    endpoint: Endpoint, settings: ListenerSettings, server: ServerSettings, security: SecurityState
) -> ListenerSecurity:
    """Return what a listener asks of its clients. ConfigError if its certificate or a mechanism cannot be had."""
    mechanisms = _mechanisms(endpoint, settings, security) if endpoint.has_sasl else {}
    if endpoint.name and not endpoint.is_local:
        if not endpoint.has_sasl and settings.ssl_client_auth != "required":
            log.warning("listener %s takes all who reach %s: no login is asked", endpoint.name, endpoint.address)
        elif endpoint.has_sasl and not endpoint.has_tls:
            log.warning("listener %s asks for a login without TLS: who listens in reads all records", endpoint.name)
    return ListenerSecurity(
        endpoint.name,
        of_listener(endpoint.name, _tls_files(settings)) if endpoint.has_tls else None,
        mechanisms,
        server.sasl_server_max_receive_size,
        _name_of(endpoint, settings),
    )


def _mechanisms(
    endpoint: Endpoint, settings: ListenerSettings, security: SecurityState
) -> dict[str, Callable[[], Exchange]]:
    known = {mechanism.text: mechanism for mechanism in Mechanism}
    unknown = [name for name in settings.sasl_enabled_mechanisms if name not in known]
    if unknown:
        raise ConfigError([f"sasl.enabled.mechanisms has {', '.join(unknown)}; there are {', '.join(known)}"])
    if not settings.sasl_enabled_mechanisms:
        raise ConfigError([f"sasl.enabled.mechanisms is empty: nobody could log in at listener {endpoint.name}"])

    def begun(mechanism: Mechanism) -> Exchange:
        return ScramExchange(mechanism.text, partial(security.users.scram, mechanism), security.secret, _nonce())

    return {name: partial(begun, known[name]) for name in settings.sasl_enabled_mechanisms}


def dialer(between: Endpoint, settings: ListenerSettings, *, alone: bool) -> Dialer:
    """Return what opens connections to the listener between brokers; `alone`: there are no other brokers.

    ConfigError if the login of brokers or the CAs that they trust cannot be had.
    """
    if alone:
        return Dialer(None, None, _nonce)
    login = None
    if between.has_sasl:
        login = broker_login(settings.sasl_mechanism_inter_broker_protocol, settings.sasl_jaas_config)
    tls = of_caller(between.name, _tls_files(settings)) if between.has_tls else None
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


def _name_of(endpoint: Endpoint, settings: ListenerSettings) -> Callable[[bytes], str] | None:
    """Return what names clients by their certificates; None if they have none, or log in besides, which counts then."""
    if not endpoint.has_tls or endpoint.has_sasl or settings.ssl_client_auth == "none":
        return None
    try:
        return partial(name_of, MappingRules(settings.ssl_principal_mapping_rules))
    except ValueError as error:
        raise ConfigError([f"listener {endpoint.name}: ssl.principal.mapping.rules {error}"]) from None
