"""Message ids become offsets by what Pulsar's admin REST says of their entries."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from kop.pulsar_client.message_offsets import MessageId
from kop.pulsar_client.packed import pack
from kop.pulsar_client.types import Position
from kop.spark.message_ids import MessageBoundError, PulsarAdmin, offsets_of

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


def offset(admin: PulsarAdmin, topic: str, partition: int, message: MessageId, *, behind: bool = False) -> int:
    place = (topic, partition)
    return offsets_of(admin, {place: message}, behind=behind)[place]


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
    admin = PulsarAdmin(url, packed=True)
    assert offset(admin, "orders", 2, MessageId(12, 5, 3)) == pack(Position(12, 5)) + 3


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
