"""Certificates for tests, made with openssl or by `kop certs`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from kop.cli.certs import LOCAL
from kop.security.issuing import Issued, issue

NOW: Final = datetime.now(UTC)
DAY: Final = timedelta(days=1)


def self_signed(folder: Path, name: str, subject: str) -> tuple[str, str]:
    """A self-signed certificate and its key, NAME.pem and NAME.key; `subject` is its subjectAltName."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-keyout", str(key), "-out", str(cert), "-subj", "/CN=kop test"]
    subprocess.run([*command, "-addext", f"subjectAltName={subject}"], check=True, capture_output=True)
    return str(cert), str(key)


class Authority:
    """A CA in a folder, and certificates of it."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.issued = issue(f"{name} of tests", None, NOW - DAY, NOW + DAY, is_ca=True)
        self.pem = self.write(f"{name}.pem", self.issued.pem)

    def issue(self, name: str, *, days: tuple[float, float] = (-1, 1), hosts: Sequence[str] = LOCAL) -> Issued:
        """A certificate from the first to the second of `days`, counted from now on."""
        return issue(name, self.issued, NOW + days[0] * DAY, NOW + days[1] * DAY, hosts=hosts)

    def keystore(self, name: str, *, days: tuple[float, float] = (-1, 1), hosts: Sequence[str] = LOCAL) -> str:
        """The path of a certificate, its CA and its key, in a file."""
        made = self.issue(name, days=days, hosts=hosts)
        return self.write(f"{name}.pem", made.pem + self.issued.pem + made.key_pem)

    def write(self, name: str, content: bytes) -> str:
        """The path of a file with this content."""
        path = self.folder / name
        path.write_bytes(content)
        return str(path)
