"""`kop certs`: a CA of one's own, and certificates of it, to try TLS out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kop import clock
from kop.cli.common import CliUsageError, fail

if TYPE_CHECKING:
    from kop.security.issuing import Issued

EPILOG = """\b
Examples:
  kop certs tls
  kop certs tls --host kafka.example --host 10.0.0.7
  kop certs tls --client alice --client app

\b
A key that anybody may have seen protects nothing: for more than a trial
let a CA of your own, or cert-manager, make certificates."""

CA, BROKER, PASSWORD = "ca", "broker", "password"
LOCAL = ("localhost", "127.0.0.1", "::1")
MAPPING = "RULE:^CN=([A-Za-z0-9._-]+)$/$1/,DEFAULT"
"""Makes the names of users of the subjects that are written here."""


@click.command("certs", epilog=EPILOG)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name or address by which clients reach the broker; repeat it for more. localhost is always among them.",
)
@click.option(
    "--client",
    "clients",
    metavar="NAME",
    multiple=True,
    help="A client that gets a certificate of its own, to log in with; repeat it for more.",
)
@click.option(
    "--days", type=click.IntRange(1, 3650), default=90, show_default=True, help="Days for which certificates hold."
)
def command(folder: Path, hosts: tuple[str, ...], clients: tuple[str, ...], days: int) -> None:
    """Make a CA, a broker's certificate and clients' to try out, as PEM and PKCS12, and say what to set.

    The properties of each client are in DIR/NAME.properties, too, without --client in DIR/ca.properties, for
    --client-config. What is in DIR already stays: remove a file to have it made anew.
    """
    from kop.security.issuing import ip_address

    for name in clients:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name) or name in {CA, BROKER, PASSWORD}:
            raise CliUsageError(f"--client: {name!r} has to be of letters, digits, - and _, and not {BROKER}")
    for host in hosts:
        if ip_address(host) is None and not re.fullmatch(r"[A-Za-z0-9*._-]+", host):
            raise CliUsageError(f"--host: {host!r} is neither a name nor an address")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(folder, list(dict.fromkeys((*hosts, *LOCAL))), clients, days)
        shown = hosts[0] if hosts else LOCAL[0]
        properties = {name: _client_properties(folder.absolute(), shown, name) for name in clients or (CA,)}
        for name, lines in properties.items():
            if not (file := folder / f"{name}.properties").exists():
                _write(file, "".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    click.echo(_what_to_set(folder.absolute(), shown, clients, properties))


def _make(folder: Path, hosts: Sequence[str], clients: Sequence[str], days: int) -> None:
    from kop.security.issuing import issue, truststore

    begins = datetime.fromtimestamp(clock.wall(), UTC) - timedelta(hours=1)  # clocks differ
    ends = begins + timedelta(days=days, hours=1)
    if not (folder / f"{CA}.key").exists():
        made = issue("kop trial CA", None, begins, ends + timedelta(days=3650), is_ca=True)
        _write(folder / f"{CA}.key", made.key_pem)
        _write(folder / f"{CA}.pem", made.pem)
    if not (folder / PASSWORD).exists():
        _write(folder / PASSWORD, clock.token_hex(12).encode())
    ca, password = _authority(folder), (folder / PASSWORD).read_text().strip()
    if not (folder / f"{CA}.p12").exists():
        _write(folder / f"{CA}.p12", truststore(ca, password))
    for name in (BROKER, *clients):
        if (folder / f"{name}.pem").exists():
            click.echo(f"{name}.pem is there already", err=True)
            continue
        made = issue(name, ca, begins, ends, hosts=hosts if name == BROKER else ())
        _write(folder / f"{name}.p12", made.pkcs12(ca, password))
        _write(folder / f"{name}.pem", made.pem + ca.pem + made.key_pem)


def _authority(folder: Path) -> Issued:
    """Return the CA that is in the folder, certificate and key. The command ends if they are not those of `kop
    certs`.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    from kop.security.issuing import Issued

    try:
        key = load_pem_private_key((folder / f"{CA}.key").read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((folder / f"{CA}.pem").read_bytes())
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        fail(f"{folder / CA}.pem and {CA}.key are not those of kop certs")
    return Issued(certificate, key)


def _write(path: Path, data: bytes) -> None:
    """Write a file that its owner alone may read, whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    temporary.replace(path)


def _client_properties(folder: Path, host: str, name: str) -> list[str]:
    """Return the lines of a client's file of properties; `name` is that of its certificate, or CA if it has none."""
    lines = [
        f"bootstrap.servers={_shown(host)}:9093",
        "security.protocol=SSL",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={folder}/{CA}.pem",
    ]
    if name != CA:
        lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={folder}/{name}.pem"]
    return lines


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _what_to_set(folder: Path, host: str, clients: Sequence[str], properties: Mapping[str, Sequence[str]]) -> str:
    lines = [
        "# The broker: in the file of kop serve --config. Whom this lets in may do everything, as long as",
        "# authorizer.class.name and super.users are not set: docs/security.md",
        'listeners = "SSL://0.0.0.0:9093"',
        f'"advertised.listeners" = "SSL://{_shown(host)}:9093"',
        f'"ssl.keystore.location" = "{folder}/{BROKER}.pem"',
        f'"ssl.truststore.location" = "{folder}/{CA}.pem"',
    ]
    if clients:
        lines += ['"ssl.client.auth" = "required"', f'"ssl.principal.mapping.rules" = "{MAPPING}"']
    for name, of_client in properties.items():
        who = "A client" if name == CA else f"The client {name}, who is User:{name}"
        lines += ["", f"# {who}: {folder}/{name}.properties has this", *of_client]
    lines += [
        "",
        f"# The same of type PKCS12: {BROKER}.p12{''.join(f', {name}.p12' for name in clients)}; truststore {CA}.p12;",
        f"# the password of all is in {folder}/{PASSWORD}",
    ]
    if clients:
        lines += [
            f"# librdkafka: ssl.ca.location={folder}/{CA}.pem, and ssl.certificate.location and ssl.key.location, both "
            f"{folder}/{clients[0]}.pem",
        ]
    return "\n".join(lines)
