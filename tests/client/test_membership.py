"""A right that one member of a group has, and commits that only who has it may make."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from kafka import KafkaAdminClient
from support.waiting import wait_until

from kop.client.errors import ClientError, NotMemberError
from kop.client.fixed_topics import ensure_topics
from kop.client.membership import GroupPeer, Membership
from kop.client.write_client import MemberIdentity, WriteClient
from kop.testing import Broker

_numbers = itertools.count()
SECONDS = 30.0
Joined = Callable[[str], Membership]


@pytest.fixture
def name(kop_shared_broker: Broker) -> str:
    made = f"held-{next(_numbers)}"
    kop_shared_broker.create_topic(made, partitions=1)
    return made


@pytest.fixture
def join(kop_shared_broker: Broker, name: str) -> Iterator[Joined]:
    members: list[Membership] = []

    def made(client_id: str) -> Membership:
        settings = {"bootstrap_servers": [kop_shared_broker.bootstrap]}
        members.append(Membership(settings, client_id, name, name, lambda: None, 6.0))
        members[-1].start()
        return members[-1]

    yield made
    for member in members:
        member.close()


def holding(member: Membership) -> MemberIdentity:
    return wait_until(member.holding, "the partition", SECONDS)  # type: ignore[return-value]


def test_one_holds_and_all_know_it_until_it_leaves(join: Joined) -> None:
    first = join("first")
    before = holding(first)
    second = join("second")

    def both() -> tuple[GroupPeer, ...]:
        return (
            GroupPeer("first", holds=True, member_id=first.member_id, host="127.0.0.1"),
            GroupPeer("second", holds=False, member_id=second.member_id, host="127.0.0.1"),
        )

    wait_until(lambda: first.peers() == both() == second.peers(), "both to be known", SECONDS)
    assert second.holding() is None
    assert holding(first).member_id == before.member_id
    first.close()
    assert first.holding() is None
    assert holding(second).generation > before.generation
    left = [("second", True)]
    wait_until(lambda: [(p.client_id, p.holds) for p in second.peers()] == left, "the first to be gone", SECONDS)


def test_one_that_begins_to_leave_is_followed_by_the_next(join: Joined) -> None:
    first = join("first")
    holding(first)
    second = join("second")
    first.leave()
    assert holding(second)
    assert first.holding() is None


def test_one_that_joins_again_is_another_member(join: Joined) -> None:
    member = join("again")
    before = holding(member)
    member.rejoin()
    assert member.holding() is None
    assert holding(member).member_id != before.member_id


def test_one_that_the_group_has_expelled_is_told_and_comes_back(
    kop_shared_broker: Broker, join: Joined, name: str
) -> None:
    member = join("expelled")
    before = holding(member)
    kop_shared_broker.expire_sessions(name)
    wait_until(lambda: member.holding() not in {None, before}, "another membership", SECONDS)


def test_offsets_are_committed_by_a_member_of_this_generation_alone(
    kop_shared_broker: Broker, join: Joined, name: str
) -> None:
    identity = holding(join("committer"))
    with closing(WriteClient({"bootstrap_servers": [kop_shared_broker.bootstrap]}, 20.0)) as client:
        producer = client.init_producer(name, 60_000)
        client.commit_in_transaction(producer, name, {(name, 0): 5}, member=identity)
        client.end_transaction(producer)
        assert kop_shared_broker.committed(name) == {(name, 0): 5}
        for wrong in (
            identity._replace(generation=identity.generation - 1),
            identity._replace(member_id="nobody"),
        ):
            with pytest.raises(NotMemberError):
                client.commit_in_transaction(producer, name, {(name, 0): 6}, member=wrong)
            client.end_transaction(producer, commit=False)
    assert kop_shared_broker.committed(name) == {(name, 0): 5}


def test_a_group_is_deleted_with_its_offsets(kop_shared_broker: Broker, name: str) -> None:
    with closing(WriteClient({"bootstrap_servers": [kop_shared_broker.bootstrap]}, 20.0)) as client:
        client.commit(name, {(name, 0): 5})
        client.delete_group(name)
        assert kop_shared_broker.committed(name) == {}
        client.delete_group(name)


def test_fixed_topics_are_made_once_and_checked_then(kop_shared_broker: Broker) -> None:
    topic = f"fixed-{next(_numbers)}"
    settings = {"bootstrap_servers": [kop_shared_broker.bootstrap]}
    for _ in range(2):
        ensure_topics(settings, {topic: {"cleanup.policy": "compact"}})
    assert kop_shared_broker.topics()[topic] == 1
    with pytest.raises(ClientError, match=f"set cleanup.policy of the topic {topic} to delete: it is compact"):
        ensure_topics(settings, {topic: {"cleanup.policy": "delete"}})
    admin = KafkaAdminClient(bootstrap_servers=kop_shared_broker.bootstrap)
    admin.create_partitions({topic: 2})
    admin.close()
    with pytest.raises(ClientError, match=f"make the topic {topic} again with one partition: it has 2"):
        ensure_topics(settings, {topic: {"cleanup.policy": "compact"}})
