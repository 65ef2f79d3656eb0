"""Listeners in both forms, and those of workers."""

from __future__ import annotations

import pytest

from kop.config import Config
from kop.errors import ConfigError
from kop.server.endpoints import between_brokers, endpoints
from kop.server.settings import ServerSettings


def settings(**given: str) -> ServerSettings:
    named = {name.replace("_", "."): value for name, value in given.items()}
    return Config.load(overrides=named, environ={}).of(ServerSettings)


def shown(of: ServerSettings, worker: int | None = None) -> list[tuple[str, str, str, str, bool]]:
    return [
        (it.name, it.protocol, str(it.address), str(it.advertised or ""), it.shared) for it in endpoints(of, worker)
    ]


def test_the_short_form_has_no_names() -> None:
    of = settings(listen="127.0.0.1:1,[::1]:1", advertise="a:7")
    assert shown(of) == [
        ("", "PLAINTEXT", "127.0.0.1:1", "a:7", False),
        ("", "PLAINTEXT", "[::1]:1", "a:7", False),
    ]
    assert shown(of, 2) == [
        ("", "PLAINTEXT", "127.0.0.1:4", "a:10", False),
        ("", "PLAINTEXT", "[::1]:4", "a:10", False),
        ("", "PLAINTEXT", "127.0.0.1:1", "a:10", True),
        ("", "PLAINTEXT", "[::1]:1", "a:10", True),
    ]
    assert between_brokers(of, endpoints(of)) == 0
    of = settings(listen="127.0.0.1:1,[::1]:1", advertise="a:7,b:8")
    assert [told for _, _, _, told, _ in shown(of, 0)] == ["a:8", "b:9", "a:8", "b:9"]


def test_named_listeners() -> None:
    of = settings(
        listeners="OUTSIDE://*:9093,inside://127.0.0.1:9192",
        listener_security_protocol_map="outside:SASL_SSL,INSIDE:PLAINTEXT",
        advertised_listeners="OUTSIDE://kafka.example:9093",
        inter_broker_listener_name="INSIDE",
    )
    assert shown(of) == [
        ("OUTSIDE", "SASL_SSL", "*:9093", "kafka.example:9093", False),
        ("INSIDE", "PLAINTEXT", "127.0.0.1:9192", "", False),
    ]
    assert between_brokers(of, endpoints(of)) == 1
    assert shown(of, 0) == [
        ("OUTSIDE", "SASL_SSL", "*:9094", "kafka.example:9094", False),
        ("INSIDE", "PLAINTEXT", "127.0.0.1:9193", "", False),
        ("OUTSIDE", "SASL_SSL", "*:9093", "kafka.example:9094", True),
        ("INSIDE", "PLAINTEXT", "127.0.0.1:9192", "*:9193", True),
    ]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"listeners": "PLAINTEXT://:1", "listen": ":2"}, "one form or the other"),
        ({"listeners": "PLAINTEXT://:1", "advertise": "a:2"}, "one form or the other"),
        ({"listeners": "PLAINTEXT://:1,plaintext://:2"}, "more than once"),
        ({"listeners": "MINE://:1"}, "no protocol for listener MINE"),
        ({"listeners": "127.0.0.1:9192"}, "must be NAME://HOST:PORT"),
        ({"listeners": "SSL://:1", "advertised.listeners": "PLAINTEXT://a:1"}, "none of listeners"),
        ({"listeners": "SSL://:1", "advertised.listeners": "SSL://0.0.0.0:1"}, "not a wildcard"),
        ({"listeners": "SSL://:1", "inter.broker.listener.name": "OTHER"}, "OTHER is none of listeners"),
        ({"inter.broker.listener.name": "SSL"}, "need listeners"),
        ({"listener.security.protocol.map": "A:B"}, "must be NAME:PROTOCOL"),
        ({"ssl.keystore.type": "JKS"}, "set PKCS12"),
        ({"listeners": "SSL://:1", "listener.name.typo.ssl.keystore.location": "x"}, "listeners has no TYPO"),
        ({"listen": ":1", "listener.name.ssl.ssl.client.auth": "required"}, "listeners is not given"),
        (
            {
                "listeners": "A://:1",
                "listener.security.protocol.map": "A:SSL",
                "listener.name.a.ssl.client.auth": "required",
                "listener.name.A.ssl.client.auth": "none",
            },
            "listener.name.a.ssl.client.auth is given twice",
        ),
        ({"listener.security.protocol.map": "A:SASL_SSL,a:PLAINTEXT"}, "A is there twice"),
        (
            {"listeners": "SSL://:9093,PLAINTEXT://:9092", "kop.workers": "2", "store": "pulsar://a:1"},
            "9092 and 9093 are too near",
        ),
    ],
)
def test_settings_that_contradict_one_another(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load(overrides=given, environ={})
    assert problem in str(caught.value)
