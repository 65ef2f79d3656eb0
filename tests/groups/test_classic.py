"""Kafka's rules for classic groups, one by one, with simulated time."""

from __future__ import annotations

from typing import NamedTuple, Unpack

import pytest
from groups.group_machine import REBALANCE, SESSION, Machine, Settings, subscription

from kop.coordination.deadlines import NEVER
from kop.coordination.failed_writes import answer_for
from kop.errors import ErrorCode, InternalError
from kop.groups.classic.group import ClassicGroup, State
from kop.groups.classic.messages import LeavingMember, Protocols
from kop.groups.classic.roster import MOST_TOPICS, topics_of
from kop.wire.state import GroupMetadataValue

E = ErrorCode
DELAY = 3000


def group(count: int = 1, *, session: int = SESSION, **settings: Unpack[Settings]) -> tuple[Machine, list[str]]:
    """A stable group of that many members, and their ids, the leader's first."""
    machine = Machine(**settings)
    return machine, machine.stable(count, session=session)


# -- joining


def test_kip_394_new_member_is_told_its_id_first() -> None:
    m = Machine()
    answer = m.joined(m.join(client="app"), E.MEMBER_ID_REQUIRED)
    assert answer.member_id.startswith("app-")
    assert len(answer.member_id) == len("app-") + 36
    assert list(m.group.roster.pending) == [answer.member_id]
    assert m.group.state is State.EMPTY
    m.join(answer.member_id)
    assert not m.group.roster.pending
    assert m.group.state is State.PREPARING_REBALANCE


@pytest.mark.parametrize("version", [0, 1, 3])
def test_kip_394_old_versions_join_at_once(version: int) -> None:
    m = Machine()
    member_id, token = m.member(version=version)
    m.advance(DELAY)
    assert m.joined(token).member_id == member_id


def test_pending_member_is_forgotten_after_its_session() -> None:
    m = Machine()
    member_id = m.joined(m.join(), E.MEMBER_ID_REQUIRED).member_id
    m.advance(SESSION - 1)
    assert member_id in m.group.roster.pending
    m.advance(1)
    assert not m.group.roster.pending
    m.joined(m.join(member_id), E.UNKNOWN_MEMBER_ID)
    assert m.group.next_deadline == NEVER


def test_pending_member_delays_the_rebalance_until_it_expires() -> None:
    m, [a] = group()
    pending = m.joined(m.join(session=6000), E.MEMBER_ID_REQUIRED).member_id
    assert m.group.state is State.STABLE
    token = m.join(a)  # the leader joins again: a rebalance begins
    assert m.group.state is State.PREPARING_REBALANCE
    m.advance(6000)
    assert m.joined(token).generation == 2
    m.joined(m.join(pending), E.UNKNOWN_MEMBER_ID)


def test_pending_member_has_no_generation() -> None:
    m = Machine()
    pending = m.joined(m.join(), E.MEMBER_ID_REQUIRED).member_id
    assert m.heartbeat(pending, 0) == E.UNKNOWN_MEMBER_ID
    assert m.commit(pending, 0) == E.UNKNOWN_MEMBER_ID
    m.joined(m.join(pending, instance="i"), E.UNKNOWN_SERVER_ERROR)


def test_initial_delay_collects_members_and_is_extended_up_to_the_rebalance_timeout() -> None:
    m = Machine()
    asked = [m.member(rebalance=8000)]
    for _ in range(2):  # members keep coming: 3 s, 6 s, and then 2 s are left
        m.advance(DELAY - 1)
        assert not m.answers.keys() & {token for _, token in asked}
        asked.append(m.member(rebalance=8000))
        m.advance(1)
    assert m.group.state is State.PREPARING_REBALANCE
    asked.append(m.member(rebalance=8000))
    m.advance(1999)
    assert m.group.state is State.PREPARING_REBALANCE
    m.advance(1)
    assert {m.joined(token).generation for _, token in asked} == {1}


def test_initial_delay_is_not_extended_without_new_members() -> None:
    m = Machine()
    _, token = m.member()
    m.advance(DELAY - 1)
    assert token in m.waiting
    m.advance(1)
    assert m.joined(token).generation == 1


def test_initial_delay_of_zero_completes_on_the_next_tick() -> None:
    m = Machine(group_initial_rebalance_delay_ms=0)
    _, token = m.member()
    assert token in m.waiting
    m.advance(0)
    assert m.joined(token).generation == 1


