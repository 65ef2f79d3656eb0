"""The certificates of a listener and what is trusted on the way to other brokers, as contexts of Python's `ssl`.

Owns: reading PEM by Kafka's `ssl.*` settings, from files or from the settings themselves; reading it again once a file
has changed.
Must not know: sockets, handshakes (`kop.server.tls`).
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kop.errors import ConfigError

log = logging.getLogger(__name__)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """The `ssl.*` settings of one listener, by Kafka's names; empty for those that are not set."""

    keystore_location: str = ""
    keystore_chain: str = ""
    keystore_key: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    truststore_location: str = ""
    truststore_certificates: str = ""
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    check_hostname: bool = True
    """True if the name of a server is looked for in its certificate, on the way to other brokers."""


MakeContext: TypeAlias = Callable[[str, TlsFiles], ssl.SSLContext]


class TlsContext:
    """A context that is made anew if its file has changed. ConfigError if it cannot be made at the start."""

    def __init__(
        self, name: str, options: TlsFiles, make: Callable[[str, TlsFiles], ssl.SSLContext], file: str
    ) -> None:
        """`make` makes the context, of `file` if that is not empty."""
        self._name = name
        self._options = options
        self._make = make
        self._file = file
        self._seen = _stamp_of(file)
        self.context = make(name, options)
        """The context for connections from now on."""

    def look(self) -> None:
        """Read the file again if it has changed. If it is wrong what was read before stays, with a log line."""
        stamp = _stamp_of(self._file)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self.context = self._make(self._name, self._options)
        except ConfigError as error:
            log.error("listener %s goes on with the old content of %s: %s", self._name, self._file, error)
        else:
            log.info("listener %s has read %s again, for connections from now on", self._name, self._file)


def of_listener(name: str, options: TlsFiles) -> TlsContext:
    """Return the context by which a listener shows its certificate."""
    return TlsContext(name, options, server_context, options.keystore_location)


def of_caller(name: str, options: TlsFiles) -> TlsContext:
    """Return the context by which a broker calls a listener of others."""
    return TlsContext(name, options, client_context, options.truststore_location)


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    """Return what changes with the content of a file; None if it is not there."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def server_context(name: str, options: TlsFiles) -> ssl.SSLContext:
    """Return the context of a listener. ConfigError names the setting that is wrong."""
    prefix = f"listener {name}: "
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _choose(context, options, prefix)
    if not options.keystore_location and not (options.keystore_chain and options.keystore_key):
        raise ConfigError(
            [f"{prefix}TLS needs ssl.keystore.location, or ssl.keystore.certificate.chain and ssl.keystore.key"]
        )
    # The library refuses to renegotiate and compresses nothing; both have been ways in.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # A client that goes without TLS's own end still gets its answers: requests have lengths, so nothing is cut unseen.
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    _load_chain(context, options, prefix)
    return context


def client_context(name: str, options: TlsFiles) -> ssl.SSLContext:
    """Return the context for connections to other brokers, which trusts `ssl.truststore.*`, else the system's CAs."""
    prefix = f"listener {name}: "
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _choose(context, options, prefix)
    context.check_hostname = options.check_hostname
    try:
        if options.truststore_certificates:
            context.load_verify_locations(cadata=options.truststore_certificates)
        elif options.truststore_location:
            context.load_verify_locations(options.truststore_location)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    except (OSError, ValueError) as error:
        raise ConfigError([f"{prefix}ssl.truststore cannot be read, PEM is wanted: {_why(error)}"]) from None
    return context


def _choose(context: ssl.SSLContext, options: TlsFiles, prefix: str) -> None:
    unknown = [name for name in options.enabled_protocols if name not in _VERSIONS]
    if unknown or not options.enabled_protocols:
        raise ConfigError([f"{prefix}ssl.enabled.protocols has to be of {', '.join(_VERSIONS)}"])
    versions = [_VERSIONS[name] for name in options.enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if options.cipher_suites:
        # Those of TLS 1.3 cannot be chosen in Python: all of them are in force.
        try:
            context.set_ciphers(":".join(_openssl_name(suite) for suite in options.cipher_suites))
        except ssl.SSLError:
            raise ConfigError([f"{prefix}ssl.cipher.suites has none that is known here"]) from None


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a suite of TLS 1.2 that is given by Java's; one that is OpenSSL's stays as it is."""
    if not suite.startswith("TLS_") or "_WITH_" not in suite:
        return suite
    exchange, _, rest = suite.removeprefix("TLS_").partition("_WITH_")
    name = rest.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("CHACHA20_POLY1305_SHA256", "CHACHA")
    return f"{exchange}-{name}".replace("_", "-").replace("CHACHA", "CHACHA20-POLY1305")


def _load_chain(context: ssl.SSLContext, options: TlsFiles, prefix: str) -> None:
    def password() -> str:
        # Called for an encrypted key alone. Without an answer OpenSSL would ask at the terminal.
        return options.key_password

    try:
        if options.keystore_location:
            context.load_cert_chain(options.keystore_location, password=password)
            return
        # The library takes files alone; this one has no name in any folder, and is gone when it is closed.
        with tempfile.TemporaryFile() as file:
            file.write(f"{options.keystore_chain}\n{options.keystore_key}\n".encode())
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            [f"{prefix}ssl.keystore cannot be used, PEM with a certificate and its key is wanted: {_why(error)}"]
        ) from None


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key is not the one of the certificate"
    if reason in {"BAD_DECRYPT", "BAD_PASSWORD_READ"}:
        return "ssl.key.password is wrong or missing"
    return str(reason or error)
