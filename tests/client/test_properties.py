"""Kafka's client properties are read as Java reads them, and no connection is less secure than they say."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider
from support.certificates import Authority

from kop.client.properties import PropertyError, connection, parse_properties, properties_of_environment

SERVERS = {"bootstrap.servers": "a:9092, b:9093"}
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="a\\"b;c";'
BY_SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS}


def settings(**more: str) -> dict[str, Any]:
    return dict(connection(SERVERS | {name.replace("__", "."): value for name, value in more.items()}, "me").settings)


def test_a_file_is_read_as_java_reads_it() -> None:
    text = (
        "# a comment\n! another\n\n"
        "a=1\n b = 2 \nc: 3\nd 4\r\ne\n"
        "long = x\\\n     y\\\n  z\n"
        "odd\\=na\\:me = v\n"
        "tab = \\t\\u0041\\z\\\\\n"
        "a = 5\n"
        "#not \\\nnext = 1\n"
        "last = \\"
    )
    assert parse_properties(text) == {
        "a": "5",
        "b": "2 ",
        "c": "3",
        "d": "4",
        "e": "",
        "long": "xyz",
        "odd=na:me": "v",
        "tab": "\tAz\\",
        "next": "1",
        "last": "",
    }


def test_a_line_that_java_does_not_read_is_named() -> None:
    with pytest.raises(PropertyError, match="write line 2 of the properties as NAME=VALUE"):
        parse_properties("a=b\nc=\\u12x4")


def test_a_file_with_a_login_over_tls(tmp_path: Path) -> None:
    ca = Authority(tmp_path).pem
    text = (
        "bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '    username="ann" \\\n    password="open sesame";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={ca}\nclient.id=mine\ngroup.id=g\n"
    )
    made = connection(parse_properties(text), "kop")
    assert made.settings["bootstrap_servers"] == ["a:1"]
    assert (made.settings["security_protocol"], made.settings["sasl_mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    assert made.settings["sasl_plain_username"] == "ann"
    assert made.settings["sasl_plain_password"] == "open sesame"
    assert (made.settings["ssl_cafile"], made.settings["ssl_check_hostname"]) == (ca, True)
    assert made.settings["client_id"] == "mine"
    assert made.unused == ("group.id",)


def test_servers_alone_are_enough() -> None:
    made = connection(SERVERS, "me")
    assert made.settings["bootstrap_servers"] == ["a:9092", "b:9093"]
    assert (made.settings["client_id"], made.settings["security_protocol"]) == ("me", "PLAINTEXT")
    assert (made.patience_ms, made.unused) == (60_000, ())


PEM = {"ssl.truststore.type": "PEM", "ssl.keystore.type": "PEM"}
BY_TOKEN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
    "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"bootstrap.servers": "a:1,,b:2"}, "set bootstrap.servers to another value"),
        ({"security.protocol": "TLS"}, "is none of plaintext, ssl, sasl_plaintext, sasl_ssl"),
        ({"request.timeout.ms": "soon"}, "set request.timeout.ms to another value: 'soon' is no whole number"),
        ({"ssl.truststore.location": "/trust.jks"}, "set ssl.truststore.type to PEM"),
        ({"ssl.truststore.type": "JKS"}, "export them as PEM files"),
        ({"ssl.truststore.certificates": "x"}, "name it in ssl.truststore.location"),
        ({"ssl.cipher.suites": "x"}, "ssl.cipher.suites: leave it out"),
        ({"security.providers": "x"}, "security.providers: leave it out"),
        ({"sasl.jas.config": "x"}, "sasl.jas.config: there is no such property; did you mean sasl.jaas.config?"),
        (PEM | {"ssl.truststore.location": "/none"}, "ssl.truststore.location /none: there is no such file"),
        (PEM | {"ssl.keystore.location": "/none"}, "ssl.keystore.location /none: there is no such file"),
        (
            PEM | {"ssl.truststore.location": "/dev/null"},
            "ssl.truststore.location /dev/null: has no certificate in PEM",
        ),
        (
            PEM | {"ssl.keystore.location": "/dev/null"},
            "/dev/null: has no certificate with its key in PEM, or ssl.key.p",
        ),
        (BY_TOKEN | {"sasl.oauthbearer.token.endpoint.url": "file:///none"}, "url /none: there is no such file"),
        ({"sasl.mechanism": "PLAIN"}, "set security.protocol to SASL_SSL"),
        (BY_SASL | {"sasl.mechanism": "EXTERNAL"}, "set sasl.mechanism to PLAIN"),
        (BY_SASL | {"sasl.mechanism": "OAUTHBEARER"}, "OAuthBearerLoginModule required"),
        (BY_SASL | {"sasl.mechanism": "SCRAM-SHA-256"}, "a line of ScramLoginModule"),
        (BY_TOKEN | {"sasl.oauthbearer.token.endpoint.url": "https://x/y"}, "is not file:///PATH"),
        (BY_SASL | {"sasl.login.callback.handler.class": "x"}, "no Java class runs here"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_what_to_do(given: dict[str, str], says: str) -> None:
    with pytest.raises(PropertyError) as caught:
        connection(SERVERS | given, "me")
    assert says in str(caught.value)
    assert "kafka." not in str(caught.value)
    assert 'a\\"b' not in str(caught.value)


def test_a_token_in_a_file_is_read_for_each_login(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch()
    made = connection(SERVERS | BY_TOKEN | {"sasl.oauthbearer.token.endpoint.url": f"file://{path}"}, "me")
    assert made.unused == ()
    provider = pickle.loads(pickle.dumps(made.settings["sasl_oauth_token_provider"]))
    assert isinstance(provider, AbstractTokenProvider)
    path.unlink()
    with pytest.raises(PropertyError, match="No such file"):
        provider.token()
    for text, token in (("a.b.c\n", "a.b.c"), ("d.e.f", "d.e.f")):
        path.write_text(text)
        assert (provider.token(), provider.extensions()) == (token, {})
    path.write_text("")
    with pytest.raises(PropertyError, match="is empty"):
        provider.token()


def test_servers_are_needed() -> None:
    with pytest.raises(PropertyError, match=r"set bootstrap\.servers to HOST:PORT"):
        connection({}, "me")


def test_without_options_a_connection_is_that_of_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=SSL\n")
    assert properties_of_environment({}) == {"bootstrap.servers": "127.0.0.1:9092"}
    given = {"KOP_BOOTSTRAP": "a:1", "KOP_CLIENT_CONFIG": str(path)}
    assert properties_of_environment(given) == {"bootstrap.servers": "a:1", "security.protocol": "SSL"}
    path.write_text("bootstrap.servers=b:2\n")
    assert properties_of_environment(given) == {"bootstrap.servers": "b:2"}
    path.write_bytes(b"ssl.truststore.location=\xe9")
    with pytest.raises(PropertyError, match="are no text in UTF-8: "):
        properties_of_environment(given)


def test_no_error_has_a_password_in_it() -> None:
    with pytest.raises(PropertyError, match="this one is not of the form") as caught:
        connection(SERVERS | BY_SASL | {"sasl.jaas.config": 'password="open sesame"'}, "me")
    assert "sesame" not in str(caught.value)


def test_settings_of_the_connection_become_those_of_kafka_python() -> None:
    made = settings(request__timeout__ms="5000", receive__buffer__bytes="4096", proxy__url="socks5://p:1")
    assert (made["request_timeout_ms"], made["proxy_url"]) == (5000, "socks5://p:1")
    assert any(option[2] == 4096 for option in made["socket_options"])
    assert settings(ssl__endpoint__identification__algorithm="")["ssl_check_hostname"] is False