def test_initial_delay_is_not_cut_short_by_a_pending_member_that_expires() -> None:
    m = Machine()
    m.joined(m.join(session=6000), E.MEMBER_ID_REQUIRED)
    m.advance(5000)
    _, token = m.member(version=3)
    m.advance(1000)
    assert not m.group.roster.pending
    m.advance(DELAY - 1001)
    assert token in m.waiting
    m.advance(1)
    assert m.joined(token).generation == 1


def test_leader_alone_sees_the_members() -> None:
    m = Machine()
    a, first = m.member(protocols=(("range", b"a"),))
    b, second = m.member(protocols=(("range", b"b"),))
    m.advance(DELAY * 2)
    leader, follower = m.joined(first), m.joined(second)
    assert leader.leader == follower.leader == a
    assert [(member.member_id, member.metadata) for member in leader.members] == [(a, b"a"), (b, b"b")]
    assert follower.members == ()
    assert leader.protocol_type == "consumer"
    assert leader.protocol == "range"
    assert not leader.skip_assignment


@pytest.mark.parametrize(("protocols", "protocol_type"), [((), "consumer"), ((("range", b""),), ""), ((), "")])
def test_empty_group_needs_a_type_and_a_protocol(protocols: Protocols, protocol_type: str) -> None:
    m = Machine()
    m.joined(m.join(protocols=protocols, protocol_type=protocol_type), E.INCONSISTENT_GROUP_PROTOCOL)
    assert m.group.untouched


@pytest.mark.parametrize(
    ("protocols", "protocol_type"), [((("other", b""),), "consumer"), ((("range", b""),), "connect")]
)
def test_inconsistent_group_protocol(protocols: Protocols, protocol_type: str) -> None:
    m, [a] = group()
    m.joined(m.join(protocols=protocols, protocol_type=protocol_type), E.INCONSISTENT_GROUP_PROTOCOL)
    m.joined(m.join(a, protocols=protocols, protocol_type=protocol_type), E.INCONSISTENT_GROUP_PROTOCOL)
    assert m.group.state is State.STABLE


def test_protocol_is_voted_among_those_that_all_support() -> None:
    m = Machine()
    tokens = [
        m.member(protocols=(("x", b""), ("y", b""), ("z", b"")))[1],
        m.member(protocols=(("y", b""), ("x", b"")))[1],
        m.member(protocols=(("w", b""), ("y", b""), ("x", b"")))[1],
    ]
    m.advance(DELAY * 3)
    assert {m.joined(token).protocol for token in tokens} == {"y"}


def test_protocols_that_nobody_supports_any_more_are_forgotten() -> None:
    m, [a] = group()
    for number in range(3):
        m.join(a, protocols=(("range", b""), (f"other-{number}", b"")))
        m.assign()
        assert m.group.roster.support == {"range": 1, f"other-{number}": 1}
    m.leave(LeavingMember(a))
    assert m.group.roster.support == {}


def test_emptied_group_takes_another_protocol_type() -> None:
    m, [a] = group()
    m.leave(LeavingMember(a))
    m.store()
    m.member(protocol_type="connect")
    m.advance(DELAY)
    assert m.group.protocol_type == "connect"


def test_group_max_size() -> None:
    m = Machine(group_max_size=2)
    m.stable(2)
    m.joined(m.join(), E.GROUP_MAX_SIZE_REACHED)
    assert m.group.state is State.STABLE
    assert len(m.group.roster) == 2


def test_group_max_size_counts_those_that_wait_during_a_rebalance() -> None:
    m = Machine(group_max_size=2)
    (_, first), (_, second) = m.member(), m.member()
    late = m.joined(m.join(), E.GROUP_MAX_SIZE_REACHED)
    assert late.member_id == ""
    m.advance(DELAY * 2)
    m.joined(first)
    m.joined(second)


def test_group_max_size_throws_out_the_member_that_rejoins_last() -> None:
    m = Machine(group_max_size=3)
    a, b, c = m.stable(3)
    m.group.settings = Machine(group_max_size=2).settings
    m.join(a)
    m.join(b)
    m.joined(m.join(c), E.GROUP_MAX_SIZE_REACHED)
    assert set(m.group.roster.members) == {a, b}
    assert m.group.state is State.COMPLETING_REBALANCE, "nobody is missing any more"


def test_new_member_without_answer_expires_after_the_join_timeout() -> None:
    m, [a] = group(new_member_join_timeout_ms=20_000)
    _, token = m.member()  # a never rejoins but beats
    for _ in range(4):
        m.advance(4999)
        assert m.heartbeat(a, 1) == E.REBALANCE_IN_PROGRESS
    m.advance(4)
    m.joined(token, E.UNKNOWN_MEMBER_ID)
    assert list(m.group.roster.members) == [a]


