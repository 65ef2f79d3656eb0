"""When a gateway counts as gone, in simulated time: snapshots a second apart, what its own address says; what the
registry takes from the brokers' topic.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import until

from kop.pulsar_client import Entry, Position, PulsarError
from kop.pulsar_client.outage import Outage
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.records import transcode
from kop.records.batch import build, read_header
from kop.records.record import Record
from kop.storage.base import LiveBroker
from kop.storage.pulsar.cluster import broker_registry
from kop.storage.pulsar.cluster.broker_registry import BrokerRegistry
from kop.storage.pulsar.cluster.live_brokers import LiveBrokers
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.settings import PulsarSettings


def broker(node_id: int) -> LiveBroker:
    return LiveBroker(node_id, f"host-{node_id}", 9000 + node_id)


def brokers_of(*ids: int) -> dict[int, LiveBroker]:
    return {node_id: broker(node_id) for node_id in ids}


def ids(live: LiveBrokers) -> list[int]:
    return [broker.node_id for broker in live.brokers]


def of_three() -> LiveBrokers:
    live = LiveBrokers(broker(1))
    assert live.snapshot(brokers_of(1, 2, 3), 0.0)
    assert ids(live) == [1, 2, 3]
    return live


@pytest.mark.parametrize(
    ("story", "answers", "left"),
    [
        pytest.param([[1]], False, [1, 2, 3], id="one snapshot that lacks all others"),
        pytest.param([[]], False, [1, 2, 3], id="one empty snapshot"),
        pytest.param([[]] * 100, False, [1, 2, 3], id="empty snapshots tell nothing, however many"),
        pytest.param([[2, 3]] * 100, False, [1, 2, 3], id="snapshots without ourselves tell nothing"),
        pytest.param([[2]] * 100, False, [1, 2, 3], id="those neither of others that they lack"),
        pytest.param([[1], [1, 2]], False, [1, 2, 3], id="two come back one by one"),
        pytest.param([[1, 3], [1, 3]], False, [1, 2, 3], id="two snapshots in a row"),
        pytest.param([[1, 3]] * 3, False, [1, 2, 3], id="three snapshots in a row"),
        pytest.param([[1, 3]] * 4, False, [1, 3], id="four in a row, over three seconds, nobody answers"),
        pytest.param([[1, 3], [1, 3], [1, 2, 3], [1, 3], [1, 3]], False, [1, 2, 3], id="it came back in between"),
        pytest.param([[1, 3], [], [], [1, 3]], False, [1, 2, 3], id="empty ones do not count"),
        pytest.param([[1, 3], [], [], [1, 3], [1, 3]], False, [1, 3], id="nor do they begin the count again"),
        pytest.param([[1, 3]] * 14, True, [1, 2, 3], id="it answers at its address"),
        pytest.param([[1, 3]] * 17, True, [1, 3], id="it answers, and is cut off from Pulsar"),
        pytest.param([[1, 2, 3, 4]], False, [1, 2, 3, 4], id="a new one counts at once"),
        pytest.param([[1, 2, 3, 4], [1, 2]], False, [1, 2, 3, 4], id="and is no sooner gone than others"),
        pytest.param([[1]] * 4, False, [1], id="all others die at once"),
    ],
)
def test_who_counts_after_snapshots_a_second_apart(story: list[list[int]], answers: bool, left: list[int]) -> None:
    live = of_three()
    for second, snapshot in enumerate(story, 1):
        live.snapshot(brokers_of(*snapshot), float(second))
        for absent in live.absent:
            live.answered(absent.node_id, answers)
    assert ids(live) == left


def test_snapshots_in_quick_succession_are_no_proof() -> None:
    live = of_three()
    for step in range(10):
        live.snapshot(brokers_of(1, 3), 1.0 + step / 10)
    assert ids(live) == [1, 2, 3]
    live.snapshot(brokers_of(1, 3), 4.0)
    assert ids(live) == [1, 3]


def test_a_gateway_that_stood_still_between_two_snapshots_takes_nobody_for_dead() -> None:
    live = of_three()
    live.snapshot(brokers_of(1, 3), 1.0)
    live.snapshot(brokers_of(1, 3), 60.0)
    assert ids(live) == [1, 2, 3]
    live.snapshot(brokers_of(1, 3), 61.0)
    assert ids(live) == [1, 3]


def test_one_that_answers_may_miss_an_answer_and_not_two_in_a_row() -> None:
    live = of_three()
    for second in range(1, 11):
        live.snapshot(brokers_of(1, 3), float(second))
        live.answered(2, second % 2 == 0)
    assert ids(live) == [1, 2, 3]
    live.answered(2, False)
    live.snapshot(brokers_of(1, 3), 11.0)
    assert ids(live) == [1, 2, 3]
    live.answered(2, False)
    live.snapshot(brokers_of(1, 3), 12.0)
    assert ids(live) == [1, 3]


def test_one_that_says_that_it_leaves_is_gone_with_the_first_snapshot_without_it() -> None:
    live = of_three()
    live.leaves(2, 0.5)
    live.snapshot(brokers_of(1, 2, 3), 1.0)
    assert ids(live) == [1, 2, 3], "it is about to"
    live.snapshot(brokers_of(1, 3), 2.0)
    assert ids(live) == [1, 3]
    live.snapshot(brokers_of(1, 2, 3), 3.0)
    live.snapshot(brokers_of(1, 3), 4.0)
    assert ids(live) == [1, 2, 3], "it has been started again since, and has not said so again"


def test_one_that_said_long_ago_that_it_leaves_and_came_back_is_as_good_as_any() -> None:
    live = of_three()
    live.leaves(2, 0.5)
    for second in range(1, 20):
        live.snapshot(brokers_of(1, 2, 3), float(second))
    live.snapshot(brokers_of(1, 3), 20.0)
    assert ids(live) == [1, 2, 3]


def test_one_that_is_known_to_be_dead_is_gone_at_once_and_welcome_when_it_comes_back() -> None:
    live = of_three()
    live.is_dead(2)
    live.is_dead(1)
    assert ids(live) == [1, 3]
    live.snapshot(brokers_of(1, 2, 3), 1.0)
    assert ids(live) == [1, 2, 3]


def test_a_gateway_that_comes_back_at_another_address_is_known_by_that() -> None:
    live = of_three()
    live.snapshot({**brokers_of(1, 3), 2: LiveBroker(2, "elsewhere", 1)}, 1.0)
    assert live.brokers[1] == LiveBroker(2, "elsewhere", 1)


def test_our_own_address_is_what_we_say_it_is() -> None:
    live = LiveBrokers(broker(1))
    live.snapshot({1: LiveBroker(1, "what the broker says", 1)}, 1.0)
    assert list(live.brokers) == [broker(1)]


@pytest.mark.parametrize(
    ("attached", "missed", "now", "counts"),
    [
        pytest.param([], [], 0.0, False, id="it was not seen yet"),
        pytest.param([0.0], [], 0.1, True, id="it has joined: nobody takes it for dead"),
        pytest.param([0.0, 1.0, 2.0], [], 6.9, True, id="looks are slow while another is absent"),
        pytest.param([0.0, 4.0, 8.0], [], 9.0, True, id="they stay slow"),
        pytest.param([0.0, 1.0], [], 6.0, False, id="it has not looked for too long"),
        pytest.param([0.0, 1.0], [2.0], 3.9, True, id="it misses itself since a moment"),
        pytest.param([0.0, 1.0], [2.0, 3.0], 4.0, False, id="the others do not wait longer"),
        pytest.param([0.0, 1.0, 3.0], [2.0], 3.1, True, id="it missed itself for a moment"),
        pytest.param([0.0, 1.0, 4.0], [2.0, 3.0], 4.1, False, id="for too long, and the others have not looked yet"),
        pytest.param([0.0, 10.0], [], 10.1, False, id="it was stopped, and the others have not looked yet"),
        pytest.param([0.0, 10.0, 11.0, 12.0, 13.0, 14.0], [], 14.9, False, id="it is back for some seconds"),
        pytest.param([0.0, 10.0, 11.0, 12.0, 13.0, 14.0], [], 15.0, True, id="all others have looked again"),
    ],
)
def test_whether_the_others_surely_take_a_broker_for_live(
    attached: list[float], missed: list[float], now: float, counts: bool
) -> None:
    live = LiveBrokers(broker(1))
    for asked in sorted(attached + missed):
        if asked in missed:
            assert not live.snapshot(brokers_of(2), asked)
        else:
            live.own_attached(asked)
    assert live.own_counts(now) is counts


class Registered:
    """A Pulsar that takes every producer, and names these publishers; and its admin REST."""

    max_message_size = 5 << 20

    def __init__(self, *publishers: tuple[str, dict[str, str]]) -> None:
        self.publishers = list(publishers)
        self.looks = 0
        self.hand: Callable[[Entry], None] = lambda _: None
        """What takes an entry of the brokers' topic."""
        self.permitted: list[int] = []

    async def open_producer(self, topic: str, *, name: str, properties: dict[str, str] | None = None, **_: Any) -> Any:
        if properties is None:
            raise PulsarError("ProducerBusy", "somebody has it")
        self.publishers.append((name, properties))
        return SimpleNamespace(name=name, last_sequence_id=-1, connected=True, close=self.nothing, send=self.send)

    async def open_reader(self, *_: Any, on_entry: Callable[[Entry], None], **__: Any) -> Any:
        self.hand = on_entry
        return SimpleNamespace(close=self.nothing, flow=self.permitted.append)

    async def nothing(self, *_: Any) -> None:
        pass

    create_partitioned = keep_when_idle = nothing

    def send(self, *_: Any, **__: Any) -> None:
        raise PulsarError("ConnectionLost", "so says the test")

    async def stats(self, partition: str) -> dict[str, Any]:
        self.looks += 1
        return {"publishers": [{"producerName": name, "metadata": told} for name, told in self.publishers]}


