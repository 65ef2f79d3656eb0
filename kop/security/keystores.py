"""Keystores and truststores, of type PEM or PKCS12, as text in PEM.

Owns: what Kafka's `ssl.keystore.*` and `ssl.truststore.*` mean, what is wrong with a store.
Must not know: TLS, listeners.

Java's own form, JKS, is not read: `keytool` turns it into PKCS12.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""The first bytes of stores of Java's forms JKS and JCEKS."""


@dataclass(frozen=True, kw_only=True)
class Store:
    """A keystore or truststore as it is set, by Kafka's names; empty for what is not."""

    kind: str
    """`keystore` or `truststore`."""
    type: str = "PEM"
    """PEM or PKCS12."""
    location: str = ""
    certificates: str = ""
    """The certificates themselves, in PEM."""
    key: str = field(default="", repr=False)
    """The key itself, in PEM."""
    password: str = field(default="", repr=False)
    """The password of a store of type PKCS12."""

    @property
    def is_given(self) -> bool:
        """True if any setting of the store is set."""
        return bool(self.location or self.certificates or self.key)


def read(store: Store) -> str:
    """Return the certificates of a store in PEM, and the key of a keystore. ValueError if the store cannot be read, or
    its settings contradict one another.
    """
    prefix = f"ssl.{store.kind}"
    text = "certificate.chain" if store.kind == "keystore" else "certificates"
    if store.location and (store.certificates or store.key):
        raise ValueError(f"{prefix}.location and {prefix}.{text} are both given")
    if not store.location:
        if store.type != "PEM":
            raise ValueError(f"{prefix}.{text} is PEM, and {prefix}.type is {store.type}")
        if store.kind == "keystore" and not (store.certificates and store.key):
            raise ValueError(f"{prefix}.certificate.chain and {prefix}.key go together")
    if store.type == "PEM" and store.password:
        other = "; the password of its key is ssl.key.password" if store.kind == "keystore" else ""
        raise ValueError(f"{prefix}.password is for {prefix}.type=PKCS12: a PEM file has none{other}")
    if not store.location:
        return f"{store.certificates}\n{store.key}\n"
    try:
        data = Path(store.location).read_bytes()
    except OSError as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise ValueError(f"{prefix}.location {Path(store.location).absolute()}: {why}") from None
    try:
        if data.startswith(_JKS):
            raise ValueError(of_java(store.kind, store.location))
        return _pem(store, data) if store.type == "PEM" else _pkcs12(store, data)
    except ValueError as error:
        raise ValueError(f"{prefix}.location {store.location}: {error}") from None


def of_java(kind: str, location: str = "STORE") -> str:
    """Return the advice, for an error, how to convert a store of Java's own form; `kind` is keystore or truststore."""
    return (
        f"JKS is Java's own form, which is not read here; convert it: keytool -importkeystore -srckeystore {location} "
        f"-destkeystore {location}.p12 -deststoretype PKCS12, then set ssl.{kind}.type=PKCS12"
    )


def _pem(store: Store, data: bytes) -> str:
    if b"-----BEGIN " not in data:
        raise ValueError("it is not PEM; for a store of type PKCS12 set its type")
    return data.decode("ascii", errors="ignore")  # comments may be anything


def _pkcs12(store: Store, data: bytes) -> str:
    if data.lstrip().startswith(b"-----BEGIN "):
        raise ValueError(f"it is PEM: set ssl.{store.kind}.type=PEM")
    if not data.startswith(b"\x30"):
        raise ValueError("it is not PKCS12")
    # A tenth of a second to import, and only for this.
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        Encoding,
        NoEncryption,
        PrivateFormat,
        pkcs12,
    )

    try:
        loaded = pkcs12.load_pkcs12(data, store.password.encode() if store.password else None)
    except (ValueError, TypeError):
        raise ValueError(
            f"ssl.{store.kind}.password is {'wrong' if store.password else 'missing'}, or the file is broken"
        ) from None
    others = [each.certificate for each in loaded.additional_certs]
    if store.kind == "truststore":
        if loaded.cert is not None:
            others.insert(0, loaded.cert.certificate)
        if not others:
            raise ValueError("there is no certificate in it")
        return "".join(each.public_bytes(Encoding.PEM).decode() for each in others)
    if loaded.key is None or loaded.cert is None:
        raise ValueError("there is no key with its certificate in it")
    chain = [loaded.cert.certificate]
    # The others lie in any order, and may have nothing to do with it.
    while (above := next((each for each in others if each.subject == chain[-1].issuer), None)) is not None:
        others.remove(above)
        chain.append(above)
    key = loaded.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return "".join(each.public_bytes(Encoding.PEM).decode() for each in chain) + key.decode()
