"""The access to a Pulsar that wants TLS or credentials.

Owns: the settings' text turned into the client's objects.
Must not know: what is done with the connection.
"""

from __future__ import annotations

from kop.errors import BackendError
from kop.pulsar_client import TlsOptions
from kop.pulsar_client.address import is_in_clear
from kop.pulsar_client.auth import Credentials, parse_auth
from kop.storage.pulsar.settings import PulsarOptions


def tls_of(settings: PulsarOptions) -> TlsOptions:
    """Return the TLS options that the settings give; they are used only for addresses that begin with pulsar+ssl or
    https. An empty text is none.
    """
    return TlsOptions(
        ca_file=settings.kop_pulsar_tls_ca_file or None,
        cert_file=settings.kop_pulsar_tls_cert_file or None,
        key_file=settings.kop_pulsar_tls_key_file or None,
        check_hostname=settings.kop_pulsar_tls_verify_host,
    )


def check_access(settings: PulsarOptions, service_url: str, admin_url: str) -> None:
    """Raise BackendError if the credentials would go to Pulsar's REST in clear text although its service has TLS."""
    if settings.kop_pulsar_auth and is_in_clear(service_url, admin_url):
        raise BackendError(
            f"kop.pulsar.admin.url={admin_url} has no TLS and {service_url} has: the credentials of "
            "kop.pulsar.auth would go there in clear text. Name the REST interface's https URL "
            "(webServicePortTls=8443 in broker.conf)"
        )


def credentials_of(settings: PulsarOptions) -> Credentials | None:
    """Return the credentials, None if the settings have none. BackendError if their text is wrong, with the reason but
    without the text.

    An OAuth2 issuer is trusted by public authorities and by the settings' CA file, since Pulsar's own authority may
    have signed its certificate.
    """
    try:
        return parse_auth(
            settings.kop_pulsar_auth, TlsOptions(ca_file=settings.kop_pulsar_tls_ca_file or None, system_too=True)
        )
    except ValueError as error:
        raise BackendError(f"kop.pulsar.auth: {error}") from None