GOOD = {"host": "host-2", "port": "9002", "listeners": "PLAINTEXT:9002:host-2", "instance": "i2"}


@pytest.mark.parametrize(
    ("name", "properties"),
    [
        pytest.param("kop-broker-x", GOOD, id="no number"),
        pytest.param("kop-broker-02", GOOD, id="a number with a zero before it"),
        pytest.param("kop-broker-3", GOOD | {"port": "x"}, id="no port number"),
        pytest.param("kop-broker-3", {"host": "h", "instance": "i"}, id="no port"),
        pytest.param("kop-broker-3", GOOD | {"listeners": "PLAINTEXT"}, id="no listener"),
    ],
)
async def test_a_producer_that_names_no_broker_is_passed_over(
    name: str, properties: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_registry, "POLL_SECONDS", 0.01)
    pulsar: Any = Registered((name, properties), ("kop-broker-2", GOOD))
    pulsar.outage = Outage()
    registry = BrokerRegistry(PulsarContext(pulsar, pulsar, PulsarSettings()), "i1", lambda _: None)
    await registry.join(broker(1))
    looks = pulsar.looks
    await until(lambda: pulsar.looks > looks + 2)
    assert [live.node_id for live in registry.brokers] == [1, 2]
    assert registry.brokers[1].host == "host-2"
    assert caplog.text.count(f"the producer {name} of ") == 1
    assert "names no broker" in caplog.text
    await registry.close()


