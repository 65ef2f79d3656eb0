"""How clients log in at a listener that asks for it, in the words of each client.

Owns: the file that suites are given (`--security`), what each client makes of it. The standard library alone: suites
use it inside of the venv of the clients.
Must not know: servers.
"""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any, NamedTuple


class Security(NamedTuple):
    """What a client needs to get in."""

    user: str
    password: str
    ca: str
    """The file of the CA that signed the server's certificate, PEM."""
    plain: str
    """HOST:PORT of a listener of the same server that asks for nothing: for those who read sockets by hand."""
    truststore: str = ""
    """The same CA as PKCS12, for Java before 2.7, which reads no PEM."""
    truststore_password: str = ""
    protocol: str = "SASL_SSL"
    mechanism: str = "SCRAM-SHA-512"

    def write(self, path: Path) -> None:
        """Write the file for suites."""
        path.write_text(json.dumps(self._asdict()))

    def librdkafka(self) -> dict[str, Any]:
        """Return librdkafka's settings."""
        return {
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
            "ssl.ca.location": self.ca,
        }

    def kafka_python(self) -> dict[str, Any]:
        """Return kafka-python's arguments."""
        return {
            "security_protocol": self.protocol,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
            "ssl_cafile": self.ca,
        }

    def aiokafka(self) -> dict[str, Any]:
        """Return aiokafka's arguments."""
        arguments = self.kafka_python()
        arguments["ssl_context"] = ssl.create_default_context(cafile=arguments.pop("ssl_cafile"))
        return arguments

    def java(self, *, pem: bool = True) -> dict[str, str]:
        """Return the properties of Kafka's own clients, and of all that take them; without `pem` for old ones."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return {
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": f'{module} required username="{self.user}" password="{self.password}";',
            "ssl.truststore.type": "PEM" if pem else "PKCS12",
            "ssl.truststore.location": self.ca if pem else self.truststore,
            **({} if pem else {"ssl.truststore.password": self.truststore_password}),
        }


def read(path: str) -> Security | None:
    """Return what a file says, None without one."""
    return Security(**json.loads(Path(path).read_text())) if path else None
