"""Members come, go, stall and crash at random, over storage that fails at random. Machine.check holds throughout."""

from __future__ import annotations

import random

import pytest
from groups.group_machine import Machine, subscription

from kop.errors import ErrorCode
from kop.groups.classic.group import ClassicGroup, State
from kop.groups.classic.messages import JoinResult, LeavingMember, Protocols, SyncResult

E = ErrorCode
PROTOCOLS = (("range", subscription("t")), ("roundrobin", b""))
HEARTBEAT_ERRORS = {
    E.NONE,
    E.REBALANCE_IN_PROGRESS,
    E.UNKNOWN_MEMBER_ID,
    E.ILLEGAL_GENERATION,
    E.FENCED_INSTANCE_ID,
}


class Client:
    """A consumer that follows the protocol, and may stall or die at any moment."""

    def __init__(self, sim: Simulation, instance: str | None) -> None:
        self.sim, self.instance = sim, instance
        self.member_id, self.generation = "", -1
        self.token: int | None = None

    def act(self) -> None:
        m, rng = self.sim.machine, self.sim.rng
        if self.token is not None:
            if self.token in m.waiting:
                return
            result, self.token = m.answers.pop(self.token), None
            self.took(result)
        elif self.generation < 0:
            self.join()
        elif rng.random() < 0.1:
            self.join(protocols=(("range", rng.randbytes(2)),))
        else:
            error = m.heartbeat(self.member_id, self.generation, self.instance)
            assert error in HEARTBEAT_ERRORS
            if error == E.REBALANCE_IN_PROGRESS:
                m.commit(self.member_id, self.generation, self.instance)
                self.join()
            elif error:
                self.lost(error)

    def join(self, protocols: Protocols = PROTOCOLS) -> None:
        self.token = self.sim.machine.join(
            self.member_id, instance=self.instance, protocols=protocols, session=6000, rebalance=20_000,
            version=self.sim.rng.choice((3, 5, 9)) if self.instance is None else self.sim.rng.choice((5, 9)),
        )  # fmt: skip

    def took(self, result: JoinResult | SyncResult) -> None:
        self.sim.answered[result.error] += 1
        if isinstance(result, JoinResult):
            if result.error == E.MEMBER_ID_REQUIRED:
                self.member_id = result.member_id
                self.join()
            elif result.error:
                self.lost(result.error)
            else:
                self.joined(result)
        elif result.error:
            self.lost(result.error)
        else:
            self.sim.assigned(self, result.assignment)

    def joined(self, result: JoinResult) -> None:
        self.member_id, self.generation = result.member_id, result.generation
        leads = result.leader == self.member_id
        assert result.protocol in ("range", "roundrobin")
        assignment = None
        if leads and not result.skip_assignment:
            assert self.member_id in {member.member_id for member in result.members}
            assignment = {member.member_id: f"{result.generation}".encode() for member in result.members}
        protocol = result.protocol
        self.token = self.sim.machine.sync(
            self.member_id, self.generation, assignment, instance=self.instance, protocol=protocol
        )

    def lost(self, error: ErrorCode) -> None:
        self.generation = -1
        if error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
            self.member_id = ""


class Simulation:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.machine = Machine(group_initial_rebalance_delay_ms=self.rng.choice((0, 3000)), group_max_size=6)
        self.clients: list[Client] = []
        self.failing = self.rng.random() < 0.5
        self.answered = dict.fromkeys(ErrorCode, 0)

    def assigned(self, client: Client, assignment: bytes) -> None:
        if assignment and client.generation == self.machine.group.generation:
            assert int(assignment) <= client.generation

    def step(self) -> None:
        m, rng = self.machine, self.rng
        dice = rng.random()
        if dice < 0.03 and len(self.clients) < 8:
            instance = f"i{rng.randrange(3)}" if rng.random() < 0.4 else None
            self.clients.append(Client(self, instance))
        elif dice < 0.04 and self.clients:
            self.clients.remove(rng.choice(self.clients))  # crashed: its session runs out
        elif dice < 0.05 and self.clients:
            client = rng.choice(self.clients)
            m.leave(LeavingMember(client.member_id, client.instance))
            self.clients.remove(client)
        elif dice < 0.06 and not m.waiting and not m.writes and m.stored is not None:
            self.restart()
        elif dice < 0.25:
            m.advance(rng.choice((1, 50, 500, 3000)))
        elif dice < 0.5 and m.writes:
            fails = self.failing and rng.random() < 0.3
            m.store(E.KAFKA_STORAGE_ERROR if fails else E.NONE)
        elif self.clients:
            rng.choice(self.clients).act()

    def restart(self) -> None:
        """The broker comes back with what it had stored."""
        m = self.machine
        assert m.stored is not None
        before = m.stored.generation
        m.group = ClassicGroup.load("g", m.stored, m.settings, m.now)
        m.apply(m.group.resume(m.now))
        m.last_generation = before
        m.leaders.clear()  # generations that were not stored are counted again

    def settle(self) -> None:
        """Storage heals and everybody behaves: the group becomes stable with all that are there."""
        m = self.machine
        for _ in range(400):
            for client in self.clients:
                for _ in range(3):
                    client.act()
            while m.writes:
                m.store()
            m.advance(500)
            if m.group.state is State.STABLE and all(c.generation == m.group.generation for c in self.clients):
                break


@pytest.mark.parametrize("seed", range(40))
def test_random_lives(seed: int) -> None:
    sim = Simulation(seed)
    for _ in range(1500):
        sim.step()
    assert sim.answered[E.NONE] > 10, "something happened"
    # One client an instance, as they would fence each other for ever, and not more than may be in the group.
    instances: dict[str | int, Client] = {}
    for client in sim.clients:
        instances[client.instance or id(client)] = client
    sim.clients = list(instances.values())[:5]
    sim.machine.advance(400_000)
    sim.settle()
    group = sim.machine.group
    if sim.clients:
        assert group.state is State.STABLE
        assert {c.member_id for c in sim.clients} == set(group.roster.members)
        assert {c.generation for c in sim.clients} == {group.generation}
    else:
        assert group.state is State.EMPTY
    assert not sim.machine.waiting - {c.token for c in sim.clients}
