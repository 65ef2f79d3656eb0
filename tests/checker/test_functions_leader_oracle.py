"""The oracle of workers finds each anomaly in topics that have it, and none in those of leaders that do right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conformance.functions.leader_oracle import (
    Call,
    Log,
    Record,
    check_assignments,
    check_calls,
    check_definitions,
    check_log,
    check_outputs,
    check_packages,
    latest,
    log_of,
)

STEPS: list[tuple[str, str, int | None, int, int | None]] = [
    # kind, function, expected revision, status, revision then: the request of step N has the offset 2 N
    ("create", "f", None, 200, 0),
    ("create", "f", None, 409, 0),
    ("update", "f", 0, 200, 4),
    ("update", "f", 0, 409, 4),
    ("stop", "f", 4, 200, 8),
    ("create", "g", None, 200, 10),
    ("delete", "f", 8, 200, None),
    ("update", "f", 8, 404, None),
    ("create", "f", None, 200, 16),
    ("restart", "f", 8, 409, 16),
]


def records(steps: list[tuple[str, str, int | None, int, int | None]] = STEPS) -> list[Record]:
    """Each request with its answer behind it."""
    written = []
    for number, (kind, fqfn, expects, status, revision) in enumerate(steps):
        offset = 2 * number
        request = {"id": f"r{number}", "kind": kind, "fqfn": fqfn, "expects": expects, "by": f"who{number} from here"}
        answer = {"request": f"r{number}", "status": status, "revision": revision, "reason": "", "offset": offset}
        written.append(Record(offset, 1000.0 + number, fqfn, json.dumps({"request": request})))
        written.append(Record(offset + 1, 1000.0 + number, fqfn, json.dumps({"answer": answer})))
    return written


def with_step(number: int, **fields: Any) -> Log:
    """The log, with another answer to one request."""
    names = ("kind", "fqfn", "expects", "status", "revision")
    steps = list(STEPS)
    step = dict(zip(names, STEPS[number], strict=True)) | fields
    steps[number] = tuple(step[name] for name in names)
    return log_of(records(steps))


def kinds(log: Log) -> list[str]:
    return [anomaly.kind for anomaly in check_log(log).anomalies]


def test_nothing_is_wrong_if_the_first_wins() -> None:
    outcome = check_log(log_of(records()))
    assert outcome.anomalies == []
    assert (outcome.won, outcome.lost) == (6, 4)
    assert outcome.revisions == {"f": 16, "g": 10}


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (with_step(3, status=200, revision=6), ["wrong-winner"]),
        (with_step(1, status=200, revision=2), ["wrong-winner"]),
        (with_step(4, status=409), ["wrong-loser"]),
        (with_step(5, status=400), ["refused"]),
        (with_step(3, status=503), ["refused"]),
        (with_step(2, revision=5), ["wrong-revision"]),
        (with_step(3, revision=0), ["wrong-revision"]),
        (log_of(records()[:-1]), ["unanswered"]),
        (log_of([*records(), records()[1]._replace(offset=30)]), ["answered-twice"]),
    ],
    ids=[
        "an update of an older revision wins",
        "a second creation wins",
        "a request with the right revision loses",
        "a package is refused",
        "a late request is refused for another reason",
        "the winner is told another revision",
        "the loser is told another revision",
        "no answer",
        "two answers",
    ],
)
def test_a_planted_fault_is_found(log: Log, expected: list[str]) -> None:
    assert kinds(log) == expected


def test_a_request_that_was_written_twice_is_one() -> None:
    again = records()[0]._replace(offset=30)
    outcome = check_log(log_of([*records(), again]))
    assert outcome.anomalies == []
    assert outcome.won == 6


def test_a_request_whose_package_was_deleted_meanwhile_is_sent_again() -> None:
    again = {"id": "again", "kind": "create", "fqfn": "g", "expects": None, "by": "who5 from here"}
    answer = {"request": "again", "status": 200, "revision": 40, "reason": "", "offset": 40}
    more = [Record(40, 1.0, "g", json.dumps({"request": again})), Record(41, 1.0, "g", json.dumps({"answer": answer}))]
    steps = list(STEPS)
    steps[5] = ("create", "g", None, 412, None)
    log = log_of([*records(steps), *more])
    assert check_log(log).anomalies == []
    assert check_log(log).revisions == {"f": 16, "g": 40}
    assert check_calls([call(5, 204, 40)], log) == []


def test_definitions_have_their_packages() -> None:
    named = {"f": {"package": "aa", "revision": 1}, "g": {"package": "bb", "revision": 2}}
    assert check_packages(named, {"aa/0": True, "bb/0": True, "bb/1": True}) == []
    assert [anomaly.function for anomaly in check_packages(named, {"aa/0": True})] == ["g"]


def call(number: int, status: int, revision: int | None) -> Call:
    kind, fqfn, expects, _, _ = STEPS[number]
    return Call(f"who{number}", "w1", kind, fqfn, expects, status, revision, "", 1.0, 2.0)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (call(2, 204, 4), []),
        (call(3, 409, None), []),
        (call(2, 0, None), []),
        (call(2, 503, None), []),
        (call(2, 409, None), ["told-otherwise"]),
        (call(3, 204, 6), ["told-otherwise"]),
        (call(2, 204, 5), ["told-otherwise"]),
        (call(2, 204, 4)._replace(who="nobody"), ["told-otherwise"]),
        (call(2, 404, None)._replace(who="nobody"), []),
    ],
)
def test_clients_are_told_what_the_topic_says(told: Call, expected: list[str]) -> None:
    assert [anomaly.kind for anomaly in check_calls([told], log_of(records()))] == expected


def test_a_call_is_one_request() -> None:
    request = json.loads(records()[4].value or "")["request"] | {"id": "again"}
    more = Record(40, 1.0, "f", json.dumps({"request": request}))
    assert [a.kind for a in check_calls([call(2, 204, 4)], log_of([*records(), more]))] == ["sent-twice"]


def test_definitions_have_the_revisions_of_the_winners() -> None:
    assert check_definitions({"f": 16, "g": 10}, {"f": 16, "g": 10}, "w1") == []
    anomalies = check_definitions({"f": 16, "g": 10}, {"f": 8, "h": 3}, "w1")
    assert [(anomaly.kind, anomaly.function) for anomaly in anomalies] == [
        ("diverged", "f"),
        ("diverged", "g"),
        ("diverged", "h"),
    ]


def test_a_compacted_topic_says_what_is_last() -> None:
    rows = [Record(0, 1.0, "a", '{"n": 1}'), Record(1, 1.0, "b", '{"n": 2}'), Record(2, 1.0, "a", '{"n": 3}')]
    assert latest(rows) == {"a": {"n": 3}, "b": {"n": 2}}
    assert latest(rows) == latest(rows[1:])
    assert latest([*rows, Record(3, 1.0, "b", None)]) == {"a": {"n": 3}}


def definitions() -> dict[str, dict[str, Any]]:
    return {
        "f": {"config": {"parallelism": 2}, "version": 4, "stopped": [], "restarts": {"1": 8}},
        "g": {"config": {}, "version": 10, "stopped": [], "restarts": {}},
        "h": {"config": {}, "version": 12, "stopped": [0], "restarts": {}},
    }


def assignments() -> dict[str, dict[str, Any]]:
    return {
        "f/0": {"worker": "w1", "revision": 4, "partitions": [["in", 0], ["in", 2]], "number": 0},
        "f/1": {"worker": "w2", "revision": 8, "partitions": [["in", 1]], "number": 1},
        "g/0": {"worker": "w3", "revision": 10, "partitions": [["in", 0], ["in", 1], ["in", 2]], "number": 0},
    }


def assignment_kinds(changed: dict[str, dict[str, Any] | None]) -> list[str]:
    now = {key: value for key, value in (assignments() | changed).items() if value is not None}
    inputs = {fqfn: [("in", partition) for partition in range(3)] for fqfn in definitions()}
    anomalies = check_assignments(definitions(), now, inputs, ["w1", "w2", "w3"])
    return sorted({anomaly.kind for anomaly in anomalies})


def test_assignments_are_those_of_the_definitions() -> None:
    assert assignment_kinds({}) == []


@pytest.mark.parametrize(
    ("key", "fields", "expected"),
    [
        ("f/1", {"partitions": []}, ["unassigned"]),
        ("f/1", {"partitions": [["in", 1], ["in", 2]]}, ["unassigned"]),
        ("f/1", {"revision": 4}, ["stray", "unassigned"]),
        ("f/1", {"worker": "w4"}, ["stray", "unassigned"]),
        ("f/1", {"worker": "w3"}, ["uneven"]),
        ("f/2", {"worker": "w2", "revision": 4, "partitions": []}, ["stray"]),
        ("h/0", {"worker": "w2", "revision": 12, "partitions": []}, ["stray"]),
        ("i/0", {"worker": "w2", "revision": 12, "partitions": []}, ["stray"]),
    ],
    ids=[
        "a partition is nobody's",
        "a partition is in two instances",
        "an instance was not started anew",
        "the worker is gone",
        "one worker has two more than another",
        "there is no such instance",
        "the instance is stopped",
        "there is no such function",
    ],
)
def test_a_wrong_assignment_is_found(key: str, fields: dict[str, Any], expected: list[str]) -> None:
    assert assignment_kinds({key: assignments().get(key, {}) | fields}) == expected


def test_functions_have_to_answer() -> None:
    assert check_outputs({"f": ["a", "b"]}, {"f": ["b", "a", "a"]}) == []
    assert [a.kind for a in check_outputs({"f": ["a", "b"], "g": ["a"]}, {"f": ["b"]})] == ["silent", "silent"]
