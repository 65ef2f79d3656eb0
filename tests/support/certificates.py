"""Certificates for tests, made with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(folder: Path, name: str, subject: str) -> tuple[str, str]:
    """A self-signed certificate and its key, NAME.pem and NAME.key; `subject` is its subjectAltName."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-keyout", str(key), "-out", str(cert), "-subj", "/CN=kop test"]
    subprocess.run([*command, "-addext", f"subjectAltName={subject}"], check=True, capture_output=True)
    return str(cert), str(key)
