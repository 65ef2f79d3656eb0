"""A CA of one's own and certificates of it, to try out and for tests.

Owns: what such certificates have in them; their forms in PEM and PKCS12.
Must not know: files, who needs them.

It takes a tenth of a second to import: whoever may do without imports it where it is needed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12Certificate,
    serialize_java_truststore,
    serialize_key_and_certificates,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kop import clock


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        """The certificate in PEM."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The certificate's key in PEM, not encrypted."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def pkcs12(self, ca: Issued, password: str) -> bytes:
        """Return the certificate, its key and its CA's certificate as a keystore of type PKCS12, encrypted by the
        password.
        """
        encryption = BestAvailableEncryption(password.encode())
        return serialize_key_and_certificates(b"kop", self.key, self.certificate, [ca.certificate], encryption)


def truststore(ca: Issued, password: str) -> bytes:
    """Return a truststore of type PKCS12, as Java reads it, with the certificate of the CA."""
    return serialize_java_truststore(
        [PKCS12Certificate(ca.certificate, b"ca")], BestAvailableEncryption(password.encode())
    )


def issue(
    name: str, ca: Issued | None, begins: datetime, ends: datetime, *, hosts: Sequence[str] = (), is_ca: bool = False
) -> Issued:
    """Make a key and a certificate for the common name `name`; without a CA it is signed by its own key.

    One with `hosts`, names or IP addresses, is for servers and clients, as brokers need it; one without for clients.
    With `is_ca` it may sign others, and nothing else.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signing = key if ca is None else ca.key
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if ca is None else ca.certificate.subject)
        .public_key(key.public_key())
        .serial_number(int(clock.token_hex(16), 16) | 1)
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_ca,
                key_cert_sign=is_ca,
                crl_sign=is_ca,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if hosts:
        names = [x509.IPAddress(address) if (address := ip_address(host)) else x509.DNSName(host) for host in hosts]
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if not is_ca:
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        made = made.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return Issued(made.sign(signing, hashes.SHA256()), key)


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a text is; None if the text is a host name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
