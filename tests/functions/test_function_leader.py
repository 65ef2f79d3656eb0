"""What becomes of requests."""

from __future__ import annotations

from typing import Any

import pytest

from kop.functions.definitions import Assignment, LeaderAnswer, Request
from kop.functions.leader import KNOWN_REQUESTS, Leader, losers
from kop.functions.request_effects import MAX_BYTES, Effects
from kop.functions.scheduler import Wish

FQFN = "public/default/f"
CONFIG = {"tenant": "public", "namespace": "default", "name": "f", "className": "f", "py": "f.py", "inputs": ["in"]}
WORKERS = ("w1", "w2")


class Log:
    """Requests of a test, each at the next offset."""

    def __init__(self, leader: Leader | None = None) -> None:
        self.leader = leader or Leader({})
        self.offset = 0
        self.packages = {"sha-1", "sha-2"}

    def ask(self, kind: Any, fqfn: str = FQFN, **fields: Any) -> Effects:
        self.offset += 3
        asked: dict[str, Any] = {"id": f"request {self.offset}", "by": "ada", "at_ms": 1_700_000_000_000} | fields
        request = Request(kind=kind, fqfn=fqfn, **asked)
        return self.leader.take(self.offset, request, is_whole=self.packages.__contains__, workers=WORKERS)

    def create(self, fqfn: str = FQFN, **config: Any) -> Effects:
        name = {"name": fqfn.rpartition("/")[2]}
        return self.ask("create", fqfn, config=CONFIG | name | config, package="sha-1", package_name="f.py")


@pytest.fixture
def log() -> Log:
    return Log()


def test_the_first_create_wins_and_the_second_is_told_who_won(log: Log) -> None:
    first = log.create()
    assert first.answer == LeaderAnswer(request="request 3", status=200, revision=3, offset=3)
    assert first.definitions[FQFN] is log.leader.definitions[FQFN]
    second = log.ask("create", config=CONFIG, package="sha-1", by="bob")
    assert second.answer.status == 409
    assert second.answer.revision == 3
    assert "ada has sent create at 2023-11-14 22:13:20 UTC" in second.answer.reason
    assert not second.definitions


def test_an_update_wins_by_the_revision_that_it_knows(log: Log) -> None:
    log.create()
    won = log.ask("update", expects=3, config={"output": "a"})
    lost = log.ask("update", expects=3, config={"output": "b"}, by="bob")
    assert won.answer.revision == 6
    assert (lost.answer.status, lost.answer.revision) == (409, 6)
    assert "expected was revision 3" in lost.answer.reason
    assert log.leader.definitions[FQFN].config["output"] == "a"


def test_an_update_changes_only_the_fields_that_it_gives(log: Log) -> None:
    log.create(userConfig={"a": 1}, output="out")
    log.ask("update", expects=3, config={"userConfig": {"b": 2}, "logTopic": None})
    definition = log.leader.definitions[FQFN]
    assert definition.config == CONFIG | {"userConfig": {"b": 2}, "output": "out"}
    assert (definition.package, definition.package_name, definition.version) == ("sha-1", "f.py", 6)


def test_an_update_that_changes_nothing_starts_nothing_anew(log: Log) -> None:
    log.create()
    effects = log.ask("update", expects=3, config={"inputs": ["in"]}, package="sha-1", package_name="f.py")
    assert effects.answer.revision == 6
    assert log.leader.definitions[FQFN].runs(0) == 3


def test_a_request_that_is_sent_twice_gets_its_first_answer(log: Log) -> None:
    first = log.ask("create", id="mine", config=CONFIG, package="sha-1")
    log.ask("delete", expects=3)
    again = log.ask("create", id="mine", config=CONFIG, package="sha-1")
    assert again.answer == first.answer
    assert not again.definitions
    assert not log.leader.definitions


def test_the_next_leader_knows_the_last_answers() -> None:
    answers = [LeaderAnswer(request=f"{n}", status=200, offset=n) for n in range(KNOWN_REQUESTS + 1)]
    log = Log(Leader({}, answers))
    assert log.ask("create", id="1", config=CONFIG, package="sha-1").answer is answers[1]
    assert log.ask("create", id="0", config=CONFIG, package="sha-1").answer.revision == 6


def test_what_was_deleted_and_made_again_is_another_one(log: Log) -> None:
    log.create()
    deleted = log.ask("delete", expects=3)
    assert (deleted.answer.status, deleted.answer.revision, deleted.definitions) == (200, None, {FQFN: None})
    gone = log.ask("update", expects=3, config={"output": "a"})
    assert (gone.answer.status, gone.answer.reason) == (
        404,
        f"{FQFN} was deleted meanwhile: revision 3 is not there any more",
    )
    assert log.create().answer.revision == 12
    assert log.ask("update", expects=3, config={"output": "a"}).answer.status == 409


@pytest.mark.parametrize("kind", ["update", "delete", "start", "stop", "restart"])
def test_what_is_not_there_is_told(log: Log, kind: str) -> None:
    effects = log.ask(kind)
    assert (effects.answer.status, effects.answer.reason) == (404, f"there is no function {FQFN}")


