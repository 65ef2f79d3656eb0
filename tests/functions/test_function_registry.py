"""The topics of workers, with several of them on a running broker: who wins, who leads, and what is known where."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from functions.registry_kit import CONFIG, FQFN, PACKAGE, Held, WorkerOfTest, WorkersOfTest
from kafka import KafkaAdminClient, errors
from support.waiting import wait_until

from kop.client.errors import ClientError, FencedError, NotMemberError, NoTransactionsError
from kop.client.membership import GroupPeer
from kop.client.properties import connection
from kop.client.read_client import ReadClient
from kop.client.write_client import WriteClient
from kop.functions.definitions import Definition, Request, WorkerInfo, from_log, to_log
from kop.functions.instance import ID_PREFIX
from kop.functions.metadata import ASSIGNMENTS, CONFIGS, DEFINITIONS, PACKAGES, REQUESTS
from kop.functions.packages import Assembler
from kop.functions.registry import Registry
from kop.functions.scheduler import schedule
from kop.testing import Broker


@pytest.fixture(autouse=True)
def quick_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kop.functions.registry.WAIT_MS", 50)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        made.create_topic("in", partitions=4)
        yield made


@pytest.fixture
def members(broker: Broker, tmp_path: Path) -> Iterator[WorkersOfTest]:
    with WorkersOfTest(broker, tmp_path, 3) as made:
        yield made


@pytest.fixture
def alone(broker: Broker, tmp_path: Path) -> Iterator[WorkerOfTest]:
    with WorkersOfTest(broker, tmp_path, 1) as made:
        yield made.all[0]


def log_of(broker: Broker) -> list[dict[str, dict[str, object]]]:
    records = broker.records(REQUESTS, isolation_level="read_committed")
    return [json.loads(record.value or b"") for record in records]


def check_log(broker: Broker, members: WorkersOfTest) -> None:
    """Each request is answered once, each winner expected the winner before it, and all know the same."""
    log = log_of(broker)
    requests = {said["request"]["id"]: said["request"] for said in log if "request" in said}
    answers = [said["answer"] for said in log if "answer" in said]
    assert sorted(str(answer["request"]) for answer in answers) == sorted(map(str, requests))
    current: dict[object, object] = {}
    for answer in answers:
        request = requests[answer["request"]]
        if answer["status"] == 200:
            assert request["expects"] == current.get(request["fqfn"])
            current[request["fqfn"]] = answer["revision"]
    expected = {fqfn: revision for fqfn, revision in current.items() if revision is not None}
    first = members.all[0].registry
    for member in members.all:
        member.until(lambda metadata: {f: d.revision for f, d in metadata.definitions.items()} == expected)
        member.until(lambda metadata: {name for name, _ in metadata.assignments} == set(expected))
        member.until(lambda metadata: metadata.assignments == first.metadata.assignments)


def test_of_requests_at_once_one_wins_a_revision(broker: Broker, members: WorkersOfTest) -> None:
    names = [f"public/default/f{number}" for number in range(3)]

    def work(member: WorkerOfTest) -> None:
        for turn in range(8):
            fqfn = names[turn % len(names)]
            there = member.registry.metadata.definitions.get(fqfn)
            if there is None:
                member.create_unseen(fqfn)
            elif turn == 7:
                member.ask("delete", fqfn, expects=there.revision)
            else:
                config = {"output": f"{member.name}-{turn}", "parallelism": turn % 4 + 1}
                member.ask("update", fqfn, expects=there.revision, config=config)

    threads = [threading.Thread(target=work, args=(member,)) for member in members.all for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_log(broker, members)


def test_a_leader_that_was_paused_and_replaced_commits_nothing(
    broker: Broker, members: WorkersOfTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = members.leader()
    asking = members.follower()
    assert asking.create().won
    held = Held(monkeypatch)
    revision = asking.registry.metadata.definitions[FQFN].revision
    request = asking.send("update", expects=revision, config={"output": "x"})
    assert held.reached.wait(20)
    first.membership.close()  # as if its session had ended
    second = members.leader(first)
    answer = asking.answer(request)
    assert answer.won
    held.let_go.set()
    later = asking.ask("update", expects=answer.revision, config={"output": "y"})
    assert later.won
    wait_until(lambda: not first.registry.leads, "the first to know")
    assert second.registry.leads
    members.all.remove(first)
    wait_until(lambda: len(asking.registry.workers()) == 2, "one is gone")
    check_log(broker, members)


def test_a_leader_that_goes_in_the_middle_is_followed_by_another(
    broker: Broker, members: WorkersOfTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = members.leader()
    asking = members.follower()
    held = Held(monkeypatch)
    request = asking.send("create", config=CONFIG, package=PACKAGE.digest, package_name="f.py")
    assert held.reached.wait(20)
    first.membership.close()
    members.leader(first)
    assert asking.answer(request).won
    members.all.remove(first)
    wait_until(lambda: len(asking.registry.workers()) == 2, "one is gone")
    asking.until(lambda metadata: {a.worker for a in metadata.assignments.values()} <= {m.name for m in members.all})
    check_log(broker, members)
    held.let_go.set()


def test_another_generation_is_no_reason_to_lose_a_request(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker joins while the leader has a transaction open: the offset belongs to an old generation."""
    with WorkersOfTest(broker, tmp_path / "first", 1) as members:
        member = members.all[0]
        members.leader()
        real = WriteClient.commit_in_transaction
        joined = WorkerOfTest(broker, tmp_path, "late")
        started: list[bool] = []

        def commit(client: WriteClient, identity: object, group: str, *args: object, **kwargs: object) -> None:
            if kwargs.get("member") is not None and not started:
                started.append(True)
                joined.registry.start()
                holding = member.membership.holding()
                wait_until(lambda: member.membership.holding() != holding, "another generation")
            real(client, identity, group, *args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(WriteClient, "commit_in_transaction", commit)
        try:
            assert member.create().won
            assert [from_log(r.value) for r in broker.records(REQUESTS, isolation_level="read_committed")][
                1:
            ] == member.answers
        finally:
            joined.registry.close()


def test_nothing_that_is_produced_after_create_is_missed(broker: Broker, alone: WorkerOfTest) -> None:
    broker.produce("in", ["before"] * 8)
    before = {record.partition: (record.offset or 0) + 1 for record in broker.records("in")}
    assert alone.create().won
    offsets = {("in", partition): before.get(partition, 0) for partition in range(4)}
    wait_until(lambda: broker.committed(FQFN) == offsets, "the ends, once the transaction has ended there, too")
    assert alone.create("public/default/g", subscriptionPosition="Earliest").won
    wait_until(lambda: set(broker.committed("public/default/g").values()) == {0}, "the beginnings")


def test_topics_and_partitions_that_come_later_are_read_from_their_beginning(
    broker: Broker, alone: WorkerOfTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kop.functions.leading.LOOK_SECONDS", 0.1)
    broker.create_topic("log-a", partitions=1)
    broker.produce("log-a", ["before"])
    assert alone.ask("create", config=CONFIG | {"inputs": None, "topicsPattern": "log-.*"}, package=PACKAGE.digest).won
    broker.create_topic("log-b", partitions=1)
    broker.produce("log-b", ["first"])
    alone.until(
        lambda metadata: (FQFN, 0) in metadata.assignments and ("log-b", 0) in metadata.assignments[FQFN, 0].partitions
    )
    wait_until(lambda: broker.committed(FQFN) == {("log-a", 0): 1, ("log-b", 0): 0}, "end and beginning")
    settings = connection({"bootstrap.servers": broker.bootstrap}, "test").settings
    writer = WriteClient(settings)
    writer.partitions_at_least("log-b", 2)
    writer.close()
    alone.until(lambda metadata: ("log-b", 1) in metadata.assignments[FQFN, 0].partitions)
    wait_until(lambda: broker.committed(FQFN).get(("log-b", 1)) == 0, "the beginning")


def test_partitions_change_their_instance_behind_a_fence(broker: Broker, alone: WorkerOfTest) -> None:
    created = alone.create()
    settings = connection({"bootstrap.servers": broker.bootstrap}, "test").settings
    running = WriteClient(settings)
    try:
        identity = running.init_producer(f"{ID_PREFIX}/{FQFN}/0", 60_000)
        alone.ask("update", expects=created.revision, config={"output": "o"})
        running.commit_in_transaction(identity, FQFN, {("in", 3): 5})
        running.end_transaction(identity)
        revision = alone.registry.metadata.definitions[FQFN].revision
        alone.ask("update", expects=revision, config={"parallelism": 2})
        with pytest.raises(FencedError):
            running.commit_in_transaction(identity, FQFN, {("in", 3): 6})
    finally:
        running.close()


def test_a_deletion_takes_definition_assignments_package_and_offsets(broker: Broker, alone: WorkerOfTest) -> None:
    created = alone.create()
    wait_until(lambda: broker.committed(FQFN), "offsets")
    assert alone.ask("delete", expects=created.revision).won
    alone.until(lambda metadata: not metadata.definitions and not metadata.assignments)
    alone.until(lambda _: not alone.registry.metadata.stored_at)
    wait_until(lambda: not broker.committed(FQFN), "no offsets")
    assert [request.kind for request, _ in alone.registry.history(FQFN, 10)] == ["create", "delete"]


def test_a_drained_worker_has_nothing(broker: Broker, members: WorkersOfTest) -> None:
    asking = members.leader()
    asking.create(parallelism=3)
    asking.until(lambda metadata: {a.worker for a in metadata.assignments.values()} == {"w0", "w1", "w2"})
    asking.ask("drain", "", worker="w1")
    asking.until(lambda metadata: {a.worker for a in metadata.assignments.values()} == {"w0", "w2"})
    assert "w1" in asking.registry.metadata.drained


def test_damaged_records_are_told_and_left_out(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with WorkersOfTest(broker, tmp_path / "first", 1) as members:
        member = members.all[0]
        member.create()
        good = member.registry.metadata.definitions[FQFN]
        wrong = Definition(fqfn="public/default/h", config={"className": 5}, revision=1, version=1).to_json()
        member.registry.write(
            [(topic, key, value) for topic in CONFIGS for key, value in ((b"\xff", b"x"), (b"x", b"{"), (b"y", None))]
            + [(DEFINITIONS, b"public/default/h", wrong), (DEFINITIONS, b"public/default/i", good.to_json())]
        )
        assert member.create("public/default/g").won
    with WorkersOfTest(broker, tmp_path / "second", 1) as members:
        assert set(members.all[0].registry.metadata.definitions) == {FQFN, "public/default/g"}
    for text in (f"of {DEFINITIONS} is left out", f"of {REQUESTS} is left out", f"of {ASSIGNMENTS} is left out"):
        assert text in caplog.text


def test_requests_from_before_there_was_a_leader_are_answered(broker: Broker, tmp_path: Path) -> None:
    with WorkersOfTest(broker, tmp_path / "first", 1) as members:
        member = members.all[0]
        created = member.create()
        wait_until(lambda: member.registry.leads, "it leads")
        member.membership.close()
        wait_until(lambda: not member.registry.leads, "it leads no more")
        request = member.send("update", expects=created.revision, config={"output": "late"})
    with WorkersOfTest(broker, tmp_path / "second", 1) as members:
        members.all[0].until(lambda metadata: metadata.definitions[FQFN].config.get("output") == "late")
        assert members.all[0].answer(request).won


def test_a_request_whose_package_is_not_there_is_refused(broker: Broker, alone: WorkerOfTest) -> None:
    answer = alone.ask("create", config=CONFIG, package="0" * 64)
    assert (answer.status, answer.revision) == (412, None)


def test_a_definition_never_wins_without_its_package(broker: Broker, alone: WorkerOfTest) -> None:
    """The package is that of a function that is deleted just before: in the same transaction, or in the one before."""
    created = alone.create()
    other = CONFIG | {"name": "g"}
    both = [
        Request(id="delete", kind="delete", fqfn=FQFN, expects=created.revision),
        Request(id="create", kind="create", fqfn="public/default/g", config=other, package=PACKAGE.digest),
    ]
    alone.registry.write([(REQUESTS, request.fqfn.encode(), to_log(request)) for request in both])
    answer = alone.answer("create")
    assert answer.won
    alone.until(lambda metadata: list(metadata.definitions) == ["public/default/g"])
    assert alone.registry.packages.package(PACKAGE.digest, "f.py") == PACKAGE
    assert alone.ask("delete", "public/default/g", expects=answer.revision).won
    assert alone.create().status == 412


def test_packages_that_nobody_named_for_long_are_deleted(
    broker: Broker, alone: WorkerOfTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone.registry.upload(PACKAGE, "kept/f.py")
    alone.until(lambda metadata: "kept/f.py" in metadata.uploads)
    monkeypatch.setattr("kop.functions.leading.SWEEP_MS", -1_000)
    alone.ask("rebalance", "")
    assert alone.registry.metadata.stored_at.keys() == {PACKAGE.digest}
    alone.registry.write([(PACKAGES, b"path:kept/f.py", None)])
    alone.until(lambda metadata: not metadata.uploads)
    alone.ask("rebalance", "")
    alone.until(lambda _: not alone.registry.metadata.stored_at)


def test_a_scheduler_that_fails_is_not_used(broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def mine(*_: object) -> dict[object, object]:
        return {}

    member = WorkerOfTest(broker, tmp_path, "w0", scheduler=mine)
    member.registry.start()
    try:
        member.registry.upload(PACKAGE)
        assert member.create().won
        member.until(lambda metadata: len(metadata.assignments) == 1)
    finally:
        member.registry.close()
    assert "the scheduler that was named is not used this time: no instance of" in caplog.text
    assert schedule is not mine


@pytest.mark.parametrize(
    ("topic", "configs", "partitions", "why"),
    [
        (DEFINITIONS, {}, 1, f"set cleanup.policy of the topic {DEFINITIONS} to compact: it is delete"),
        (REQUESTS, {}, 1, f"set retention.ms of the topic {REQUESTS} to -1: it is 604800000"),
        (PACKAGES, {"cleanup.policy": "compact"}, 2, f"make the topic {PACKAGES} again with one partition: it has 2"),
    ],
)
def test_topics_that_are_others_are_refused(
    broker: Broker, tmp_path: Path, topic: str, configs: dict[str, str], partitions: int, why: str
) -> None:
    broker.create_topic(topic, partitions=partitions, configs=configs)
    member = WorkerOfTest(broker, tmp_path, "w0")
    with pytest.raises(ClientError, match=why):
        member.registry.start()
    member.registry.close()


def test_topics_are_made_as_they_have_to_be(broker: Broker, alone: WorkerOfTest) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    assert {t["name"]: len(t["partitions"]) for t in admin.describe_topics(list(CONFIGS))} == dict.fromkeys(CONFIGS, 1)
    admin.close()


def test_without_transactions_a_worker_says_what_to_set(broker: Broker, tmp_path: Path) -> None:
    broker.fail("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", times=None)
    member = WorkerOfTest(broker, tmp_path, "w0")
    with pytest.raises(ClientError, match="transactionCoordinatorEnabled=true"):
        member.registry.start()
    member.registry.close()
    assert isinstance(member.registry, Registry)


class Refusing:
    """Servers that refuse what one function of the leader needs, until they are healed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.of: set[str] = set()
        """Names of calls of clients."""
        self.asked: list[str] = []
        committed, commit = WriteClient.committed, WriteClient.commit_in_transaction
        init, list_offsets, topics = WriteClient.init_producer, ReadClient.list_offsets, ReadClient.topics

        def check(call: str, *names: str) -> None:
            if self.error is not None and call in self.of and any("bad" in name for name in names):
                self.asked.append(call)
                raise self.error

        def of_committed(client: WriteClient, group: str, *args: Any, **kwargs: Any) -> Any:
            check("committed", group)
            return committed(client, group, *args, **kwargs)

        def of_commit(client: WriteClient, producer: Any, group: str, *args: Any, **kwargs: Any) -> None:
            check("commit", group)
            commit(client, producer, group, *args, **kwargs)

        def of_init(client: WriteClient, name: str | None, timeout_ms: int) -> Any:
            check("init", name or "")
            return init(client, name, timeout_ms)

        def of_list(client: ReadClient, wanted: Any, isolation: int) -> Any:
            check("list_offsets", *(topic for topic, _ in wanted))
            return list_offsets(client, wanted, isolation)

        def of_topics(client: ReadClient, names: Any, refused: Any = None) -> Any:
            there = topics(client, names, refused)
            if self.error is not None and "topics" in self.of and refused is not None and "bad-in" in there:
                refused["bad-in"] = self.error
                del there["bad-in"]
            return there

        for owner, name, patched in (
            (WriteClient, "committed", of_committed),
            (WriteClient, "commit_in_transaction", of_commit),
            (WriteClient, "init_producer", of_init),
            (ReadClient, "list_offsets", of_list),
            (ReadClient, "topics", of_topics),
        ):
            monkeypatch.setattr(owner, name, patched)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    return Refusing(monkeypatch)


BAD = "public/default/bad"


REFUSED: list[tuple[str, Exception, int, str]] = [
    ("committed", errors.GroupAuthorizationFailedError("OffsetFetch of group bad"), 403, "OffsetFetch of group bad"),
    ("committed", errors.InvalidGroupIdError("OffsetFetch of group bad"), 400, "OffsetFetch of group bad"),
    ("commit", errors.GroupAuthorizationFailedError("AddOffsetsToTxn"), 403, "AddOffsetsToTxn"),
    ("commit", NotMemberError("TxnOffsetCommit: unknown member"), 400, "unknown member"),
    ("list_offsets", errors.TopicAuthorizationFailedError("topic bad-in"), 403, "let the workers' user"),
    ("list_offsets", errors.LeaderNotAvailableError("topic bad-in partition 0"), 503, "ask again later"),
    ("topics", errors.TopicAuthorizationFailedError("topic bad-in"), 403, "topic bad-in"),
]


def test_what_the_server_refuses_for_one_function_stops_no_other(
    broker: Broker, alone: WorkerOfTest, refusing: Refusing
) -> None:
    broker.create_topic("bad-in", partitions=1)
    package: dict[str, Any] = {"package": PACKAGE.digest, "package_name": "f.py"}
    for number, (call, error, status, said) in enumerate(REFUSED):
        refusing.error, refusing.of = error, {call}
        good = f"public/default/good{number}"
        config = CONFIG | {"name": "bad", "inputs": ["bad-in"], "subName": "bad"}
        both = [
            Request(id=f"bad{number}", kind="create", fqfn=BAD, config=config, **package),
            Request(id=good, kind="create", fqfn=good, config=CONFIG | {"name": f"good{number}"}, **package),
        ]
        alone.registry.write([(REQUESTS, request.fqfn.encode(), to_log(request)) for request in both])
        refused = alone.answer(f"bad{number}")
        assert (refused.status, said in refused.reason) == (status, True), refused
        assert alone.answer(good).won
        assert alone.registry.trouble() is None
    alone.until(lambda metadata: len(metadata.definitions) == len(REFUSED))
    refusing.error = None
    assert alone.create(BAD, inputs=["bad-in"], subName="bad").won


def test_a_function_that_loses_its_rights_keeps_what_it_has_and_holds_nobody_up(
    broker: Broker, alone: WorkerOfTest, refusing: Refusing
) -> None:
    broker.create_topic("bad-in", partitions=2)
    created = alone.create(BAD, inputs=["bad-in"])
    had = dict(alone.registry.metadata.assignments)
    refusing.error, refusing.of = errors.TopicAuthorizationFailedError("topic bad-in"), {"topics"}
    assert alone.create().won
    assert alone.registry.metadata.assignments.items() >= had.items()
    refused = alone.ask("update", BAD, expects=created.revision, config={"output": "o"})
    assert refused.status == 403
    stopped = alone.ask("stop", BAD, expects=created.revision)
    assert stopped.won
    alone.until(lambda metadata: not any(name == BAD for name, _ in metadata.assignments))
    assert alone.ask("delete", BAD, expects=stopped.revision).won


def test_partitions_move_though_the_id_of_an_instance_is_not_the_workers(
    broker: Broker, alone: WorkerOfTest, refusing: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("bad-in", partitions=2)
    created = alone.create(BAD, inputs=["bad-in"])
    refusing.error, refusing.of = NoTransactionsError("InitProducerId"), {"init"}
    assert alone.ask("update", BAD, expects=created.revision, config={"parallelism": 2}).won
    assert "let the workers' user Write on the transactional id kop.functions/public/default/bad/0" in caplog.text


def test_a_leader_that_may_not_lead_says_why(
    broker: Broker, alone: WorkerOfTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = WriteClient.add_partitions

    def refused(*_: object, **__: object) -> None:
        raise errors.TopicAuthorizationFailedError("AddPartitionsToTxn of __kop_functions-0")

    monkeypatch.setattr("kop.functions.leading.PAUSE_SECONDS", 0.05)
    alone.until(lambda _: alone.registry.leads)
    monkeypatch.setattr(WriteClient, "add_partitions", refused)
    request = alone.send("create", config=CONFIG, package=PACKAGE.digest, package_name="f.py")
    wait_until(lambda: "__kop_functions-0" in (alone.registry.trouble() or ""), "the reason")
    monkeypatch.setattr(WriteClient, "add_partitions", real)
    assert alone.answer(request).won
    wait_until(lambda: alone.registry.trouble() is None, "that it is over")


@pytest.mark.parametrize("goes", [Broker.stop, Broker.pause])
def test_a_worker_whose_server_is_away_says_so_and_ends(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes: Callable[[Broker], object]
) -> None:
    for name, seconds in (
        ("SILENT_SECONDS", 0.3),
        ("TAIL_SECONDS", 0.3),
        ("CLOSE_SECONDS", 1.0),
        ("HURRY_SECONDS", 0.2),
    ):
        monkeypatch.setattr(f"kop.functions.registry.{name}", seconds)
    member = WorkerOfTest(broker, tmp_path, "w0")
    member.registry.start()
    wait_until(lambda: member.registry.leads, "it leads")
    goes(broker)
    try:
        wait_until(lambda: member.registry.trouble() is not None, "what is wrong")
        began = time.monotonic()
        member.registry.close()
        assert time.monotonic() - began < 15, "not by the patience of its requests, 20 s each"
    finally:
        if broker.is_running:
            broker.resume()


@dataclass
class PeersOfTest:
    """Members of a group that nobody joined."""

    all: list[GroupPeer]
    member_id: str = "m2"
    failure: str | None = None

    def peers(self) -> tuple[GroupPeer, ...]:
        return tuple(self.all)


@pytest.mark.parametrize(
    ("client_id", "member_id", "host", "goes_before"),
    [
        ("w0@127.0.0.1:1", "m1", "10.0.0.1", False),  # itself, before it was started again
        ("w0@127.0.0.1:1", "m1", "10.0.0.2", True),
        ("w0@127.0.0.1:1", "m3", "10.0.0.2", False),
        ("w0@127.0.0.0:1", "m3", "10.0.0.1", True),
        ("w0@127.0.0.2:1", "m1", "10.0.0.2", False),
        ("w1@127.0.0.1:1", "m1", "10.0.0.2", False),
    ],
)
def test_of_two_workers_with_one_id_one_goes_before(
    tmp_path: Path, client_id: str, member_id: str, host: str, goes_before: bool
) -> None:
    me = WorkerInfo("w0", "127.0.0.1", 1)
    mine = GroupPeer(me.client_id(), False, "m2", "10.0.0.1")
    peers: Any = PeersOfTest([mine, GroupPeer(client_id, False, member_id, host)])
    registry = Registry({}, me, Assembler(tmp_path), peers)
    assert (registry.twin() is not None) is goes_before
