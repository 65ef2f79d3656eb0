"""The first connection to the servers of a cluster: made, or the reason why there is none.

Owns: which failures of TLS and of a login no further attempt would mend, and the properties to set for each.
Must not know: what is asked over the connection, who waits for how long for a server that does not answer yet.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any, Final

from kafka import errors
from kafka.net.compat import KafkaNetClient

from kop import clock
from kop.client.errors import UnreachableError

LOGIN_ATTEMPTS: Final = 10
"""The number of connections that are made to hear why a server lets nobody in."""
_LOGIN_ERRORS: Final = (
    errors.SaslAuthenticationFailedError,
    errors.AuthorizationError,
    errors.IllegalSaslStateError,
    errors.UnsupportedSaslMechanismError,
)
"""Failures of a login that another attempt would have, too."""
_PASSING_TLS: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""Errors of TLS that a server may cause which starts or stops."""
_OTHER_NAME: Final = (62, 64)
"""OpenSSL's numbers for a certificate that is for another host name or IP address."""
_CLASSES: Final = re.compile(r"(\[Error -?\d+\] )?(\w+Error: ?)*(Handshake failed: )?")
_PLACE: Final = re.compile(r" ?\(_ssl\.c:\d+\)")


async def connect(manager: Any, limit_ms: int) -> Exception | None:
    """Connect to the first of the servers that lets this client in, by a connection manager of kafka-python. Return
    the reason if there is none within `limit_ms`: the first that will not pass (`will_not_pass`), or else the last.

    A server that lets nobody in says so, and closes the connection. kafka-python may see only that it was closed; so
    such a connection is made again, up to ten times, if it has TLS or a login. Errors that are not the network's or
    the server's, as that of a token's file, are raised.
    """
    end = clock.monotonic() + limit_ms / 1000
    failure: Exception | None = errors.KafkaTimeoutError(f"no answer within {limit_ms / 1000:g} s")
    for server in manager.cluster.bootstrap_brokers():
        attempts = 1 if manager.config["security_protocol"] == "PLAINTEXT" else LOGIN_ATTEMPTS
        while attempts and (left := end - clock.monotonic()) > 0:
            failure = await _attempt(manager, server.node_id, int(left * 1000) + 1)
            if failure is None or will_not_pass(failure):
                return failure
            attempts = attempts - 1 if _is_cut(failure) else 0
    return failure


async def _attempt(manager: Any, server: Any, limit_ms: int) -> Exception | None:
    manager.reset_backoff(server)
    made = None
    try:
        made = manager.get_connection(server, timeout_ms=limit_ms, refresh_metadata_on_err=False)
        await manager.wait_for(made.init_future, limit_ms)
    except (errors.KafkaError, OSError) as error:
        if made is not None:
            made.close(error)
        manager.reset_backoff(server)
        return error
    return None


def _is_cut(failure: Exception) -> bool:
    of_socket = failure.args and isinstance(failure.args[0], ConnectionError)
    return isinstance(failure, errors.KafkaConnectionError) and bool(of_socket or "disconnected" in str(failure))


def will_not_pass(failure: Exception | None) -> bool:
    """Return true if every other attempt to connect would fail as this one did."""
    return isinstance(failure, _LOGIN_ERRORS) or _of_tls(failure) is not None


def refused(failure: Exception | None, settings: Mapping[str, Any], seconds: float) -> UnreachableError:
    """Return the error for servers that let this client in never (`will_not_pass`), or not within so many seconds of
    waiting. Its text has the properties to set, and the reason.
    """
    protocol = settings.get("security_protocol", "PLAINTEXT")
    limit = "" if will_not_pass(failure) else f" within {seconds:g} s"
    servers = ", ".join(settings.get("bootstrap_servers", ()))
    return UnreachableError(
        f"set {_advice(failure, settings)}: no connection by {protocol} to any of {servers}{limit} ({_words(failure)})"
    )


def _advice(failure: Exception | None, settings: Mapping[str, Any]) -> str:
    if isinstance(failure, (errors.IllegalSaslStateError, errors.UnsupportedSaslMechanismError)):
        return "security.protocol and sasl.mechanism to what the servers have"
    if isinstance(failure, _LOGIN_ERRORS):
        if settings.get("sasl_mechanism") == "OAUTHBEARER":
            return "sasl.oauthbearer.token.endpoint.url to a file with a token that the servers take"
        return "sasl.jaas.config to a user that the servers let in, and the password of that user"
    tls = _of_tls(failure)
    if isinstance(tls, ssl.SSLCertVerificationError):
        if tls.verify_code in _OTHER_NAME:
            return (
                "bootstrap.servers to names that are in the servers' certificate, or "
                "ssl.endpoint.identification.algorithm to nothing"
            )
        return "ssl.truststore.location to the issuer of the servers' certificate"
    if tls is not None and tls.reason == "WRONG_VERSION_NUMBER":
        return "security.protocol to theirs, which is not TLS"
    if tls is not None and "CERTIFICATE" in (tls.reason or ""):
        return "ssl.keystore.location to a certificate that the servers take"
    if tls is not None or "Handshake failed" in str(failure):
        return (
            "ssl.truststore.location to the issuer of the servers' certificate, "
            "ssl.keystore.location to a certificate that they take, and security.protocol to theirs"
        )
    return "bootstrap.servers to servers that answer, and security.protocol to theirs"


def _of_tls(failure: Exception | None) -> ssl.SSLError | None:
    """Return the error of TLS that a failure to connect comes from, or None if that is another error, or may pass."""
    if failure is None:
        return None
    for error in (failure, failure.__context__, *failure.args[:1]):  # in a handshake, and behind it
        if isinstance(error, ssl.SSLError) and not isinstance(error, _PASSING_TLS):
            return None if "INTERNAL_ERROR" in (error.reason or "") else error
    return None


def _words(failure: Exception | None) -> str:
    """Return the words of the server, or of TLS, without kafka-python's names of classes."""
    bare = _PLACE.sub("", _CLASSES.sub("", " ".join(str(failure).split()), count=1)).strip()
    return bare if bare and bare != "None" else type(failure).__name__


class TellingClient(KafkaNetClient):  # type: ignore[misc]
    """The connections of a client of kafka-python (its setting `kafka_client`) that raises UnreachableError at once if
    no server will ever let it in, and KafkaTimeoutError if none answers within `limit_ms`.

    `learns`: true for a consumer, which asks for the servers by itself only if there is no connection yet.
    """

    def __init__(self, *given: Any, limit_ms: int, learns: bool, **configs: Any) -> None:
        super().__init__(*given, **configs)
        try:
            failure = self._manager.run(connect, self._manager, limit_ms)
            if failure is None and learns:
                self._manager.bootstrap(limit_ms)
            if will_not_pass(failure):
                raise refused(failure, self._manager.config, 0)
            if isinstance(failure, errors.KafkaTimeoutError):
                raise failure
        except BaseException:
            self._manager.close()
            self._net.close()
            raise
