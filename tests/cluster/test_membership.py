"""Which broker a partition is given to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from uuid import UUID, uuid4

from kop.cluster.membership import Membership
from kop.storage.base import Member


class LiveBrokers:
    """The `Members` of storage, as the test says."""

    members_fresh = True

    def __init__(self, *ids: int) -> None:
        self.members = [Member(node, f"host-{node}", 9000 + node) for node in ids]
        self._callbacks: list[Callable[[], None]] = []

    def on_members(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    async def join(self, member: Member) -> None:
        self.members.append(member)

    def change(self, *ids: int) -> None:
        self.members = [Member(node, f"host-{node}", 9000 + node) for node in ids]
        for callback in self._callbacks:
            callback()


def places(membership: Membership, topic: UUID, count: int = 200) -> list[int]:
    return [membership.leader(topic, index) for index in range(count)]


def test_alone_it_leads_everything() -> None:
    membership = Membership(LiveBrokers(), 7)
    assert membership.ids == [7]
    assert membership.nodes(("me", 1)) == [(7, "me", 1)]
    assert set(places(membership, uuid4())) == {7}


def test_every_broker_sees_the_same_leaders() -> None:
    topic = uuid4()
    views = [places(Membership(LiveBrokers(1, 2, 3), node), topic) for node in (1, 2, 3)]
    assert views[0] == views[1] == views[2]
    assert min(Counter(views[0]).values()) > 30


def test_a_broker_that_goes_moves_its_own_share_only() -> None:
    brokers, topic = LiveBrokers(1, 2, 3, 4), uuid4()
    membership = Membership(brokers, 1)
    before = places(membership, topic)
    heard = []
    membership.on_change(lambda: heard.append(membership.version))
    brokers.change(1, 2, 4)
    after = places(membership, topic)
    assert all(old == new for old, new in zip(before, after, strict=True) if old != 3)
    assert 3 not in after
    brokers.change(1, 2, 4)
    assert heard == [2, 2], "the same ones, after a time in which nobody looked: some may have been away"
    brokers.change(1, 2, 3, 4)
    assert places(membership, topic) == before


def test_addresses_are_those_the_others_told_and_our_own_as_the_client_knows_it() -> None:
    membership = Membership(LiveBrokers(1, 2), 2)
    assert membership.nodes(("seen", 5)) == [(1, "host-1", 9001), (2, "seen", 5)]
    assert membership.address(1, ("seen", 5)) == ("host-1", 9001)
