"""TLS towards brokers.

Owns: the settings of TLS and the context made of them.
Must not know: connections.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from kop.pulsar_client.errors import PulsarError


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The settings by which brokers are told from impostors; the files are PEM."""

    ca_file: str | None = None
    """The file of the authorities that are trusted; None for the system's."""
    cert_file: str | None = None
    key_file: str | None = None
    """The files of the client's own certificate and key, if the broker wants one; the key without a passphrase."""
    check_hostname: bool = True
    server_hostname: str | None = None
    """The name that the broker's certificate must carry, if not that of the address."""
    insecure: bool = False
    """True to trust any certificate, for trials."""
    system_too: bool = False
    """True to trust the system's authorities beside those of `ca_file`."""

    def _no_passphrase(self) -> bytes:
        """Raise PulsarError TlsError for an encrypted key; without this callback OpenSSL would ask at the terminal."""
        raise PulsarError(
            "TlsError",
            f"the private key {self.key_file or self.cert_file} is encrypted: give one without a passphrase "
            "(openssl pkey -in KEY -out PLAIN-KEY), readable by this user alone",
        )

    def context(self) -> ssl.SSLContext:
        """Make the TLS context; it blocks on reading files. PulsarError TlsError if a file cannot be used, with its
        name.
        """
        try:
            context = ssl.create_default_context(
                ssl.Purpose.SERVER_AUTH, cafile=None if self.system_too else self.ca_file
            )
            if self.system_too and self.ca_file is not None:
                context.load_verify_locations(self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise PulsarError("TlsError", f"the file of trusted certificates {self.ca_file}: {error}") from error
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file, self.key_file, self._no_passphrase)
            except (OSError, ssl.SSLError) as error:
                raise PulsarError("TlsError", f"the client's certificate {self.cert_file}: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname and not self.insecure
        if self.insecure:
            context.verify_mode = ssl.CERT_NONE
        return context