def entry_of(*records: Record) -> Entry:
    data = build(records)
    (made,) = transcode.to_entries(
        data, read_header(data), producer_name="kop-broker-2", sequence_base=0, publish_time=0, max_size=1 << 20
    )
    return stored(made.metadata, made.payload, len(records))


def stored(metadata: bytes, payload: bytes, messages: int = 1) -> Entry:
    return Entry(Position(3, 4), None, 0, messages, memoryview(metadata), memoryview(payload))


def told(*values: bytes | None, key: bytes | None = None) -> Entry:
    """What somebody publishes to the brokers' topic."""
    return entry_of(*(Record(number, 0, key, value) for number, value in enumerate(values)))


def metadata(**fields: Any) -> bytes:
    return pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields).SerializeToString()


ORDERS = "persistent://public/default/orders"


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(told(b"\xff\xfe"), id="no text"),
        pytest.param(told(b"hello"), id="no topic"),
        pytest.param(told(b"persistent://public/default/"), id="a topic without a name"),
        pytest.param(told(b"persistent://public/default/a/b"), id="a name of too many parts"),
        pytest.param(told(None), id="nothing"),
        pytest.param(told(None, key=b"leaves:x"), id="one that is no number leaves"),
        pytest.param(told(None, key=b"leaves:" + b"9" * 5000), id="a number that Python does not parse leaves"),
        pytest.param(stored(metadata() + b"\x00\x01", b""), id="metadata that does not parse"),
        pytest.param(stored(metadata(compression=pb.ZLIB, uncompressed_size=9), b"x"), id="what is no ZLIB"),
        pytest.param(told(b"\xff", b"\xff"), id="two records"),
    ],
)
async def test_what_no_gateway_publishes_is_passed_over(entry: Entry, caplog: pytest.LogCaptureFixture) -> None:
    pulsar: Any = Registered(("kop-broker-2", GOOD))
    pulsar.outage = Outage()
    announced: list[str] = []
    context = PulsarContext(pulsar, pulsar, PulsarSettings())
    registry = BrokerRegistry(context, "i1", announced.extend)
    await registry.join(broker(1))
    for given in (entry, entry, told(ORDERS.encode())):
        pulsar.hand(given)
    assert announced == [ORDERS]
    assert context.faults.counts == {"entries_unreadable/announcement": 2}
    (line,) = [record.getMessage() for record in caplog.records if "3:4" in record.getMessage()]
    assert "__gateways is not what a gateway writes there and is passed over" in line
    assert "see that nobody but gateways may produce" in line
    await registry.close()


async def test_an_entry_gives_back_as_many_permits_as_it_has_taken() -> None:
    pulsar: Any = Registered(("kop-broker-2", GOOD))
    pulsar.outage = Outage()
    registry = BrokerRegistry(PulsarContext(pulsar, pulsar, PulsarSettings()), "i1", lambda _: None)
    await registry.join(broker(1))
    pulsar.hand(told(*[ORDERS.encode()] * 3))
    pulsar.hand(told(ORDERS.encode()))
    assert pulsar.permitted == [3, 1]
    await registry.close()
