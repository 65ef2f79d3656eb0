"""Which broker a partition is given to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from uuid import UUID, uuid4

from kop.cluster.cluster_view import ClusterView
from kop.storage.base import LiveBroker


class FakeBrokers:
    """The `Brokers` of storage, as the test says."""

    brokers_fresh = True

    def __init__(self, *ids: int) -> None:
        self.brokers = [LiveBroker(node, f"host-{node}", 9000 + node) for node in ids]
        self._callbacks: list[Callable[[], None]] = []

    def on_brokers(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    async def join(self, broker: LiveBroker) -> None:
        self.brokers.append(broker)

    def change(self, *ids: int) -> None:
        self.brokers = [LiveBroker(node, f"host-{node}", 9000 + node) for node in ids]
        for callback in self._callbacks:
            callback()


def places(cluster: ClusterView, topic: UUID, count: int = 200) -> list[int]:
    return [cluster.leader(topic, index) for index in range(count)]


def test_alone_it_leads_everything() -> None:
    cluster = ClusterView(FakeBrokers(), 7)
    assert cluster.ids == [7]
    assert cluster.endpoints(("me", 1)) == [(7, "me", 1)]
    assert set(places(cluster, uuid4())) == {7}


def test_a_snapshot_has_the_other_brokers() -> None:
    brokers = FakeBrokers(1, 2)
    cluster = ClusterView(brokers, 1)
    assert cluster.snapshot().broker_id == 1
    assert cluster.snapshot().others == (LiveBroker(2, "host-2", 9002),)
    brokers.change(1)
    assert cluster.snapshot().others == ()


def test_every_broker_sees_the_same_leaders() -> None:
    topic = uuid4()
    views = [places(ClusterView(FakeBrokers(1, 2, 3), node), topic) for node in (1, 2, 3)]
    assert views[0] == views[1] == views[2]
    assert min(Counter(views[0]).values()) > 30


def test_a_broker_that_goes_moves_its_own_share_only() -> None:
    brokers, topic = FakeBrokers(1, 2, 3, 4), uuid4()
    cluster = ClusterView(brokers, 1)
    before = places(cluster, topic)
    heard = []
    cluster.on_change(lambda: heard.append(cluster.version))
    brokers.change(1, 2, 4)
    after = places(cluster, topic)
    assert all(old == new for old, new in zip(before, after, strict=True) if old != 3)
    assert 3 not in after
    brokers.change(1, 2, 4)
    assert heard == [2, 2], "the same ones, after a time in which nobody looked: some may have been away"
    brokers.change(1, 2, 3, 4)
    assert places(cluster, topic) == before


def test_addresses_are_those_the_others_told_and_our_own_as_the_client_knows_it() -> None:
    cluster = ClusterView(FakeBrokers(1, 2), 2)
    assert cluster.endpoints(("seen", 5)) == [(1, "host-1", 9001), (2, "seen", 5)]
    assert cluster.address(1, ("seen", 5)) == ("host-1", 9001)


def test_a_broker_that_lacks_the_clients_listener_is_not_told() -> None:
    brokers = FakeBrokers(1, 2)
    named = (("OUTSIDE", "outside-2", 9094),)
    brokers.brokers = [LiveBroker(1, "host-1", 9001), LiveBroker(2, "host-2", 9002, named)]
    cluster, topic = ClusterView(brokers, 1), uuid4()
    own = ("me", 1)
    assert cluster.endpoints(own, "OUTSIDE") == [(1, "me", 1), (2, "outside-2", 9094)]
    assert cluster.endpoints(own, "INSIDE") == [(1, "me", 1)]
    assert cluster.endpoints(own) == [(1, "me", 1)]
    assert cluster.address(2, own, "INSIDE") is None
    led = next(index for index in range(100) if cluster.leader(topic, index) == 2)
    assert cluster.leader_for(topic, led, "OUTSIDE") == 2
    assert cluster.leader_for(topic, led, "INSIDE") == 1
