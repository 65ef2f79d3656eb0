"""What workers tell each other, and records that are no such thing."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from kop.functions.definitions import (
    Assignment,
    DamagedRecordError,
    Definition,
    LeaderAnswer,
    Request,
    WorkerInfo,
    from_log,
    instance_key,
    instance_of,
    out_of_reach,
    to_log,
    updated,
)
from kop.functions.topics import TopicNames

DEFINITION = Definition(
    fqfn="a/b/c",
    config={"tenant": "a", "namespace": "b", "name": "c", "className": "x.y", "py": "x.py", "inputs": ["in"]},
    revision=9,
    version=3,
    package="sha",
    package_name="x.py",
    stopped=frozenset({1}),
    restarts={0: 9},
    topic_names=TopicNames("t/n", has_namespaces=True),
    kind="restart",
    by="ada",
    at_ms=1,
)
ASSIGNMENT = Assignment(worker="w", revision=3, partitions=(("in", 0), ("in", 2)), number=1)
REQUEST = Request(id="r", kind="stop", fqfn="a/b/c", expects=3, instance=1, by="ada", at_ms=5)
ANSWER = LeaderAnswer(request="r", status=200, revision=6, offset=6)


def test_everything_comes_back_as_it_was() -> None:
    assert Definition.from_json(DEFINITION.to_json()) == DEFINITION
    assert Assignment.from_json(ASSIGNMENT.to_json()) == ASSIGNMENT
    assert from_log(to_log(REQUEST)) == REQUEST
    assert from_log(to_log(ANSWER)) == ANSWER
    assert instance_of(instance_key(("a/b/c", 12))) == ("a/b/c", 12)


def test_fields_of_newer_workers_are_taken() -> None:
    told = json.loads(DEFINITION.to_json()) | {"colour": {"is": "new"}}
    assert Definition.from_json(json.dumps(told).encode()) == DEFINITION
    log = json.loads(to_log(REQUEST))
    log["request"]["colour"] = log["more"] = 1
    assert from_log(json.dumps(log).encode()) == REQUEST


def test_an_instance_runs_the_last_change_that_it_has_to_notice() -> None:
    assert (DEFINITION.runs(0), DEFINITION.runs(1)) == (9, 3)
    assert DEFINITION.spec.fqfn == "a/b/c"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "no JSON"),
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[]", "neither a request nor an answer"),
        (b'{"answer": {"request": "r"}}', "answer.status: Field required"),
        (b'{"request": {"id": "r", "kind": "explode"}}', "request.kind: Input should be"),
        (b'{"request": 3}', "request"),
    ],
)
def test_what_is_wrong_with_a_damaged_record_is_told(value: bytes | None, why: str) -> None:
    with pytest.raises(DamagedRecordError) as told:
        from_log(value)
    assert why in str(told.value)


@pytest.mark.parametrize("value", [None, b"", b"x", b"[]", b"{}", b'{"worker": 1}'])
def test_damaged_assignments_and_definitions_are_told(value: bytes | None) -> None:
    for kind in (Assignment, Definition):
        with pytest.raises(DamagedRecordError):
            kind.from_json(value)


@pytest.mark.parametrize("key", [None, b"", b"a/b/c", b"a/b/c/x", b"\xff/1"])
def test_damaged_keys_are_told(key: bytes | None) -> None:
    with pytest.raises(DamagedRecordError):
        instance_of(key)


def test_a_client_id_says_which_worker_it_is() -> None:
    for host in ("127.0.0.1", "::1", "a.example"):
        worker = WorkerInfo("w-1.x", host, 6750, is_leader=True)
        assert WorkerInfo.of_client_id(worker.client_id(), is_leader=True) == worker
    assert WorkerInfo.of_client_id("some-consumer") is None


BY_COUNT = {"windowLengthCount": 10, "slidingIntervalCount": 5, "maxLagMs": 7}
BY_TIME = {"windowLengthDurationMs": 60, "slidingIntervalDurationMs": 30, "maxLagMs": 7}


@pytest.mark.parametrize(
    ("config", "given", "then"),
    [
        ({"output": "a", "inputs": ["i", "j"]}, {"inputs": ["k"]}, {"output": "a", "inputs": ["k"]}),
        ({"output": "a", "timeoutMs": 5}, {"timeoutMs": None, "logTopic": None}, {"output": "a"}),
        ({"resources": {"ram": 1, "cpu": 2}}, {"resources": {"ram": 3}}, {"resources": {"ram": 3, "cpu": 2}}),
        ({"resources": {"ram": 1, "cpu": 2}}, {"resources": {"ram": None}}, {"resources": {"cpu": 2}}),
        ({"windowConfig": BY_COUNT}, {"windowConfig": {"maxLagMs": 9}}, {"windowConfig": BY_COUNT | {"maxLagMs": 9}}),
        (
            {"windowConfig": BY_COUNT},
            {"windowConfig": {"windowLengthCount": 20}},
            {"windowConfig": BY_COUNT | {"windowLengthCount": 20}},
        ),
        (
            {"windowConfig": BY_COUNT},
            {"windowConfig": {"windowLengthDurationMs": 60}},
            {"windowConfig": {"windowLengthDurationMs": 60, "maxLagMs": 7}},
        ),
        (
            {"windowConfig": BY_TIME},
            {"windowConfig": {"windowLengthCount": 4}},
            {"windowConfig": {"windowLengthCount": 4, "maxLagMs": 7}},
        ),
        ({"windowConfig": BY_TIME}, {"windowConfig": None}, {}),
        (
            {"inputSpecs": {"a": {"schemaType": "json"}, "b": {}}},
            {"inputSpecs": {"a": {"serdeClassName": "m.S"}, "b": None, "c": {}}},
            {"inputSpecs": {"a": {"serdeClassName": "m.S"}, "c": {}}},
        ),
        ({"userConfig": {"a": 1}, "secrets": {}}, {"userConfig": {"b": 2}}, {"userConfig": {"b": 2}, "secrets": {}}),
        ({"userConfig": {"a": 1}}, {"userConfig": {}}, {"userConfig": {}}),
        ({}, {"resources": {"ram": 3, "cpu": None}, "inputs": ["a"]}, {"resources": {"ram": 3}, "inputs": ["a"]}),
    ],
)
def test_an_update_changes_fields_and_fields_within_them(
    config: dict[str, Any], given: dict[str, Any], then: dict[str, Any]
) -> None:
    before = copy.deepcopy(config)
    assert updated(config, given) == then
    assert config == before


def at(worker_id: str, host: str, machine: str, port: int = 6750) -> WorkerInfo:
    return WorkerInfo(worker_id, host, port, machine=machine)


@pytest.mark.parametrize(
    ("me", "others", "reason"),
    [
        (at("a", "127.0.0.1", "10.0.0.1"), [], None),
        (at("a", "127.0.0.1", "10.0.0.1"), [at("b", "127.0.0.1", "10.0.0.1", 6751)], None),
        (at("a", "127.0.0.1", "10.0.0.1"), [at("b", "10.0.0.1", "10.0.0.1")], None),
        (at("a", "10.0.0.1", "10.0.0.1"), [at("b", "127.0.0.1", "10.0.0.2")], None),
        (at("a", "127.0.0.1", "10.0.0.1"), [at("b", "127.0.0.1", "10.0.0.2")], "b is on another machine (10.0.0.2)"),
        (at("a", "localhost", "10.0.0.1"), [at("b", "10.0.0.2", "10.0.0.2")], "it announces localhost:6750"),
        (at("a", "::1", "10.0.0.1"), [at("b", "10.0.0.2", "10.0.0.2")], "it announces [::1]:6750"),
        (at("a", "127.0.0.1", "10.0.0.1"), [at("b", "127.0.0.1", "10.0.0.1")], "b announces 127.0.0.1:6750, too"),
        (at("a", "w.example", "10.0.0.1"), [at("b", "w.example", "10.0.0.2")], "b announces w.example:6750, too"),
        (at("a", "w.example", "10.0.0.1"), [at("b", "w.example", "10.0.0.2", 6751)], None),
    ],
)
def test_a_worker_that_others_cannot_ask_says_so(me: WorkerInfo, others: list[WorkerInfo], reason: str | None) -> None:
    said = out_of_reach(me, [me, *others])
    assert (said is None) is (reason is None)
    assert (reason or "") in (said or "")