# -- rebalancing


def test_new_member_rebalances_and_members_rejoin() -> None:
    m, [a] = group()
    _, token = m.member()
    assert m.group.state is State.PREPARING_REBALANCE
    assert m.heartbeat(a, 1) == E.REBALANCE_IN_PROGRESS
    assert token in m.waiting
    again = m.join(a)
    assert m.joined(token).generation == m.joined(again).generation == 2
    assert m.joined(again).leader == a, "the leader is kept"
    assert m.group.state is State.COMPLETING_REBALANCE
    m.assign()


def test_members_that_do_not_rejoin_are_removed_at_the_rebalance_timeout() -> None:
    m, [a, b] = group(2, session=1_000_000)
    token = m.join(b, session=1_000_000, protocols=(("range", b"new"),))
    m.advance(REBALANCE - 1)
    assert token in m.waiting
    m.advance(1)
    answer = m.joined(token)
    assert answer.leader == b
    assert [member.member_id for member in answer.members] == [b]
    assert m.heartbeat(a, 1) == E.UNKNOWN_MEMBER_ID


def test_rebalance_timeout_is_the_longest_of_the_members() -> None:
    m = Machine()
    m.member(rebalance=100_000)
    m.member(rebalance=7_000)
    assert m.group.roster.rebalance_timeout_ms == 100_000


def test_static_members_that_do_not_rejoin_stay_in_the_next_generation() -> None:
    m = Machine()
    a, _ = m.member(instance="a", session=90_000)
    b, _ = m.member(instance="b", session=90_000)
    m.advance(DELAY * 2)
    m.assign()
    token = m.join(b, instance="b", session=90_000, protocols=(("range", b"new"),))
    m.advance(REBALANCE)
    assert m.joined(token).leader == b
    assert set(m.group.roster.members) == {a, b}
    m.sync(b, 2, {a: b"A", b: b"B"}, instance="b")
    m.store()
    assert m.group.state is State.STABLE
    m.advance(REBALANCE)  # but it has to ask for its assignment in time
    assert set(m.group.roster.members) == {b}


def test_rebalance_without_any_rejoin_waits_for_static_sessions() -> None:
    m = Machine()
    a, _ = m.member(instance="a", session=100_000, rebalance=10_000)
    m.advance(DELAY)
    m.assign()
    b, token = m.member(rebalance=10_000)
    m.leave(LeavingMember(b))  # only `a` is left, which is expected to rejoin
    m.joined(token, E.UNKNOWN_MEMBER_ID)
    m.advance(10_000)
    assert m.group.state is State.PREPARING_REBALANCE
    assert set(m.group.roster.members) == {a}
    m.advance(90_000)
    assert m.group.state is State.EMPTY


@pytest.mark.parametrize("rebalance", [0, -5])
def test_rebalance_timeouts_that_make_no_sense_do_not_hang_the_machine(rebalance: int) -> None:
    m = Machine()
    m.member(instance="a", rebalance=rebalance)
    m.advance(DELAY)
    m.advance(SESSION * 3)
    assert m.group.state is State.EMPTY


def test_leader_that_rejoins_a_stable_group_rebalances() -> None:
    m, [a, b] = group(2)
    m.join(a)
    assert m.group.state is State.PREPARING_REBALANCE
    assert m.heartbeat(b, 1) == E.REBALANCE_IN_PROGRESS


def test_follower_that_rejoins_unchanged_gets_the_present_generation() -> None:
    m, [a, b] = group(2)
    answer = m.joined(m.join(b))
    assert (answer.generation, answer.leader, answer.members) == (1, a, ())
    assert m.group.state is State.STABLE


def test_follower_that_rejoins_with_other_metadata_rebalances() -> None:
    m, [_, b] = group(2)
    m.join(b, protocols=(("range", b"other"),))
    assert m.group.state is State.PREPARING_REBALANCE


def test_member_that_lost_its_answer_gets_it_again_while_completing() -> None:
    m = Machine()
    a, _ = m.member()
    b, _ = m.member()
    m.advance(DELAY * 2)
    assert [member.member_id for member in m.joined(m.join(a)).members] == [a, b]
    assert m.joined(m.join(b)).members == ()
    assert m.group.state is State.COMPLETING_REBALANCE