@pytest.mark.parametrize(
    ("config", "package", "status", "reason"),
    [
        ({"paralelism": 2}, "sha-1", 400, "is it parallelism?"),
        ({"name": "g"}, "sha-1", 400, "the configuration is that of public/default/g"),
        ({"userConfig": {"a": "x" * MAX_BYTES}}, "sha-1", 400, f"more than {MAX_BYTES} bytes"),
        ({}, "sha-3", 412, "is not there as a whole"),
        ({}, "", 412, "is not there as a whole"),
    ],
)
def test_a_definition_that_cannot_be_is_refused(
    log: Log, config: dict[str, Any], package: str, status: int, reason: str
) -> None:
    effects = log.ask("create", config=CONFIG | config, package=package)
    assert effects.answer.status == status
    assert reason in effects.answer.reason
    assert not log.leader.definitions


def test_instances_are_stopped_and_started_one_or_all(log: Log) -> None:
    log.create(parallelism=3)
    log.ask("stop", expects=3, instance=1)
    assert log.leader.wishes({FQFN: [("in", 0)]}) == {FQFN: Wish({0: 3, 2: 3}, (("in", 0),))}
    log.ask("stop", expects=6)
    assert log.leader.wishes({})[FQFN].instances == {}
    log.ask("start", expects=9, instance=2)
    log.ask("restart", expects=12, instance=0)
    assert log.leader.wishes({})[FQFN].instances == {0: 15, 2: 3}
    log.ask("update", expects=15, config={"parallelism": 2})
    assert log.leader.wishes({})[FQFN].instances == {0: 18}
    refused = log.ask("start", expects=18, instance=2)
    assert (refused.answer.status, refused.answer.reason) == (404, f"{FQFN} has no instance 2, but 2 from 0 on")


def test_packages_that_nobody_names_any_more_are_told(log: Log) -> None:
    log.create()
    log.create("public/default/g")
    assert not log.ask("update", expects=3, package="sha-2").packages
    assert log.ask("delete", "public/default/g", expects=6).packages == ["sha-1"]
    assert log.ask("delete", expects=9).packages == ["sha-2"]


@pytest.mark.parametrize(
    ("config", "cleaned"),
    [({}, [FQFN]), ({"subName": "mine"}, ["mine"]), ({"cleanupSubscription": False}, []), ({"subName": "shared"}, [])],
)
def test_a_deletion_takes_the_offsets_that_nobody_else_needs(
    log: Log, config: dict[str, Any], cleaned: list[str]
) -> None:
    log.create("public/default/other", subName="shared")
    log.create(**config)
    assert list(log.ask("delete", expects=6).cleaned) == cleaned


def test_inputs_that_come_by_an_update_begin_where_the_definition_says(log: Log) -> None:
    assert log.create().begins == {FQFN: None}
    before = log.leader.definitions[FQFN].spec
    assert log.ask("update", expects=3, config={"inputs": ["in", "more"]}).begins == {FQFN: before}
    assert log.ask("update", expects=6, config={"subName": "other"}).begins == {FQFN: None}
    assert not log.ask("restart", expects=9).begins


def test_a_drained_worker_gets_nothing_until_it_has_gone_and_come_again(log: Log) -> None:
    assert log.ask("drain", "", worker="w9").answer.status == 404
    assert log.ask("drain", "", worker="w1").drained == {"w1": True}
    assert log.leader.workers(WORKERS) == ["w2"]
    last = log.ask("drain", "", worker="w2").answer
    assert (last.status, "no other worker is left" in last.reason) == (409, True)
    assert log.ask("drain", "", worker="w1").answer.won
    assert log.leader.gone(WORKERS) == set()
    assert log.leader.gone(["w2"]) == {"w1"}
    assert log.leader.workers(WORKERS) == ["w1", "w2"]
    assert log.ask("rebalance", "").answer.status == 200


def test_a_drained_worker_is_given_instances_again_if_that_is_asked_for(log: Log) -> None:
    log.ask("drain", "", worker="w1")
    assert log.ask("undrain", "", worker="w9").answer.status == 404
    assert log.ask("undrain", "", worker="w1").drained == {"w1": False}
    assert log.leader.workers(WORKERS) == ["w1", "w2"]


def test_a_request_that_the_server_refuses_changes_nothing(log: Log) -> None:
    log.create()
    request = Request(id="r", kind="update", fqfn=FQFN, expects=3, config={"output": "o"})
    taken = {"is_whole": log.packages.__contains__, "workers": WORKERS}
    effects = log.leader.take(9, request, refused=(403, "no rights"), **taken)  # type: ignore[arg-type]
    assert (effects.answer.status, effects.answer.reason, effects.answer.revision) == (403, "no rights", 3)
    assert not effects.definitions
    lost = Request(id="s", kind="update", fqfn=FQFN, expects=2)
    answer = log.leader.take(12, lost, refused=(403, "no rights"), **taken).answer  # type: ignore[arg-type]
    assert answer.status == 409, "who lost is told that"


def test_a_defect_is_an_answer_too(log: Log) -> None:
    def fail(digest: str) -> bool:
        raise RuntimeError(digest)

    request = Request(id="r", kind="create", fqfn=FQFN, config=CONFIG, package="sha-1")
    assert log.leader.take(1, request, is_whole=fail, workers=WORKERS).answer.status == 500
    assert log.create().answer.status == 200


def test_those_are_fenced_that_lose_partitions() -> None:
    def has(worker: str, number: int, *partitions: int) -> Assignment:
        places = tuple(("in", partition) for partition in partitions)
        return Assignment(worker=worker, revision=1, partitions=places, number=number)

    before = {("f", 0): has("a", 0, 0, 1), ("f", 1): has("a", 1, 2), ("f", 2): has("a", 2, 3)}
    then = {("f", 0): has("a", 0, 0), ("f", 1): has("b", 1, 1, 2)}
    assert losers(before, then) == [("f", 0), ("f", 2)]
