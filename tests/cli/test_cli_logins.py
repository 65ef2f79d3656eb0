"""Commands whose client properties a server does not take: each says at once why, and which property to set."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli.cli_support import Kop
from cli.preloaded import Outcome, Preloaded
from support.certificates import Authority

from kop.testing.broker import Broker

COMMANDS = {
    "topics": ("topics", "list"),
    "produce": ("produce", "orders"),
    "consume": ("consume", "orders", "--from-beginning", "-n", "1"),
    "check": ("check",),
    "mesh list": ("mesh", "list"),
    "mesh status": ("mesh", "status", "orders"),
    "mesh run": ("mesh", "run", "orders"),
    "functions worker": ("functions", "worker", "--listen", "127.0.0.1:0"),
}
AT_ONCE = 50.0
"""The seconds below which no time limit of a command can have ended it."""


@pytest.fixture(scope="module")
def guarded(preloaded: Preloaded) -> Iterator[tuple[Kop, dict[str, str]]]:
    """A gateway with TLS and logins, and the properties of a user whom it lets in."""
    with Broker(users={"alice": "secret"}, tls=True) as broker:
        yield (
            Kop(broker.bootstrap, preloaded),
            {
                "bootstrap.servers": broker.bootstrap,
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": jaas("alice", "secret"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": broker.ca_file,
            },
        )


def jaas(user: str, password: str, module: str = "scram.ScramLoginModule") -> str:
    return f'org.apache.kafka.common.security.{module} required username="{user}" password="{password}";'


def with_config(kop: Kop, folder: Path, properties: Mapping[str, str | None], command: tuple[str, ...]) -> Outcome:
    file = folder / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items() if value is not None))
    begin = time.monotonic()
    outcome = kop(*command, "--client-config", str(file), given=b"a\n")
    assert time.monotonic() - begin < AT_ONCE, outcome
    return outcome


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "mesh run"])  # it needs PySpark
def test_a_wrong_password_is_told_at_once(guarded: tuple[Kop, dict[str, str]], tmp_path: Path, command: str) -> None:
    kop, right = guarded
    outcome = with_config(kop, tmp_path, right | {"sasl.jaas.config": jaas("alice", "wrong")}, COMMANDS[command])
    assert outcome.code == 1
    assert (
        "set sasl.jaas.config to a user that the servers let in, and the password of that user: no connection by "
        f"SASL_SSL to any of {kop.bootstrap} (Authentication failed during authentication due to invalid credentials "
        "with SASL mechanism SCRAM-SHA-256)\n"
    ) in (outcome.out if command == "check" else outcome.err)


@pytest.mark.parametrize("command", ["topics", "produce", "mesh list"])
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"sasl.jaas.config": jaas("nobody", "x")}, "set sasl.jaas.config to a user that the servers let in"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas("alice", "secret", "plain.PlainLoginModule")},
            "set security.protocol and sasl.mechanism to what the servers have",
        ),
        (
            {"ssl.truststore.location": None},
            "set ssl.truststore.location to the issuer of the servers' certificate: no connection by SASL_SSL to any",
        ),
    ],
)
def test_other_reasons_are_told_at_once(
    guarded: tuple[Kop, dict[str, str]], tmp_path: Path, command: str, changed: Mapping[str, str | None], told: str
) -> None:
    kop, right = guarded
    outcome = with_config(kop, tmp_path, {**right, **changed}, COMMANDS[command])
    assert outcome.code == 1
    assert f"kop: {told}" in outcome.err
    assert "bug of kop" not in outcome.err
    assert " within " not in outcome.err


def test_no_certificate_where_one_is_wanted(preloaded: Preloaded, tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    settings: dict[str, Any] = {
        "listeners": "OWN://127.0.0.1:0",
        "listener.security.protocol.map": "OWN:SSL",
        "listener.name.own.ssl.keystore.location": ca.keystore("broker"),
        "listener.name.own.ssl.truststore.location": ca.pem,
        "listener.name.own.ssl.client.auth": "required",
    }
    with Broker(**settings) as broker:
        kop = Kop(broker.bootstrap, preloaded)
        tls = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": ca.pem}
        outcome = with_config(kop, tmp_path, tls, ("topics", "list"))
        assert outcome.err.startswith("kop: set ssl.keystore.location to a certificate that the servers take: ")
        own = tls | {"ssl.keystore.type": "PEM", "ssl.keystore.location": ca.keystore("client")}
        assert with_config(kop, tmp_path, own, ("topics", "list")).code == 0


def test_files_that_are_not_there(guarded: tuple[Kop, dict[str, str]], tmp_path: Path) -> None:
    kop, right = guarded
    none = tmp_path / "none.pem"
    for name in ("ssl.truststore.location", "ssl.keystore.location"):
        for command in ("topics", "produce", "mesh list", "mesh run"):
            given = right | {"ssl.keystore.type": "PEM", name: str(none)}
            outcome = with_config(kop, tmp_path, given, COMMANDS[command])
            assert outcome.code == 2, outcome
            assert outcome.err == f"kop: {tmp_path}/client.properties: {name} {none}: there is no such file\n"
    none.write_text("no certificate")
    outcome = with_config(kop, tmp_path, right | {"ssl.truststore.location": str(none)}, COMMANDS["topics"])
    assert outcome.err.endswith(f"ssl.truststore.location {none}: has no certificate in PEM\n")
