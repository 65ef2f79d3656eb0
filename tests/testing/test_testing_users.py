"""A broker with users, with TLS, with both: who gets in, what stays at a restart, what is gone at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from support.waiting import wait_until

from kop.errors import ConfigError
from kop.testing import Broker, Cluster

USERS = {"alice": "secret", "bob": "p,=\u00e4"}
SECONDS = 10


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(users=USERS, tls=True) as broker:
        yield broker


def producer(broker: Broker, **changes: Any) -> Producer:
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "secret",
        "log_level": 0,
    } | {name if name == "error_cb" else name.replace("_", "."): value for name, value in changes.items()}
    if settings["security.protocol"].endswith("SSL"):
        settings.setdefault("ssl.ca.location", broker.ca_file)
    return Producer(settings)


def await_refusal(broker: Broker, wanted: str, **changes: str) -> None:
    """Wait until a client is told why it does not get in."""
    errors: list[KafkaError] = []
    client = producer(broker, error_cb=errors.append, **changes)
    wait_until(lambda: client.poll(0.05) or wanted in {error.name() for error in errors}, wanted)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("name", USERS)
def test_users_get_in(broker: Broker, mechanism: str, name: str) -> None:
    client = producer(broker, sasl_mechanism=mechanism, sasl_username=name, sasl_password=USERS[name])
    assert client.list_topics(timeout=SECONDS).brokers


def test_others_do_not(broker: Broker, kop_broker_factory: Callable[..., Broker]) -> None:
    await_refusal(broker, "_AUTHENTICATION", sasl_password="wrong")
    await_refusal(broker, "_AUTHENTICATION", sasl_username="eve")
    await_refusal(broker, "_SSL", ssl_ca_location=kop_broker_factory(tls=True).ca_file)


def test_a_restart_keeps_users(kop_broker_factory: Callable[..., Broker]) -> None:
    broker = kop_broker_factory(users={"alice": "secret"})
    plain = {"security_protocol": "SASL_PLAINTEXT"}
    assert producer(broker, **plain).list_topics(timeout=SECONDS).brokers
    with pytest.raises(RuntimeError, match="tls=True"):
        _ = broker.ca_file
    broker.restart()
    client = producer(broker, **plain)
    client.produce("t", b"v")
    assert client.flush(SECONDS) == 0
    assert [record.value for record in broker.records("t")] == [b"v"]


def test_the_ca_is_gone_with_the_broker() -> None:
    broker = Broker(tls=True)
    with broker:
        path = Path(broker.ca_file)
        assert producer(broker, security_protocol="SSL").list_topics(timeout=SECONDS).brokers
    assert not path.parent.exists()
    with pytest.raises(RuntimeError, match="does not run"):
        _ = broker.ca_file


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ConfigError, match="listen"):
        Broker(users=USERS, listen="127.0.0.1:0")
    with pytest.raises(ValueError, match="lone broker"):
        Cluster(users=USERS)
