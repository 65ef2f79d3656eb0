"""A gateway whose clients come by TLS and log in: a CA made for the run, one user, and the rights that it needs.

Owns: the listeners of such a gateway, those for clients and one for requests that are written by hand; who may do what;
the token of the user, and the key by which it is checked.
Must not know: suites.

It makes that key with what `kop` itself needs.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from pathlib import Path

from conformance.security import Security
from conformance.servers import Kop, StartFailed, free_ports

USER = "conformance"
SECONDS = 120.0
TOKEN_SECONDS = 6 * 3600
ISSUER, AUDIENCE = "https://conformance.example/", "kafka"


class Lock:
    """What locks a gateway: settings for its start, then a user and rights. It has a folder of its own."""

    def __init__(self, kop: Kop, folder: Path) -> None:
        self._kop = kop
        self._folder = folder
        self._call("certs", str(folder), "--client", USER)
        first = free_ports(4 * kop.ports)
        addresses = [f"127.0.0.1:{first + number * kop.ports}" for number in range(4)]
        kop.address, plain, with_certificate, without_tls = addresses
        self.security = Security(
            USER,
            secrets.token_hex(16),
            str(folder / "ca.pem"),
            plain,
            truststore=str(folder / "ca.p12"),
            truststore_password=(folder / "password").read_text().strip(),
            keystore=str(folder / f"{USER}.p12"),
            certificate=str(folder / f"{USER}.pem"),
            with_certificate=with_certificate,
            without_tls=without_tls,
            token=str(folder / "token"),
        )
        keys = folder / "keys.json"
        _issue_token(Path(self.security.token), keys)
        listeners = {
            "SASL_SSL": kop.address,
            "SSL": with_certificate,
            "SASL_PLAINTEXT": without_tls,
            "PLAINTEXT": plain,
        }
        tls = {"ssl.keystore.location": str(folder / "broker.pem")}
        of_listeners = {
            "sasl_ssl": tls
            | {
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
                "sasl.oauthbearer.expected.issuer": ISSUER,
                "sasl.oauthbearer.expected.audience": AUDIENCE,
            },
            "ssl": tls
            | {
                "ssl.truststore.location": self.security.ca,
                "ssl.client.auth": "required",
                "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/",
            },
            "sasl_plaintext": {
                "sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER",
                "kop.oauthbearer.allow.unsecured.tokens": "true",
            },
        }
        kop.more_settings = {
            "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            **{
                f"listener.name.{listener}.{name}": value
                for listener, settings in of_listeners.items()
                for name, value in settings.items()
            },
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


def _issue_token(token: Path, keys: Path) -> None:
    """Write a token of the user, and the keys (JWKS) by which it is checked."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    keys.write_text(json.dumps({"keys": [public | {"kid": "1", "alg": "ES256", "use": "sig"}]}))
    now = int(time.time())
    claims = {"sub": USER, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + TOKEN_SECONDS}
    token.write_text(jwt.encode(claims, key, "ES256", {"kid": "1"}))
