"""Message ids become offsets by what Pulsar's admin REST says of their entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from kop.client.read_client import ReadClient
from kop.pulsar_client.message_offsets import MessageId
from kop.pulsar_client.packed import pack
from kop.pulsar_client.types import Position
from kop.spark.message_ids import MessageBoundError, PulsarAdmin, offsets_of
from kop.spark.options import batch_options
from kop.spark.subscription import find_partitions, find_start
from kop.testing.broker import Broker

ENTRIES = {
    "public/default/orders-partition-2/ledger/12/entry/5": (104, 5),
    "public/default/plain/ledger/7/entry/0": (9, 1),
    "sales/eu/orders-partition-0/ledger/3/entry/1": (41, 2),
    "public/default/unnumbered-partition-0/ledger/1/entry/1": (None, 1),
}
"""Of each entry the index of its last message, and how many there are."""


class Rest(BaseHTTPRequestHandler):
    """As much of Pulsar's admin REST as is asked."""

    def do_GET(self) -> None:
        index, count = ENTRIES.get(self.path.removeprefix("/admin/v2/persistent/"), (None, 0))
        self.send_response(200 if count else 404)
        if index is not None:
            self.send_header("X-Pulsar-Broker-Entry-METADATA-index", str(index))
        if count > 1:
            self.send_header("X-Pulsar-num-batch-message", str(count))
        body = b"" if count else b'{"reason": "there is no such entry"}'
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: standard error is for failures."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Rest) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


GATEWAY = {"kop.pulsar.namespace": "public/default", "kop.pulsar.offsets": "index"}


def offset(
    admin: PulsarAdmin,
    topic: str,
    partition: int,
    message: MessageId,
    *,
    behind: bool = False,
    settings: Mapping[str, str] = GATEWAY,
) -> int:
    place = (topic, partition)
    return offsets_of(admin, settings, {place: message}, behind=behind)[place]


@pytest.mark.parametrize(
    ("batch", "at", "behind"), [(-1, 100, 105), (0, 100, 101), (4, 104, 105)], ids=["entry", "first", "last"]
)
def test_a_message_has_the_offset_of_its_place_in_its_entry(url: str, batch: int, at: int, behind: int) -> None:
    admin = PulsarAdmin(url)
    message = MessageId(12, 5, batch)
    assert offset(admin, "orders", 2, message) == at
    assert offset(admin, "orders", 2, message, behind=True) == behind


def test_topics_of_other_namespaces_and_without_partitions(url: str) -> None:
    admin = PulsarAdmin(url)
    assert offset(admin, "sales/eu/orders", 0, MessageId(3, 1)) == 40
    assert offset(admin, "persistent://sales/eu/orders", 0, MessageId(3, 1, 1)) == 41
    assert offset(admin, "plain", 0, MessageId(7, 0)) == 9


def test_packed_offsets(url: str) -> None:
    there = pack(Position(12, 5)) + 3
    assert offset(PulsarAdmin(url, offsets="packed"), "orders", 2, MessageId(12, 5, 3)) == there
    settings = GATEWAY | {"kop.pulsar.offsets": "packed"}
    assert offset(PulsarAdmin(url), "orders", 2, MessageId(12, 5, 3), settings=settings) == there
    assert offset(PulsarAdmin(url, offsets="index"), "orders", 2, MessageId(12, 5, 3), settings=settings) == 103


def test_a_gateway_that_does_not_tell_its_settings(url: str) -> None:
    """Its user may not describe configs: the namespace and the kind of offsets have to be said, none is assumed."""
    message = MessageId(12, 5)
    with pytest.raises(MessageBoundError, match=r"set pulsar\.offsets .* index or packed"):
        offset(PulsarAdmin(url), "public/default/orders", 2, message, settings={})
    admin = PulsarAdmin(url, offsets="index")
    with pytest.raises(MessageBoundError, match="name the topic orders as TENANT/NAMESPACE/orders, or set topicNamesp"):
        offset(admin, "orders", 2, message, settings={})
    assert offset(admin, "public/default/orders", 2, message, settings={}) == 100


def test_a_short_name_is_of_the_namespace_of_the_gateway(url: str, kop_broker_factory: Callable[..., Broker]) -> None:
    broker = kop_broker_factory(kop_pulsar_namespace="sales/eu")
    broker.create_topic("orders")
    options = batch_options(
        {
            "kafka.bootstrap.servers": broker.bootstrap,
            "subscribe": "orders",
            "pulsar.admin.url": url,
            "startingMessageId": '{"orders": {"0": "3:1:1"}}',
        }
    )
    client = ReadClient(options.connection.settings, 20_000)
    try:
        partitions = find_partitions(client, options)
        assert find_start(client, options, partitions) == ({("orders", 0): 41}, set())
    finally:
        client.close()


@pytest.mark.parametrize(
    ("topic", "message", "says"),
    [
        ("orders", MessageId(12, 6), "no such entry"),
        ("orders", MessageId(12, 5, 5), "has 5 messages, 5 is not among them"),
        ("unnumbered", MessageId(1, 1), "keeps no entry index"),
    ],
)
def test_a_message_that_has_no_offset(url: str, topic: str, message: MessageId, says: str) -> None:
    partition = 2 if topic == "orders" else 0
    with pytest.raises(MessageBoundError, match=rf"(?i)set pulsar\.admin\.url.*({says})"):
        offset(PulsarAdmin(url), topic, partition, message)