def test_other_metadata_while_completing_rebalances_and_sends_syncs_away() -> None:
    m = Machine()
    a, _ = m.member()
    b, _ = m.member()
    m.advance(DELAY * 2)
    waiting = m.sync(b, 1)
    m.join(a, protocols=(("range", b"new"),))
    m.synced(waiting, E.REBALANCE_IN_PROGRESS)
    assert m.group.state is State.PREPARING_REBALANCE


def test_a_second_join_of_a_waiting_member_answers_the_first() -> None:
    m, [a, _] = group(2)
    first = m.join(a)
    second = m.join(a)
    m.joined(first, E.REBALANCE_IN_PROGRESS)
    assert second in m.waiting


# -- SyncGroup


def test_assignment_is_answered_only_when_it_is_stored() -> None:
    m = Machine()
    a, _ = m.member()
    b, _ = m.member()
    m.advance(DELAY * 2)
    tokens = [m.sync(b, 1), m.sync(a, 1, {a: b"A", b: b"B"})]
    assert set(tokens) <= m.waiting
    assert m.group.state is State.COMPLETING_REBALANCE
    value = m.store()
    assert [(member.member_id, member.assignment) for member in value.members] == [(a, b"A"), (b, b"B")]
    assert (value.generation, value.leader, value.protocol) == (1, a, "range")
    assert [m.synced(token).assignment for token in tokens] == [b"B", b"A"]
    assert m.synced(tokens[0]).protocol_type == "consumer"
    assert m.group.state is State.STABLE


def test_members_without_assignment_get_an_empty_one_and_strangers_none() -> None:
    m = Machine()
    a, _ = m.member()
    b, _ = m.member()
    m.advance(DELAY * 2)
    follower, _leader = m.sync(b, 1), m.sync(a, 1, {"stranger": b"x"})
    assert [member.member_id for member in m.store().members] == [a, b]
    assert m.synced(follower).assignment == b""


def test_sync_in_a_stable_group_answers_the_stored_assignment() -> None:
    m, [a] = group()
    assert m.synced(m.sync(a, 1)).assignment == a.encode()
    assert m.synced(m.sync(a, 1, protocol=None, protocol_type=None)).assignment == a.encode()


class Sync(NamedTuple):
    """What a SyncGroup says; without a `member_id` that of the only member."""

    member_id: str = ""
    generation: int = 1
    instance: str | None = None
    protocol_type: str = "consumer"
    protocol: str = "range"


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (Sync(generation=2), E.ILLEGAL_GENERATION),
        (Sync(generation=0), E.ILLEGAL_GENERATION),
        (Sync(member_id="stranger"), E.UNKNOWN_MEMBER_ID),
        (Sync(protocol_type="connect"), E.INCONSISTENT_GROUP_PROTOCOL),
        (Sync(protocol="roundrobin"), E.INCONSISTENT_GROUP_PROTOCOL),
        (Sync(instance="i"), E.UNKNOWN_MEMBER_ID),
    ],
)
def test_sync_is_checked(asked: Sync, error: E) -> None:
    m, [a] = group()
    token = m.sync(
        asked.member_id or a,
        asked.generation,
        instance=asked.instance,
        protocol_type=asked.protocol_type,
        protocol=asked.protocol,
    )
    m.synced(token, error)


