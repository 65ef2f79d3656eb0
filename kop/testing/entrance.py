"""The demands of a test's broker on its clients: users with passwords, TLS with a certificate of a CA of its own.

Owns: the settings of such a listener, the CA and the file of its certificate, how users get into a broker.
Must not know: pytest, how a login goes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from kop import clock
from kop.security.records import of_user
from kop.security.state import SecurityState
from kop.security.users import LEAST_ITERATIONS, Mechanism, ScramCredential

HOSTS: Final = ("127.0.0.1", "localhost", "::1")
_BEFORE, _AFTER = timedelta(days=1), timedelta(days=365)


class Entrance:
    """The listener of a broker that has `users`, by their names with their passwords, or `tls`."""

    def __init__(self, users: Mapping[str, str], *, tls: bool) -> None:
        self._users = dict(users)
        self._ca = b""
        self._folder: Path | None = None
        protocol = ("SASL_" if users else "") + ("SSL" if tls else "PLAINTEXT")
        self.settings: dict[str, str] = {"listeners": f"{protocol}://127.0.0.1:0"}
        """The settings that the listener needs."""
        if users:
            self.settings["sasl.enabled.mechanisms"] = ",".join(mechanism.text for mechanism in Mechanism)
        if tls:
            self._issue()

    def _issue(self) -> None:
        """Make a CA, and a certificate for this machine that the CA has signed, for a year; put the certificate and its
        key into `settings`.
        """
        from kop.security.issuing import issue  # noqa: PLC0415 (a tenth of a second)

        now = datetime.fromtimestamp(clock.wall(), UTC)
        ca = issue("CA of a test", None, now - _BEFORE, now + _AFTER, is_ca=True)
        made = issue("broker of a test", ca, now - _BEFORE, now + _AFTER, hosts=HOSTS)
        self._ca = ca.pem
        self.settings["ssl.keystore.type"] = "PEM"
        self.settings["ssl.keystore.certificate.chain"] = (made.pem + ca.pem).decode()
        self.settings["ssl.keystore.key"] = made.key_pem.decode()

    @property
    def ca_file(self) -> str:
        """The path of the CA's certificate; it is there between `open` and `close`. RuntimeError without TLS."""
        if self._folder is None:
            raise RuntimeError("there is no CA: start the broker, with tls=True")
        return str(self._folder / "ca.pem")

    def open(self) -> None:
        """Write the file of the CA's certificate into a new folder, if there is a CA."""
        if self._ca and self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="kop-testing-"))
            (self._folder / "ca.pem").write_bytes(self._ca)

    def close(self) -> None:
        """Remove the file of the CA's certificate, and its folder."""
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    async def admit(self, security: SecurityState) -> None:
        """Make the users in a broker that has none yet, with a credential for each SCRAM mechanism."""
        records = [
            of_user(name, mechanism, ScramCredential.of_password(mechanism, password, LEAST_ITERATIONS))
            for name, password in self._users.items()
            for mechanism in Mechanism
        ]
        if records:
            await security.write(lambda: records)
