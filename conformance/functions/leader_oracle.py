"""What must not be in what workers of functions did with requests: a pure look through their topics and answers.

Owns: which request wins, by the revision that it expects; what definitions and assignments have to be in the end.
Must not know: clients, processes, faults, the product's own code.

| kind | what it is |
|---|---|
| unanswered | a request has no answer |
| answered-twice | it has two |
| wrong-winner | a request won, though the definition had another revision than it expected |
| wrong-loser | a request lost, though the definition had the revision that it expected |
| refused | a request was refused for another reason than its revision, or its package that was deleted meanwhile |
| wrong-revision | the answer names another revision than the offset of the request that made the definition |
| sent-twice | one call became two requests |
| told-otherwise | who asked was told something else than the topic says |
| packageless | a definition names a package that is not there |
| diverged | a definition is not what the winners made of it, in the topic or as a worker tells it |
| unassigned | a partition of an input is nobody's, or two instances have it |
| stray | an assignment that no definition wants, of another revision, or to a worker that is gone |
| uneven | the instances of workers differ by more than one |
| silent | a function has not answered a message when all was over |
| orphan | an instance has outlived its worker |
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from conformance.functions.oracle import Anomaly, Place

WON = 300
"""Statuses below this."""
LOST = (404, 409)
"""What loses because of its revision is told so by one of these."""
NO_PACKAGE = 412
"""The package was deleted meanwhile, since nobody named it: the worker sends both again, as another request."""
CHANGES = ("update", "start", "stop", "restart")


class Call(NamedTuple):
    """What a client asked a worker for, and was told. `who` is another one for each call."""

    who: str
    worker: str
    kind: str
    fqfn: str
    expects: int | None
    status: int
    """0 if there was no answer."""
    revision: int | None
    reason: str
    begin: float
    end: float


class Record(NamedTuple):
    """A record of one of the workers' topics, for a reader of committed ones. `value` is None for a deletion."""

    offset: int
    at: float
    key: str
    value: str | None


class Log(NamedTuple):
    """The requests in their order, with the answers to each."""

    requests: list[tuple[Record, dict[str, Any]]]
    answers: dict[str, list[tuple[Record, dict[str, Any]]]]


def log_of(records: Iterable[Record]) -> Log:
    """Return what the topic of requests has."""
    log = Log([], {})
    known: set[str] = set()
    for record in records:
        said = json.loads(record.value or "{}")
        if "request" in said:
            if said["request"]["id"] not in known:
                log.requests.append((record, said["request"]))
            known.add(said["request"]["id"])
        elif "answer" in said:
            log.answers.setdefault(said["answer"]["request"], []).append((record, said["answer"]))
    return log


def _wrong(kind: str, fqfn: str, offset: int, detail: str, at: float = 0.0) -> Anomaly:
    return Anomaly(kind, fqfn, "", 0, offset, detail, at)


class Outcome(NamedTuple):
    """What the requests made. `revisions`: of each function that is there; `won`, `lost`: how many requests did."""

    anomalies: list[Anomaly]
    revisions: dict[str, int]
    won: int
    lost: int


def check_log(log: Log) -> Outcome:
    """Do what the leaders should have done, request by request, and compare their answers."""
    anomalies: list[Anomaly] = []
    revisions: dict[str, int] = {}
    counts: Counter[bool] = Counter()
    for record, request in log.requests:
        kind, fqfn = request["kind"], request.get("fqfn", "")
        answers = log.answers.get(request["id"], [])
        about = f"{kind} that expects {request.get('expects')}"
        if not answers:
            anomalies.append(_wrong("unanswered", fqfn, record.offset, about, record.at))
        if len(answers) > 1:
            offsets = [answer.offset for answer, _ in answers]
            anomalies.append(_wrong("answered-twice", fqfn, record.offset, f"{about}: at {offsets}", record.at))
        if kind not in ("create", "delete", *CHANGES):
            continue
        there = revisions.get(fqfn)
        if answers and answers[0][1]["status"] == NO_PACKAGE:
            continue
        wins = (request.get("expects") == there) and (kind == "create") == (there is None)
        if wins:
            if kind == "delete":
                revisions.pop(fqfn)
            else:
                revisions[fqfn] = record.offset
        counts[wins] += 1
        now = revisions.get(fqfn)
        for _, answer in answers[:1]:
            told, status = answer.get("revision"), answer["status"]
            detail = f"{about}, where {there} was: answer {status}, revision {told}: {answer.get('reason', '')}"
            if status < WON and not wins:
                anomalies.append(_wrong("wrong-winner", fqfn, record.offset, detail, record.at))
            elif status >= WON and wins:
                kind_of = "wrong-loser" if status in LOST else "refused"
                anomalies.append(_wrong(kind_of, fqfn, record.offset, detail, record.at))
            elif status >= WON and status not in LOST:
                anomalies.append(_wrong("refused", fqfn, record.offset, detail, record.at))
            elif told != now:
                anomalies.append(_wrong("wrong-revision", fqfn, record.offset, f"{detail}; it is {now}", record.at))
    return Outcome(anomalies, revisions, counts[True], counts[False])