def test_sync_during_a_rebalance_and_in_an_empty_group() -> None:
    m, [a, b] = group(2)
    m.join(b, protocols=(("range", b"new"),))
    m.synced(m.sync(a, 1), E.REBALANCE_IN_PROGRESS)
    m.leave(LeavingMember(a), LeavingMember(b))
    m.store()
    m.synced(m.sync(a, 1), E.UNKNOWN_MEMBER_ID)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.REQUEST_TIMED_OUT, E.COORDINATOR_NOT_AVAILABLE),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
        (E.UNKNOWN_SERVER_ERROR, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_failed_write_of_the_assignment_resets_the_group(failure: E, error: E) -> None:
    m = Machine()
    a, _ = m.member()
    m.advance(DELAY)
    token = m.sync(a, 1, {a: b"A"})
    m.store(failure)
    m.synced(token, error)
    assert answer_for(failure) == error
    assert m.group.state is State.PREPARING_REBALANCE
    again = m.join(a)
    assert m.joined(again).generation == 2
    assert m.group.roster.members[a].assignment == b""


def test_write_that_ends_after_a_new_rebalance_changes_nothing() -> None:
    m = Machine()
    a, _ = m.member()
    m.advance(DELAY)
    token = m.sync(a, 1, {a: b"A"})
    b, _ = m.member()
    m.synced(token, E.REBALANCE_IN_PROGRESS)
    m.store()
    assert m.group.state is State.PREPARING_REBALANCE
    m.join(a)
    assert m.group.generation == 2
    assert m.group.roster.members[a].assignment == b""
    assert b in m.group.roster.members


def test_members_that_do_not_sync_are_removed() -> None:
    m = Machine()
    m.member(session=200_000)
    b, _ = m.member(session=200_000)
    m.advance(DELAY * 2)
    token = m.sync(b, 1)
    m.advance(REBALANCE)
    m.synced(token, E.REBALANCE_IN_PROGRESS)
    assert list(m.group.roster.members) == [b]
    assert m.group.state is State.PREPARING_REBALANCE


def test_member_that_does_not_sync_in_a_stable_group_is_removed() -> None:
    m = Machine()
    a, _ = m.member(session=200_000)
    b, _ = m.member(session=200_000)
    m.advance(DELAY * 2)
    m.sync(a, 1, {a: b"A", b: b"B"})
    m.store()
    assert m.group.state is State.STABLE
    m.advance(REBALANCE)
    assert list(m.group.roster.members) == [a]
    assert m.group.state is State.PREPARING_REBALANCE


def test_all_synced_ends_the_sync_timeout() -> None:
    m, members = group(2, session=1_000_000)
    m.advance(REBALANCE * 2)
    assert m.group.state is State.STABLE
    assert set(m.group.roster.members) == set(members)


# -- heartbeats and sessions


def test_heartbeat_errors() -> None:
    m, [a] = group()
    assert m.heartbeat(a, 1) == E.NONE
    assert m.heartbeat(a, 2) == E.ILLEGAL_GENERATION
    assert m.heartbeat("stranger", 1) == E.UNKNOWN_MEMBER_ID
    assert m.heartbeat(a, 1, instance="i") == E.UNKNOWN_MEMBER_ID


def test_heartbeat_is_good_while_completing() -> None:
    m = Machine()
    a, _ = m.member()
    m.advance(DELAY)
    assert m.group.state is State.COMPLETING_REBALANCE
    assert m.heartbeat(a, 1) == E.NONE


def test_session_ends_without_heartbeats() -> None:
    m, [a, b] = group(2)
    m.advance(SESSION - 1)
    m.heartbeat(a, 1)
    m.advance(1)
    assert list(m.group.roster.members) == [a]
    assert m.group.state is State.PREPARING_REBALANCE
    assert m.heartbeat(b, 1) == E.UNKNOWN_MEMBER_ID


def test_last_session_ends_and_the_group_is_empty() -> None:
    m, [_a] = group()
    m.advance(SESSION)
    value = m.store()
    assert m.group.state is State.EMPTY
    assert (value.generation, value.members, value.protocol, value.leader) == (2, (), None, None)
    assert value.protocol_type == "consumer"
    assert value.current_state_timestamp == m.now


def test_waiting_join_keeps_an_old_member_alive() -> None:
    m, [a, b] = group(2, session=SESSION)
    token = m.join(a)
    for _ in range(5):
        m.advance(SESSION - 1)
        m.heartbeat(b, 1)
    assert token in m.waiting
    assert set(m.group.roster.members) == {a, b}


def test_commit_keeps_the_session_alive() -> None:
    m, [a] = group()
    for _ in range(5):
        m.advance(SESSION - 1)
        assert m.commit(a, 1) == E.NONE
    assert m.group.state is State.STABLE


# -- leaving


def test_leave_rebalances() -> None:
    m, [a, b] = group(2)
    assert m.leave(LeavingMember(b)) == [E.NONE]
    assert m.group.state is State.PREPARING_REBALANCE
    assert m.joined(m.join(a)).generation == 2


def test_leave_of_the_last_member_empties_the_group() -> None:
    m, [a] = group()
    assert m.leave(LeavingMember(a)) == [E.NONE]
    assert m.group.state is State.EMPTY
    assert m.store().members == ()


def test_leave_several_members_by_id_and_instance() -> None:
    m = Machine()
    a, _ = m.member(instance="a")
    b, _ = m.member(instance="b")
    c, _ = m.member()
    m.advance(DELAY * 3)
    m.assign()
    assert m.leave(
        LeavingMember("", "a"),
        LeavingMember(a, "b"),
        LeavingMember("x", "b"),
        LeavingMember("", "nobody"),
        LeavingMember(""),
        LeavingMember(c, "b"),
        LeavingMember(c, reason="done"),
    ) == [
        E.NONE,
        E.FENCED_INSTANCE_ID,
        E.FENCED_INSTANCE_ID,
        E.UNKNOWN_MEMBER_ID,
        E.UNKNOWN_MEMBER_ID,
        E.FENCED_INSTANCE_ID,
        E.NONE,
    ]
    assert list(m.group.roster.members) == [b]


def test_leave_of_a_pending_member() -> None:
    m = Machine()
    pending = m.joined(m.join(), E.MEMBER_ID_REQUIRED).member_id
    assert m.leave(LeavingMember(pending)) == [E.NONE]
    assert m.leave(LeavingMember(pending)) == [E.UNKNOWN_MEMBER_ID]


def test_leave_during_a_rebalance_completes_it() -> None:
    m, [a, b, c] = group(3)
    tokens = [m.join(a), m.join(b)]
    assert m.leave(LeavingMember(c)) == [E.NONE]
    assert [m.joined(token).generation for token in tokens] == [2, 2]


def test_leave_answers_what_the_member_waits_for() -> None:
    m, [a, b] = group(2)
    join = m.join(a)
    m.leave(LeavingMember(a))
    m.joined(join, E.UNKNOWN_MEMBER_ID)
    m.join(b)
    m.member()
    m.join(b, protocols=(("range", b"2"),))
    m.advance(0)
    follower = next(x for x in m.group.roster.members if x != m.group.roster.leader)
    sync = m.sync(follower, m.group.generation)
    m.leave(LeavingMember(follower))
    m.synced(sync, E.UNKNOWN_MEMBER_ID)


def test_leader_leaves_and_another_leads() -> None:
    m, [a, b] = group(2)
    m.leave(LeavingMember(a))
    assert m.joined(m.join(b)).leader == b


# -- static members


def static() -> tuple[Machine, str, str]:
    """A stable group of two static members, the leader first."""
    m = Machine()
    a, _ = m.member(instance="a")
    b, _ = m.member(instance="b")
    m.advance(DELAY * 2)
    m.assign()
    return m, a, b


def test_kip_345_static_member_joins_without_a_second_request() -> None:
    m = Machine()
    a, token = m.member(instance="a")
    assert a.startswith("a-")
    m.advance(DELAY)
    assert m.joined(token).members[0].instance_id == "a"


@pytest.mark.parametrize("version", [5, 8, 9])
def test_kip_345_returning_follower_takes_its_place_without_a_rebalance(version: int) -> None:
    m, a, b = static()
    token = m.join(instance="b", version=version)
    assert token in m.waiting, "the new id is stored first"
    value = m.store()
    answer = m.joined(token)
    assert answer.member_id != b
    assert [member.member_id for member in value.members] == [a, answer.member_id]
    assert (answer.generation, answer.leader, answer.members, answer.skip_assignment) == (1, a, (), False)
    assert m.group.state is State.STABLE
    assert m.synced(m.sync(answer.member_id, 1, instance="b")).assignment == b.encode()


def test_kip_814_returning_leader_is_told_to_skip_the_assignment() -> None:
    m, a, b = static()
    token = m.join(instance="a")
    m.store()
    answer = m.joined(token)
    assert answer.skip_assignment
    assert answer.leader == answer.member_id != a
    assert [member.member_id for member in answer.members] == [answer.member_id, b]


def test_kip_345_returning_leader_before_kip_814_is_told_its_old_id() -> None:
    m, a, _ = static()
    token = m.join(instance="a", version=8)
    m.store()
    answer = m.joined(token)
    assert (answer.leader, answer.members, answer.skip_assignment) == (a, (), False)
    assert m.group.roster.leader == answer.member_id


def test_kip_345_old_id_is_fenced() -> None:
    m, a, _ = static()
    m.join(instance="a")
    m.store()
    assert m.heartbeat(a, 1, "a") == E.FENCED_INSTANCE_ID
    assert m.heartbeat(a, 1) == E.UNKNOWN_MEMBER_ID
    assert m.commit(a, 1, "a") == E.FENCED_INSTANCE_ID
    m.synced(m.sync(a, 1, instance="a"), E.FENCED_INSTANCE_ID)
    m.joined(m.join(a, instance="a"), E.FENCED_INSTANCE_ID)
    assert m.leave(LeavingMember(a, "a")) == [E.FENCED_INSTANCE_ID]


def test_kip_345_what_the_old_id_waits_for_is_fenced() -> None:
    m = Machine()
    a, join = m.member(instance="a")
    m.join(instance="a")
    m.joined(join, E.FENCED_INSTANCE_ID)
    m.member(instance="b")
    m.advance(DELAY * 2)
    follower = next(x for x in m.group.roster.members.values() if x.member_id != m.group.roster.leader)
    sync = m.sync(follower.member_id, 1, instance=follower.instance_id)
    m.join(instance=follower.instance_id)
    m.synced(sync, E.FENCED_INSTANCE_ID)
    assert a not in m.group.roster


def test_kip_345_return_while_completing_rebalances() -> None:
    m = Machine()
    m.member(instance="a")
    m.advance(DELAY)
    m.join(instance="a")
    assert m.group.generation == 2


def test_kip_345_return_that_changes_the_protocol_rebalances() -> None:
    m = Machine()
    for name in "ab":
        m.member(instance=name, protocols=(("x", b""), ("y", b"")))
    m.advance(DELAY * 2)
    m.assign()
    assert m.group.protocol == "x"
    m.join(instance="a", protocols=(("y", b""),))
    assert m.group.state is State.PREPARING_REBALANCE


def test_kip_345_failed_write_brings_the_old_id_back() -> None:
    m, a, b = static()
    token = m.join(instance="a", session=70_000, protocols=(("range", b"new"),))
    m.store(E.KAFKA_STORAGE_ERROR)
    answer = m.joined(token, E.NOT_COORDINATOR)
    assert (answer.member_id, answer.generation, answer.leader) == ("", 1, a)
    assert m.group.roster.leader == a
    assert list(m.group.roster.members) == [a, b]
    assert m.heartbeat(a, 1, "a") == E.NONE
    member = m.group.roster.members[a]
    assert (member.session_timeout_ms, member.metadata("range")) == (SESSION, b"meta")


def test_kip_345_rebalance_during_the_write_answers_the_return() -> None:
    m, _a, b = static()
    token = m.join(instance="a")
    m.member()
    assert token in m.waiting
    m.store()
    assert token in m.waiting, "the rebalance answers"
    m.join(b, instance="b")
    assert m.joined(token).generation == 2


def test_kip_345_return_during_the_write_of_another_return() -> None:
    m, _a, _b = static()
    first = m.join(instance="a")
    second = m.join(instance="a")
    m.joined(first, E.FENCED_INSTANCE_ID)
    m.store()
    assert second in m.waiting
    m.store()
    m.joined(second)


def test_kip_345_return_into_an_emptied_group_is_a_new_member() -> None:
    m, _, _ = static()
    m.leave(LeavingMember("", "a"), LeavingMember("", "b"))
    m.store()
    _, token = m.member(instance="a")
    m.advance(DELAY)
    assert m.joined(token).generation == 3


# -- commits


def test_commit_rules() -> None:
    m, [a] = group()
    assert m.commit(a, 1) == E.NONE
    assert m.commit(a, 2) == E.ILLEGAL_GENERATION
    assert m.commit(a, -1) == E.ILLEGAL_GENERATION
    assert m.commit("stranger", 1) == E.UNKNOWN_MEMBER_ID
    assert m.commit("", 1) == E.UNKNOWN_MEMBER_ID
    assert m.commit("", -1) == E.UNKNOWN_MEMBER_ID, "the group has members"
    assert m.commit(a, 1, "i") == E.UNKNOWN_MEMBER_ID
    m.join(a)
    assert m.commit(a, 2) == E.REBALANCE_IN_PROGRESS, "completing"
    m.member()
    assert m.commit(a, 2) == E.NONE, "preparing: it may commit what it gives up"
    m.leave(LeavingMember(a), *[LeavingMember(x) for x in m.group.roster.members if x != a])
    assert m.group.state is State.EMPTY
    assert m.commit("", -1) == E.NONE
    assert m.commit("whoever", -1) == E.NONE
    assert m.commit(a, 2) == E.UNKNOWN_MEMBER_ID


# -- descriptions, subscriptions, deletion


def test_description_shows_metadata_only_when_stable() -> None:
    m, [a] = group()
    described = m.group.describe()
    assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
    [member] = described.members
    assert (member.member_id, member.subscription, member.assignment) == (a, b"meta", a.encode())
    assert (member.client_id, member.client_host) == ("client", "/127.0.0.1")
    m.member()
    described = m.group.describe()
    assert (described.state, described.protocol) == ("PreparingRebalance", "")
    assert described.members[0].subscription == b""
    assert described.members[0].assignment == a.encode()


def test_subscriptions_are_read_from_the_metadata() -> None:
    m = Machine()
    m.member(protocols=(("range", subscription("t", "u")),))
    m.member(protocols=(("range", subscription("v") + b"later versions"),))
    assert m.group.roster.is_subscribed_to("other"), "not known yet: better safe"
    m.advance(DELAY * 2)
    assert [m.group.roster.is_subscribed_to(name) for name in "tuvw"] == [True, True, True, False]


def test_a_subscription_of_the_most_topics_is_read() -> None:
    names = {f"topic-{number}" for number in range(MOST_TOPICS)}
    assert topics_of(subscription(*names)) == names


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0",
        b"\0\0\0\0\0\2\0\1t",
        b"\xff\xff\0\0\0\0",
        b"\0\0\xff\xff\xff\xff",
        b"\0\0\0\0\0\1\0\2\xff\xff",
        subscription(*[""] * (MOST_TOPICS + 1)),
    ],
    ids=["empty", "short", "cut off", "version", "count", "text", "too many"],
)
def test_unreadable_subscriptions_count_as_all_topics(metadata: bytes) -> None:
    m = Machine()
    m.member(protocols=(("range", metadata),))
    m.advance(DELAY)
    assert m.group.roster.is_subscribed_to("t")
    assert m.group.roster.subscribed is None


