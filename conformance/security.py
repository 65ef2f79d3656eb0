"""How clients log in at a listener that asks for it, in the words of each client.

Owns: the file that suites are given (`--security`), what each client makes of it. The standard library alone: suites
use it inside of the venv of the clients.
Must not know: servers.
"""

from __future__ import annotations

import json
import ssl
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

MTLS: Final = "mTLS"
"""What a table of mechanisms calls a certificate of the client's."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", MTLS)


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
    keystore: str = ""
    """The certificate and the key of the user as PKCS12."""
    truststore_password: str = ""
    """That of both."""
    certificate: str = ""
    """The file with the certificate and the key of the user, PEM."""
    with_certificate: str = ""
    """HOST:PORT of a listener of the same server to which the user shows that certificate."""
    without_tls: str = ""
    """HOST:PORT of one without TLS (SASL_PLAINTEXT), with SCRAM-SHA-256, and OAUTHBEARER that takes unsigned tokens."""
    token: str = ""
    """The file with a token of the user, for OAUTHBEARER."""
    protocol: str = "SASL_SSL"
    mechanism: str = "SCRAM-SHA-256"

    def by(self, mechanism: str) -> Security | None:
        """Return what a client needs to get in by one of `MECHANISMS`; None if nothing is said of that."""
        if mechanism == MTLS:
            return self._replace(protocol="SSL", mechanism="") if self.with_certificate else None
        if mechanism == "OAUTHBEARER" and not self.token:
            return None
        return self._replace(mechanism=mechanism)

    def address(self, bootstrap: str) -> str:
        """Return where such a client gets in, given the address of the listener with SASL_SSL."""
        return bootstrap if self.mechanism else self.with_certificate

    def write(self, path: Path) -> None:
        """Write the file for suites."""
        path.write_text(json.dumps(self._asdict()))

    def _token(self) -> str:
        return Path(self.token).read_text()

    def librdkafka(self) -> dict[str, Any]:
        """Return librdkafka's settings."""
        settings: dict[str, Any] = {"security.protocol": self.protocol, "ssl.ca.location": self.ca}
        if not self.mechanism:
            return settings | {"ssl.certificate.location": self.certificate, "ssl.key.location": self.certificate}
        settings["sasl.mechanism"] = self.mechanism
        if self.mechanism == "OAUTHBEARER":
            return settings | {"oauth_cb": lambda _: (self._token(), time.time() + 3600)}
        return settings | {"sasl.username": self.user, "sasl.password": self.password}

    def kafka_python(self) -> dict[str, Any]:
        """Return kafka-python's arguments; its token provider has to be of a class of its own."""
        settings: dict[str, Any] = {"security_protocol": self.protocol, "ssl_cafile": self.ca}
        if not self.mechanism:
            return settings | {"ssl_certfile": self.certificate, "ssl_keyfile": self.certificate}
        settings["sasl_mechanism"] = self.mechanism
        if self.mechanism == "OAUTHBEARER":
            from kafka.net.sasl.oauth import AbstractTokenProvider

            provider = type("Tokens", (AbstractTokenProvider,), {"token": lambda _: self._token()})
            return settings | {"sasl_oauth_token_provider": provider()}
        return settings | {"sasl_plain_username": self.user, "sasl_plain_password": self.password}

    def aiokafka(self) -> dict[str, Any]:
        """Return aiokafka's arguments; its token provider has to be of a class of its own."""
        settings: dict[str, Any] = {"security_protocol": self.protocol}
        settings["ssl_context"] = context = ssl.create_default_context(cafile=self.ca)
        if not self.mechanism:
            context.load_cert_chain(self.certificate)
            return settings
        settings["sasl_mechanism"] = self.mechanism
        if self.mechanism == "OAUTHBEARER":
            from aiokafka.abc import AbstractTokenProvider

            async def token(_: object) -> str:
                return self._token()

            return settings | {
                "sasl_oauth_token_provider": type("Tokens", (AbstractTokenProvider,), {"token": token})()
            }
        return settings | {"sasl_plain_username": self.user, "sasl_plain_password": self.password}

    def java(self, *, pem: bool = True) -> dict[str, str]:
        """Return the properties of Kafka's own clients, and of all that take them; without `pem` for old ones."""
        settings = {
            "security.protocol": self.protocol,
            "ssl.truststore.type": "PEM" if pem else "PKCS12",
            "ssl.truststore.location": self.ca if pem else self.truststore,
            **({} if pem else {"ssl.truststore.password": self.truststore_password}),
        }
        if not self.mechanism:
            kind, path = ("PEM", self.certificate) if pem else ("PKCS12", self.keystore)
            settings |= {"ssl.keystore.type": kind, "ssl.keystore.location": path}
            password = {"ssl.keystore.password": self.truststore_password, "ssl.key.password": self.truststore_password}
            return settings | ({} if pem else password)
        settings["sasl.mechanism"] = self.mechanism
        package = "org.apache.kafka.common.security"
        if self.mechanism == "OAUTHBEARER":
            module = f"{package}.oauthbearer.OAuthBearerLoginModule"
            return settings | {
                "sasl.jaas.config": f"{module} required;",
                "sasl.login.callback.handler.class": f"{package}.oauthbearer.OAuthBearerLoginCallbackHandler",
                "sasl.oauthbearer.token.endpoint.url": Path(self.token).as_uri(),
            }
        module = "plain.PlainLoginModule" if self.mechanism == "PLAIN" else "scram.ScramLoginModule"
        login = f'{package}.{module} required username="{self.user}" password="{self.password}";'
        return settings | {"sasl.jaas.config": login}


def read(path: str) -> Security | None:
    """Return what a file says, None without one."""
    return Security(**json.loads(Path(path).read_text())) if path else None