def check_calls(calls: Iterable[Call], log: Log) -> list[Anomaly]:
    """Compare what clients were told with the answers of the topic."""
    anomalies = []
    by_who: dict[str, list[tuple[Record, dict[str, Any]]]] = {}
    for record, request in log.requests:
        if any(answer["status"] == NO_PACKAGE for _, answer in log.answers.get(request["id"], ())):
            continue
        by_who.setdefault(request["by"].partition(" ")[0], []).append((record, request))
    for call in calls:
        requests = by_who.get(call.who, [])
        about = f"{call.who}, {call.kind} that expects {call.expects}, told {call.status} {call.revision}"
        if len(requests) > 1:
            offsets = [record.offset for record, _ in requests]
            anomalies.append(_wrong("sent-twice", call.fqfn, offsets[0], f"{about}: at {offsets}", call.begin))
            continue
        won = 0 < call.status < WON
        if not requests:
            if won:
                anomalies.append(_wrong("told-otherwise", call.fqfn, -1, f"{about}: no request", call.begin))
            continue
        record, request = requests[0]
        answers = log.answers.get(request["id"], [])
        if not call.status or call.status >= 500 or not answers:
            continue  # who asked was told that nobody knows
        answer = answers[0][1]
        if (answer["status"] < WON) != won or (won and call.revision != answer.get("revision")):
            detail = f"{about}: the topic says {answer['status']} {answer.get('revision')}"
            anomalies.append(_wrong("told-otherwise", call.fqfn, record.offset, detail, call.begin))
    return anomalies


def latest(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """Return what a compacted topic says."""
    now: dict[str, dict[str, Any]] = {}
    for record in records:
        now.pop(record.key, None)
        if record.value is not None:
            now[record.key] = json.loads(record.value)
    return now


def check_definitions(revisions: Mapping[str, int], told: Mapping[str, int | None], who: str) -> list[Anomaly]:
    """Compare the revisions of definitions, as somebody tells them, with those that the winners have."""
    return [
        _wrong(
            "diverged", fqfn, revisions.get(fqfn, -1), f"{who} has {told.get(fqfn)} instead of {revisions.get(fqfn)}"
        )
        for fqfn in sorted(revisions.keys() | told.keys())
        if revisions.get(fqfn) != told.get(fqfn)
    ]


def check_packages(definitions: Mapping[str, Mapping[str, Any]], packages: Mapping[str, object]) -> list[Anomaly]:
    """Look for definitions without code. The keys of packages are DIGEST/NUMBER."""
    digests = {key.partition("/")[0] for key in packages}
    return [
        _wrong("packageless", fqfn, definition["revision"], f"the package {definition['package']} is not there")
        for fqfn, definition in sorted(definitions.items())
        if definition["package"] not in digests
    ]


def check_assignments(
    definitions: Mapping[str, Mapping[str, Any]],
    assignments: Mapping[str, Mapping[str, Any]],
    inputs: Mapping[str, Collection[Place]],
    workers: Collection[str],
) -> list[Anomaly]:
    """Compare assignments with definitions. `inputs`: the partitions that each function reads."""
    anomalies = []
    owners: dict[str, Counter[Place]] = {fqfn: Counter() for fqfn in definitions}
    loads: Counter[str] = Counter(dict.fromkeys(workers, 0))
    for key, assignment in sorted(assignments.items()):
        fqfn, _, number = key.rpartition("/")
        definition, instance = definitions.get(fqfn), int(number) if number.isdigit() else -1
        if fqfn.startswith("worker:") or not fqfn:
            continue  # a worker that is drained
        stray = ""
        if definition is None:
            stray = "there is no such function"
        elif not 0 <= instance < int(definition["config"].get("parallelism") or 1):
            stray = "it has no such instance"
        elif instance in definition.get("stopped", ()):
            stray = "the instance is stopped"
        elif assignment["revision"] != _runs(definition, instance):
            stray = f"it runs {assignment['revision']} instead of {_runs(definition, instance)}"
        elif assignment["worker"] not in workers:
            stray = f"there is no worker {assignment['worker']}"
        if stray:
            anomalies.append(_wrong("stray", fqfn, -1, f"{key}: {stray}"))
            continue
        loads[assignment["worker"]] += bool(assignment["partitions"])
        owners[fqfn].update((topic, partition) for topic, partition in assignment["partitions"])
    for fqfn, definition in definitions.items():
        every = range(int(definition["config"].get("parallelism") or 1))
        runs = any(instance not in definition.get("stopped", ()) for instance in every)
        for place in sorted({*inputs[fqfn], *owners[fqfn]}):
            wanted = int(runs and place in inputs[fqfn])
            if owners[fqfn][place] != wanted:
                detail = f"{place[0]}-{place[1]} has {owners[fqfn][place]} instances instead of {wanted}"
                anomalies.append(_wrong("unassigned", fqfn, -1, detail))
    if loads and max(loads.values()) - min(loads.values()) > 1:
        anomalies.append(_wrong("uneven", "", -1, f"instances of workers: {dict(loads)}"))
    return anomalies


def _runs(definition: Mapping[str, Any], instance: int) -> int:
    restarts = {int(number): revision for number, revision in definition.get("restarts", {}).items()}
    return max(int(definition["version"]), int(restarts.get(instance, -1)))


def check_outputs(sent: Mapping[str, Sequence[str]], given: Mapping[str, Sequence[str]]) -> list[Anomaly]:
    """Look for functions that are there and silent: `sent` are the texts that each should have answered."""
    anomalies = []
    for fqfn, texts in sorted(sent.items()):
        missing = sorted(set(texts) - set(given.get(fqfn, ())))
        if missing:
            anomalies.append(_wrong("silent", fqfn, -1, f"{len(missing)} of {len(texts)} messages, as {missing[0]}"))
    return anomalies