def test_other_protocol_types_subscribe_to_nothing() -> None:
    m = Machine()
    m.member(protocol_type="connect")
    m.advance(DELAY)
    assert not m.group.roster.is_subscribed_to("t")


def test_emptied_consumer_group_subscribes_to_nothing() -> None:
    m, [a] = group()
    m.leave(LeavingMember(a))
    assert not m.group.roster.is_subscribed_to("t")


def test_only_an_empty_group_can_be_killed_and_comes_back_if_that_fails() -> None:
    m, [a] = group()
    with pytest.raises(InternalError):
        m.group.kill()
    m.leave(LeavingMember(a))
    m.group.kill()
    m.joined(m.join(), E.COORDINATOR_NOT_AVAILABLE)
    m.joined(m.join(a), E.COORDINATOR_NOT_AVAILABLE)
    m.synced(m.sync(a, 1), E.COORDINATOR_NOT_AVAILABLE)
    assert m.heartbeat(a, 1) == E.COORDINATOR_NOT_AVAILABLE
    assert m.commit("", -1) == E.COORDINATOR_NOT_AVAILABLE
    assert m.leave(LeavingMember(a)) == [E.COORDINATOR_NOT_AVAILABLE]
    m.group.revive()
    m.joined(m.join(), E.MEMBER_ID_REQUIRED)


