"""The certificates of a listener and what is trusted on the way to other brokers, as contexts of Python's `ssl`.

Owns: what Kafka's `ssl.*` settings are to OpenSSL; reading stores again once their files have changed; how long their
certificates still hold.
Must not know: sockets, handshakes (`kop.server.tls`), what is in a file (`keystores.py`).
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Final, NamedTuple, TypeAlias

from kop import clock
from kop.errors import ConfigError
from kop.security.certificates import Certificate, of_pem
from kop.security.keystores import Store, read

log = logging.getLogger(__name__)

WARNED_DAYS: Final = 14
"""A certificate that holds for fewer days than these gets a log line each day."""
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_SUITES_OF_1_3: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
"""All of TLS 1.3: Python cannot choose among them."""
CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
"""The constants of Python for the values of `ssl.client.auth`."""


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """The `ssl.*` settings of one listener, by Kafka's names."""

    keystore: Store = field(default_factory=lambda: Store(kind="keystore"))
    key_password: str = field(default="", repr=False)
    truststore: Store = field(default_factory=lambda: Store(kind="truststore"))
    client_auth: str = "none"
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    check_hostname: bool = True
    """True if the name of a server is looked for in its certificate, on the way to other brokers."""


class StoredCertificate(NamedTuple):
    """A certificate that is shown or trusted."""

    store: str
    """`keystore` or `truststore`."""
    certificate: Certificate


MakeContext: TypeAlias = Callable[[TlsFiles], tuple[ssl.SSLContext, list[StoredCertificate]]]


class TlsContext:
    """A context that is made anew if a file of it has changed. ConfigError if it cannot be made at the start. `make`
    is `server_context` for a listener, `client_context` for the way to another broker's.
    """

    def __init__(self, name: str, options: TlsFiles, make: MakeContext) -> None:
        self.name = name
        """The listener's name."""
        self._options = options
        self._make = make
        self._files = [store.location for store in (options.keystore, options.truststore) if store.location]
        self._seen = self._stamps()
        self._warned: dict[StoredCertificate, int] = {}
        try:
            self.context, self.certificates = make(options)
        except ValueError as error:
            raise ConfigError([f"listener {name}: {error}"]) from None

    context: ssl.SSLContext
    """The context for connections from now on."""
    certificates: list[StoredCertificate]
    """The certificates that it was made of."""

    def look(self) -> None:
        """Read the files again if they have changed, and make the context anew; if they are wrong, keep the old one and
        log that. Log certificates that hold for fewer than 14 days.
        """
        stamps = self._stamps()
        if stamps != self._seen:
            self._seen = stamps
            files = " and ".join(self._files)
            try:
                self.context, self.certificates = self._make(self._options)
            except ValueError as error:
                log.error("listener %s goes on with the old content of %s: %s", self.name, files, error)
            else:
                log.info("listener %s has read %s again, for connections from now on", self.name, files)
        self._warn(clock.wall())

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp_of(path) for path in self._files]

    def _warn(self, now: float) -> None:
        """Log each certificate that holds for fewer than 14 days at `now` (seconds since the epoch), once a day."""
        for stored in self.certificates:
            days = stored.certificate.days_left(now)
            if days < WARNED_DAYS and self._warned.get(stored) != int(days):
                self._warned[stored] = int(days)
                log.warning(
                    "listener %s: the certificate %r of ssl.%s %s",
                    self.name,
                    stored.certificate.subject,
                    stored.store,
                    f"ends in {days:.1f} days" if days > 0 else "has expired",
                )


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    """Return numbers that change if the content of a file does; None if there is no such file."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def server_context(options: TlsFiles) -> tuple[ssl.SSLContext, list[StoredCertificate]]:
    """Return the context of a listener, and its certificates. ValueError if a setting is wrong, with its name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _choose(context, options)
    if not options.keystore.is_given:
        raise ValueError("TLS needs ssl.keystore.location, or ssl.keystore.certificate.chain and ssl.keystore.key")
    # The library refuses to renegotiate and compresses nothing; both have been ways in.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # A client that goes without TLS's own end still gets its answers: requests have lengths, so nothing is cut unseen.
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    stored = _load_chain(context, options)
    if options.client_auth != "none":
        if not options.truststore.is_given:
            raise ValueError(
                f"ssl.client.auth={options.client_auth} needs ssl.truststore.location or ssl.truststore.certificates: "
                "without them a certificate of any public CA would do"
            )
        context.verify_mode = CLIENT_AUTH[options.client_auth]
        # A session that is resumed is not checked again. Of TLS 1.2 the library always resumes them: `kop.server.tls`
        # looks at their certificates.
        context.num_tickets = 0
        stored += _trust(context, options)
    return context, stored


