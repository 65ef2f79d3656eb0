"""Reads and writes come by TLS and log in by SASL as their options say, and an error names the option that is wrong."""

from __future__ import annotations

import gc
import re
import shutil
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from spark.guard import Guard
from support.certificates import self_signed

from kop.client.errors import UnreachableError
from kop.client.read_client import ReadClient
from kop.client.write_client import WriteClient
from kop.spark.clients import read_client
from kop.spark.fetching import ReadSettings, read_range
from kop.spark.options import batch_options
from kop.spark.planning import OffsetRange
from kop.spark.producing import RowProducer
from kop.spark.sink_columns import SinkColumns
from kop.spark.write_options import write_options
from kop.testing.broker import Broker

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl:ResourceWarning")
LOGIN = ("alice", 'a secret"; x')
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="{}" password="{}";'
BY_PLAIN = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"}
BY_PLAIN["kafka.sasl.jaas.config"] = JAAS.format("alice", 'a secret\\"; x')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificates with openssl")
    for name, subject in {"here": "IP:127.0.0.1", "elsewhere": "DNS:elsewhere.example", "client": "DNS:me"}.items():
        cert, key = self_signed(folder, name, subject)
        (folder / f"{name}-both.pem").write_text(Path(cert).read_text() + Path(key).read_text())
    return folder


def by_tls(folder: Path, trusted: str = "here", **more: str) -> dict[str, str]:
    given = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": f"{trusted}.pem"}
    given["ssl.truststore.location"] = str(folder / given["ssl.truststore.location"])
    return {f"kafka.{name.replace('_', '.')}": value for name, value in (given | more).items()}


def ends_tls(folder: Path, name: str = "here", *, clients: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(folder / "client.pem")
    return context


@pytest.fixture
def guarded(kop_broker_factory: Callable[..., Broker]) -> Iterator[Callable[..., Guard]]:
    """A gateway with the topic `t` behind a guard, the only address that its clients hear of."""
    guards: list[Guard] = []

    def start(tls: ssl.SSLContext | None = None, login: tuple[str, str] | None = None) -> Guard:
        guard = Guard(tls, login)
        guards.append(guard)
        broker = kop_broker_factory(advertise=guard.address)
        broker.create_topic("t")
        guard.guard(broker.bootstrap)
        return guard

    yield start
    for guard in guards:
        guard.close()


def copied(address: str, options: Mapping[str, str]) -> list[bytes]:
    """What a read of the topic gives after a write to it, both with these options."""
    servers = {"kafka.bootstrap.servers": address, **options}
    to = write_options(servers | {"topic": "t"}, streaming=False)
    writer = WriteClient(to.connection.settings, to.patience)
    try:
        producer = RowProducer(writer, writer.init_producer(None, 60_000), to.produce)
        producer.write(SinkColumns.of([("value", "string")], "t").batch(pa.record_batch({"value": ["a", "b"]})))
    finally:
        writer.close()
    made = batch_options(servers | {"subscribe": "t"})
    reader = ReadClient(made.connection.settings, made.connection.patience_ms)
    try:
        settings = ReadSettings(made.fetch, headers=False, fail_on_data_loss=True, poll_timeout_ms=20_000)
        batches = read_range(reader, OffsetRange("t", None, 0, 0, 2), settings)
        return [value for batch in batches for value in batch.column("value").to_pylist()]
    finally:
        reader.close()


def refused(address: str, options: Mapping[str, str], says: str, patience_ms: int = 1000) -> None:
    made = batch_options({"kafka.bootstrap.servers": address, "subscribe": "t", **options})
    with pytest.raises(UnreachableError) as caught:
        read_client(made.connection.settings, patience_ms)
    said = str(caught.value)
    del caught
    if not re.search(rf"(?s)^set {says}", said):  # a slow machine may need longer to hear the reason
        with pytest.raises(UnreachableError, match=rf"(?s)^set {says}"):
            read_client(made.connection.settings, 20_000)
    gc.collect()  # kafka-python leaves it to the garbage collector to close a socket whose handshake failed


def test_by_tls(guarded: Callable[..., Guard], folder: Path) -> None:
    assert copied(guarded(ends_tls(folder)).address, by_tls(folder)) == [b"a", b"b"]


def test_by_tls_with_a_certificate_of_the_client(guarded: Callable[..., Guard], folder: Path) -> None:
    own = {"ssl_keystore_type": "PEM", "ssl_keystore_location": str(folder / "client-both.pem")}
    assert copied(guarded(ends_tls(folder, clients=True)).address, by_tls(folder, **own)) == [b"a", b"b"]


def test_by_sasl(guarded: Callable[..., Guard]) -> None:
    guard = guarded(login=LOGIN)
    assert copied(guard.address, BY_PLAIN) == [b"a", b"b"]
    assert set(guard.logins) == {"alice"}


def test_by_sasl_over_tls(guarded: Callable[..., Guard], folder: Path) -> None:
    guard = guarded(ends_tls(folder), LOGIN)
    options = by_tls(folder) | BY_PLAIN | {"kafka.security.protocol": "SASL_SSL"}
    assert copied(guard.address, options) == [b"a", b"b"]
    assert set(guard.logins) == {"alice"}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_by_scram_over_tls_to_a_gateway_with_users(kop_broker_factory: Callable[..., Broker], mechanism: str) -> None:
    broker = kop_broker_factory(users=dict([LOGIN]), tls=True)
    broker.create_topic("t")
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    options = BY_PLAIN | {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f'{module} required username="alice" password="a secret\\"; x";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": broker.ca_file,
    }
    assert copied(broker.bootstrap, options) == [b"a", b"b"]
    wrong = options | {"kafka.sasl.jaas.config": f'{module} required username="alice" password="wrong";'}
    says = r"kafka\.sasl\.jaas\.config.*invalid credentials"
    refused(broker.bootstrap, wrong, says, patience_ms=60_000)  # it is not tried again


def test_a_certificate_that_is_not_trusted(guarded: Callable[..., Guard], folder: Path) -> None:
    address = guarded(ends_tls(folder)).address
    refused(address, by_tls(folder, "elsewhere"), r"kafka\.ssl\.truststore\.location.*CERTIFICATE_VERIFY_FAILED")


def test_a_certificate_of_another_name(guarded: Callable[..., Guard], folder: Path) -> None:
    address = guarded(ends_tls(folder, "elsewhere")).address
    refused(address, by_tls(folder, "elsewhere"), r"kafka\.bootstrap\.servers.*IP address mismatch")
    options = by_tls(folder, "elsewhere", ssl_endpoint_identification_algorithm="")
    assert copied(address, options) == [b"a", b"b"]


def test_a_wrong_password(guarded: Callable[..., Guard]) -> None:
    options = BY_PLAIN | {"kafka.sasl.jaas.config": JAAS.format("alice", "wrong")}
    says = r"kafka\.sasl\.jaas\.config.*the password is not the right one"
    refused(guarded(login=LOGIN).address, options, says, patience_ms=60_000)  # it is not tried again


def test_servers_that_want_tls_or_log_nobody_in(guarded: Callable[..., Guard], folder: Path) -> None:
    refused(guarded(ends_tls(folder)).address, {}, r"kafka\.bootstrap\.servers.*kafka\.security\.protocol")
    refused(guarded().address, BY_PLAIN, r"kafka\.security\.protocol.*IllegalSaslState")
    refused(guarded().address, by_tls(folder), r"kafka\.ssl\.truststore\.location.*kafka\.security\.protocol")