def test_unload_sends_everybody_away() -> None:
    m, [a, b] = group(2)
    join = m.join(a)
    m.apply(m.group.unload())
    m.joined(join, E.NOT_COORDINATOR)
    m.join(a)
    m.join(b)
    sync = m.sync(b, 2)
    m.apply(m.group.unload())
    m.synced(sync, E.NOT_COORDINATOR)


# -- loading


def reload(m: Machine, **settings: Unpack[Settings]) -> Machine:
    """What another broker makes of the record that was written last."""
    assert m.stored is not None
    loaded = ClassicGroup.load("g", m.stored, Machine(**settings).settings, m.now)
    again = Machine(loaded, **settings)
    again.now = m.now
    again.apply(loaded.resume(m.now))
    return again


def test_loaded_group_goes_on() -> None:
    m, [a, b] = group(2)
    m.advance(SESSION - 1)
    again = reload(m)
    assert again.group.state is State.STABLE
    assert again.group.describe() == m.group.describe()
    assert again.group.roster.leader == a
    again.advance(SESSION - 1)  # sessions start again
    assert again.heartbeat(a, 1) == E.NONE
    assert again.commit(b, 1) == E.NONE
    again.advance(SESSION)
    assert again.group.state is State.EMPTY


def test_loaded_empty_group_keeps_its_generation() -> None:
    m, [a] = group()
    m.leave(LeavingMember(a))
    m.store()
    again = reload(m)
    assert (again.group.state, again.group.generation, again.group.protocol_type) == (State.EMPTY, 2, "consumer")
    assert again.group.state_since == m.group.state_since
    assert again.group.roster.subscribed == frozenset()


def test_loaded_group_above_the_limit_rebalances() -> None:
    m, _ = group(2)
    assert reload(m, group_max_size=1).group.state is State.PREPARING_REBALANCE


def test_loaded_group_of_old_records() -> None:
    value = GroupMetadataValue("", 0, None, None, -1, ())
    loaded = ClassicGroup.load("g", value, Machine().settings, 5)
    assert loaded.protocol_type is None
    assert loaded.state_since == -1
    assert loaded.untouched
