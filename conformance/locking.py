"""A gateway whose clients come by TLS and log in: a CA made for the run, one user, and the rights that it needs.

Owns: the two listeners of such a gateway, one for clients, one for requests that are written by hand; who may do what.
Must not know: suites.
"""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

from conformance.security import Security
from conformance.servers import Kop, StartFailed, free_port

USER = "conformance"
SECONDS = 120.0


class Lock:
    """What locks a gateway: settings for its start, then a user and rights. It has a folder of its own."""

    def __init__(self, kop: Kop, folder: Path) -> None:
        self._kop = kop
        self._folder = folder
        self._call("certs", str(folder))
        kop.address, plain = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.security = Security(
            USER,
            secrets.token_hex(16),
            str(folder / "ca.pem"),
            plain,
            truststore=str(folder / "ca.p12"),
            truststore_password=(folder / "password").read_text().strip(),
        )
        kop.more_settings = {
            "listeners": f"SASL_SSL://{kop.address},PLAINTEXT://{plain}",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": self.security.mechanism,
            "listener.name.sasl_ssl.ssl.keystore.location": str(folder / "broker.pem"),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def admit(self) -> Path:
        """Make the user, who may do everything by ACLs, in a gateway that runs; return the file for suites."""
        password, told = self._folder / "of-the-user", self._folder / "security.json"
        password.write_text(self.security.password)
        plain = ["--bootstrap", self.security.plain]
        self._call("users", "create", USER, "--password-file", str(password), *plain)
        rights = ["--topic", "*", "--group", "*", "--transactional-id", "*", "--cluster"]
        self._call("acls", "add", f"User:{USER}", "all", *rights, *plain)
        self.security.write(told)
        return told

    def _call(self, *arguments: str) -> None:
        command = [*self._kop.command(), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        if done.returncode:
            raise StartFailed(f"{' '.join(command[-3:])} failed: {done.stderr.strip()}")