def client_context(options: TlsFiles) -> tuple[ssl.SSLContext, list[StoredCertificate]]:
    """Return the context for connections to other brokers, which trusts `ssl.truststore.*`, else the system's CAs, and
    shows the certificate of `ssl.keystore.*`; and its certificates. ValueError if a setting is wrong, with its name.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _choose(context, options)
    context.check_hostname = options.check_hostname
    stored = _load_chain(context, options) if options.keystore.is_given else []
    if options.truststore.is_given:
        stored += _trust(context, options)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context, stored


def _choose(context: ssl.SSLContext, options: TlsFiles) -> None:
    unknown = [name for name in options.enabled_protocols if name not in _VERSIONS]
    if unknown or not options.enabled_protocols:
        raise ValueError(
            f"ssl.enabled.protocols has to be of {', '.join(_VERSIONS)}, and has {', '.join(unknown) or 'none'}"
        )
    protocols = list(options.enabled_protocols)
    suites = [suite for suite in options.cipher_suites if suite not in _SUITES_OF_1_3]
    of_1_3 = [suite for suite in options.cipher_suites if suite in _SUITES_OF_1_3]
    if of_1_3 and len(of_1_3) < len(_SUITES_OF_1_3):
        raise ValueError(
            f"ssl.cipher.suites has {', '.join(of_1_3)}; of TLSv1.3 all or none can be had: name "
            f"{', '.join(_SUITES_OF_1_3)}, or none of them"
        )
    if options.cipher_suites:
        # As in Java, a version of which no suite is named is not spoken.
        protocols = [name for name in protocols if (of_1_3 if name == "TLSv1.3" else suites)]
        if not protocols:
            raise ValueError("ssl.cipher.suites has none of the versions in ssl.enabled.protocols")
    versions = [_VERSIONS[name] for name in protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if not suites:
        return
    names = [_openssl_name(suite) for suite in suites]
    unknown = [suite for suite, name in zip(suites, names, strict=True) if not _is_suite(name)]
    if unknown:
        raise ValueError(f"ssl.cipher.suites has {', '.join(unknown)}, not known here; openssl ciphers lists those")
    context.set_ciphers(":".join(names))


def _is_suite(name: str) -> bool:
    """Return true if OpenSSL has a suite of exactly this name. OpenSSL itself ignores names that it does not know, and
    takes words such as ALL for many suites.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.set_ciphers(name)
    except ssl.SSLError:
        return False
    return any(cipher["name"] == name for cipher in context.get_ciphers())


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name for a suite of TLS 1.2 that is given by Java's name; OpenSSL's names are returned as they
    are.
    """
    if not suite.startswith("TLS_") or "_WITH_" not in suite:
        return suite
    exchange, _, rest = suite.removeprefix("TLS_").partition("_WITH_")
    name = rest.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "").replace("_", "-")
    name = name.replace("CHACHA20-POLY1305-SHA256", "CHACHA20-POLY1305")
    return name if exchange == "RSA" else f"{exchange}-{name}".replace("_", "-")


def _load_chain(context: ssl.SSLContext, options: TlsFiles) -> list[StoredCertificate]:
    def password() -> str:
        # Called for an encrypted key alone. Without an answer OpenSSL would ask at the terminal.
        return options.key_password

    text = read(options.keystore)
    what = f"ssl.keystore {options.keystore.location}".rstrip()
    try:
        certificates = of_pem(text)
        if not certificates or "PRIVATE KEY-----" not in text:
            raise ValueError(f"there is no {'key' if certificates else 'certificate'} in it")
        if "ENCRYPTED" in text and not options.key_password:
            raise ValueError("ssl.key.password is missing")
        with _file_in_memory() as file:
            file.write(text.encode())
            file.flush()
            context.load_cert_chain(f"/dev/fd/{file.fileno()}", password=password)
    except (OSError, ValueError) as error:
        why = "the key is broken" if "ENCRYPTED" not in text else "ssl.key.password is wrong"
        raise ValueError(f"{what} cannot be used, a certificate with its key is wanted: {_why(error, why)}") from None
    own, now = certificates[0], clock.wall()
    if own.days_left(now) <= 0:
        raise ValueError(f"{what}: the certificate {own.subject!r} has expired")
    if own.begins > now:
        raise ValueError(f"{what}: the certificate {own.subject!r} is not valid yet; see that the clock is right")
    return [StoredCertificate("keystore", certificate) for certificate in certificates]


def _file_in_memory() -> IO[bytes]:
    """Return a file in memory, without a path: OpenSSL takes keys from files only."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("keystore"), "w+b")
    return tempfile.TemporaryFile()


def _trust(context: ssl.SSLContext, options: TlsFiles) -> list[StoredCertificate]:
    text = read(options.truststore)
    try:
        certificates = of_pem(text)
        if not certificates:
            raise ValueError("there is no certificate in it")
        context.load_verify_locations(cadata=text)
    except (OSError, ValueError) as error:
        what = f"ssl.truststore {options.truststore.location}".rstrip()
        raise ValueError(f"{what} cannot be read, certificates of CAs are wanted: {_why(error)}") from None
    # As in Java, each certificate in it is trusted by itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return [StoredCertificate("truststore", certificate) for certificate in certificates]


def _why(error: Exception, unless_known: str = "") -> str:
    if not isinstance(error, ssl.SSLError):
        return str(error)
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not the one of the certificate"
    return unless_known or error.reason or str(error)
