"""`kop certs`: what it makes holds together and works as it says."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cli.cli_support import Invoke
from security.test_tls import shake

from kop.client.properties import connection, parse_properties
from kop.config import Config
from kop.security.certificates import of_der
from kop.security.keystores import Store
from kop.security.tls import TlsFiles, server_context
from kop.server.endpoints import endpoints
from kop.server.securing import LoginParts, listener_security
from kop.server.settings import ListenerSettings, ServerSettings


def test_what_it_prints_is_all_that_has_to_be_set(invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    result = invoke("certs", str(folder), "--host", "kafka.example", "--client", "alice", "--client", "app-1")
    assert result.exit_code == 0, result.output
    broker, alice, app, rest = result.output.split("\n\n")
    file = tmp_path / "kop.toml"
    file.write_text(broker)
    config = Config.load(file=file, environ={})
    (endpoint,) = endpoints(config.of(ServerSettings))
    assert str(endpoint.advertised) == "kafka.example:9093"
    secured = listener_security(
        endpoint,
        config.of(ListenerSettings, listener="ssl"),
        config.of(ServerSettings),
        parts=LoginParts(None, None, None),  # type: ignore[arg-type]
        of_mechanism=lambda mechanism: config.of_mechanism(ListenerSettings, "ssl", mechanism),
    )
    assert secured.tls is not None
    assert secured.name_of is not None
    for text, name in ((alice, "alice"), (app, "app-1")):
        assert f"User:{name}" in text
        assert (folder / f"{name}.properties").read_text().splitlines() == text.splitlines()[1:]
        settings = connection(parse_properties(text), "test").settings
        context = ssl.create_default_context(cafile=settings["ssl_cafile"])
        context.load_cert_chain(settings["ssl_certfile"])
        shown = shake(secured.tls.context, context)[0].getpeercert(binary_form=True)
        assert shown is not None
        assert secured.name_of(of_der(shown).subject) == f"User:{name}"
    assert "the password of all is in" in rest
    assert {path.name for path in folder.iterdir() if path.stat().st_mode & 0o077} == set()


def test_stores_of_type_pkcs12_are_the_same(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("certs", str(tmp_path)).exit_code == 0
    password = (tmp_path / "password").read_text()
    keystore, truststore = (
        Store(kind=kind, type="PKCS12", location=str(tmp_path / f"{name}.p12"), password=password)
        for kind, name in (("keystore", "broker"), ("truststore", "ca"))
    )
    pem = server_context(TlsFiles(keystore=Store(kind="keystore", location=str(tmp_path / "broker.pem"))))
    assert server_context(TlsFiles(keystore=keystore, truststore=truststore, client_auth="required"))[1][:2] == pem[1]


def test_what_is_there_stays(invoke: Invoke, tmp_path: Path) -> None:
    def content() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    invoke("certs", str(tmp_path), "--client", "a")
    before = content()
    result = invoke("certs", str(tmp_path), "--client", "a", "--client", "b")
    assert "a.pem is there already" in result.output
    after = content()
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"b.pem", "b.p12", "b.properties"}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--client", "a b"], "--client: 'a b'"),
        (["--client", "../a"], "--client: '../a'"),
        (["--client", "broker"], "and not broker"),
        (["--client", ".."], "--client: '..'"),
        (["--host", "a/b"], "neither a name nor an address"),
        (["--days", "0"], "0 is not in the range"),
    ],
)
def test_wrong_use(invoke: Invoke, tmp_path: Path, arguments: list[str], why: str) -> None:
    result = invoke("certs", str(tmp_path / "tls"), *arguments)
    assert result.exit_code == 2
    assert why in result.output
    assert not (tmp_path / "tls").exists()


def test_a_folder_with_another_ca_is_left_alone(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "ca.key").write_text("x")
    (tmp_path / "ca.pem").write_text("x")
    result = invoke("certs", str(tmp_path))
    assert result.exit_code == 1
    assert "are not those of kop certs" in result.output
