"""The oracle of functions finds each anomaly in outputs that have it, and none in those of a clean run."""

from __future__ import annotations

import signal
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from conformance.functions.faults import KINDS, OVERLAPPING, SPACING, plan
from conformance.functions.oracle import (
    REPLACED,
    STOPPED,
    Life,
    Message,
    Output,
    Promise,
    Topics,
    check,
    check_ends,
    check_lives,
    check_offsets,
    check_views,
)

ONCE = Promise("once", keeps=True, repeats=False, counts=True)
AT_LEAST = Promise("at-least", keeps=True, repeats=True, counts=False)
AT_MOST = Promise("at-most", keeps=False, repeats=False, counts=False)
TOPICS = Topics("results", "published")


def messages() -> list[Message]:
    """Ten without a key in each of two partitions, and twelve of three keys in another topic."""
    plain = [Message("plain", p, 2 * n, "", f"plain-{p}-{n}") for p in range(2) for n in range(10)]
    keyed = [Message("keyed", n % 2, 3 * n, f"key{n % 4}", f"keyed-{n}") for n in range(12)]
    return plain + keyed


def outputs(counted: bool = True) -> list[Output]:
    """What a clean run gives, by another way than the oracle's: message by message, as the function does it."""
    counts: Counter[tuple[str, int, str]] = Counter()
    sums: dict[tuple[str, int, str], int] = {}
    ends: Counter[tuple[str, int]] = Counter()
    given: list[Output] = []
    for message in messages():
        owner = message.topic, message.partition, message.key
        counts[owner] += 1
        sums[owner] = zlib.crc32(message.text.encode(), sums.get(owner, 0))
        text = f"{message.text} {counts[owner]} {sums[owner]}" if counted else message.text
        places = [("results", message.partition)]
        if message.key:
            places.append(("published", int(message.key.removeprefix("key"))))
        for place in places:
            given.append(Output(*place, ends[place], 1000.0 + ends[place], text))
            ends[place] += 1
    return given


def without(*numbers: int) -> Callable[[list[Output]], list[Output]]:
    return lambda given: [output for at, output in enumerate(given) if at not in numbers]


def again(number: int) -> Callable[[list[Output]], list[Output]]:
    return lambda given: [*given, given[number]._replace(offset=1000)]


def exchanged(first: int, second: int) -> Callable[[list[Output]], list[Output]]:
    """Two outputs in each other's place."""

    def change(given: list[Output]) -> list[Output]:
        texts = {first: given[second].text, second: given[first].text}
        return [output._replace(text=texts.get(at, output.text)) for at, output in enumerate(given)]

    return change


def changed(number: int, **fields: Any) -> Callable[[list[Output]], list[Output]]:
    return lambda given: [output._replace(**fields) if at == number else output for at, output in enumerate(given)]


def kinds(promise: Promise, given: Sequence[Output]) -> list[str]:
    return [anomaly.kind for anomaly in check(promise, TOPICS, messages(), given).anomalies]


@pytest.mark.parametrize("promise", [ONCE, AT_LEAST, AT_MOST], ids=lambda promise: promise.name)
def test_nothing_is_wrong_with_a_clean_run(promise: Promise) -> None:
    verdict = check(promise, TOPICS, messages(), outputs(promise.counts))
    assert verdict == ([], 44, 0, 0)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without(3), ["lost"]),
        (without(20), ["lost"]),
        (without(21), ["lost"]),
        (again(5), ["repeated"]),
        (again(21), ["repeated"]),
        (exchanged(3, 4), ["reordered"]),
        (changed(3, text="plain-0-3 5 0"), ["miscounted"]),
        (changed(3, text="plain-0-3"), ["miscounted"]),
        (changed(3, text="else 1 2"), ["invented", "lost"]),
        (changed(43, partition=7), ["elsewhere"]),
    ],
    ids=[
        "a result is missing",
        "a result of a message with a key is missing",
        "a publish is missing",
        "a result is there twice",
        "a publish is there twice",
        "two results are in another order",
        "a counter is wrong",
        "a counter is missing",
        "something else came out",
        "a publish is in another partition than those before it",
    ],
)
def test_a_planted_fault_is_found(change: Callable[[list[Output]], list[Output]], expected: list[str]) -> None:
    assert sorted(kinds(ONCE, change(outputs()))) == expected


def test_an_order_holds_within_a_unit_only() -> None:
    first, second = outputs()[0], outputs()[10]
    assert (first.partition, second.partition) == (0, 1)
    moved = [output._replace(offset=output.offset + 100 * (1 - output.partition)) for output in outputs()]
    assert kinds(ONCE, moved) == []


def test_at_least_once_may_repeat_and_not_lose() -> None:
    given = outputs(counted=False)
    verdict = check(AT_LEAST, TOPICS, messages(), again(2)(again(3)(given)))
    assert verdict == ([], 44, 2, 0)
    assert kinds(AT_LEAST, exchanged(3, 4)(given)) == []
    assert kinds(AT_LEAST, without(3)(given)) == ["lost"]


def test_at_most_once_may_lose_and_not_repeat() -> None:
    given = outputs(counted=False)
    verdict = check(AT_MOST, TOPICS, messages(), without(2, 3)(given))
    assert verdict == ([], 44, 0, 2)
    assert kinds(AT_MOST, again(3)(given)) == ["repeated"]


def test_an_anomaly_names_its_place() -> None:
    (lost,) = check(ONCE, TOPICS, messages(), without(3)(outputs())).anomalies
    assert (lost.topic, lost.partition, lost.offset) == ("plain", 0, 6)
    (repeated,) = check(ONCE, TOPICS, messages(), again(5)(outputs())).anomalies
    assert (repeated.topic, repeated.partition, repeated.offset) == ("results", 0, 1000)


def test_offsets_have_to_be_the_ends() -> None:
    ends = {("plain", 0): 20, ("plain", 1): 20}
    assert check_offsets("once", ends, ends) == []
    (behind,) = check_offsets("once", ends | {("plain", 1): 19}, ends)
    (missing,) = check_offsets("once", {("plain", 1): 20}, ends)
    assert (behind.kind, behind.partition, behind.offset) == ("uncommitted", 1, 19)
    assert (missing.kind, missing.partition, missing.offset) == ("uncommitted", 0, -1)


def test_transactions_have_to_end() -> None:
    high = {("results", 0): 20}
    assert check_ends("once", high, high) == []
    assert [anomaly.kind for anomaly in check_ends("once", {("results", 0): 12}, high)] == ["open"]


@pytest.mark.parametrize(
    ("how", "code", "says", "expected"),
    [
        ("killed", -signal.SIGKILL, "", []),
        ("stopped", 0, f"f {STOPPED}3 messages done", []),
        ("replaced", 1, f"Error: start one instance only: {REPLACED} x", []),
        ("", None, "", []),
        ("replaced", None, "", ["hangs"]),
        ("replaced", -signal.SIGABRT, "Current thread", ["hangs"]),
        ("stopped", -signal.SIGABRT, "Current thread", ["hangs"]),
        ("replaced", 1, "Error: no server answers", ["ended"]),
        ("replaced", 0, f"f {STOPPED}3 messages done", ["ended"]),
        ("stopped", 1, "Error: no server answers", ["ended"]),
        ("", 1, "Error: no server answers", ["ended"]),
    ],
)
def test_instances_have_to_end_as_they_should(how: str, code: int | None, says: str, expected: list[str]) -> None:
    assert [anomaly.kind for anomaly in check_lives("once", [Life(1, how, 1000.0, code, says)])] == expected


def test_a_plan_has_all_kinds_and_all_functions() -> None:
    faults = plan(7, 200.0, SPACING.usual, [*KINDS, "kill"], ["once", "at-least"], 1)
    assert faults == plan(7, 200.0, SPACING.usual, [*KINDS, "kill"], ["once", "at-least"], 1)
    assert {fault.kind for fault in faults} == {*KINDS, "kill"}
    assert {fault.target for fault in faults if fault.kind in KINDS} == {"once", "at-least"}
    assert {fault.target for fault in faults if fault.kind not in KINDS} == {"1"}
    assert all(fault.lasts for fault in faults if fault.kind in OVERLAPPING)


def native_texts() -> dict[tuple[str, int], list[str]]:
    """What Pulsar's own consumers are given of the outputs of a clean run."""
    texts: dict[tuple[str, int], list[str]] = {}
    for output in outputs():
        texts.setdefault((output.topic, output.partition), []).append(output.text)
    return texts


LAST = len(native_texts()["results", 0]) - 1


@pytest.mark.parametrize(
    ("change", "offset", "detail"),
    [
        (lambda texts: texts.pop(), LAST, "nothing instead of"),
        (lambda texts: texts.append("more"), -1, "more instead of nothing"),
        (lambda texts: texts.insert(4, texts.pop(2)), 2, "instead of"),
    ],
)
def test_pulsars_own_consumers_are_given_the_same(
    change: Callable[[list[str]], object], offset: int, detail: str
) -> None:
    texts = native_texts()
    assert check_views("once", outputs(), texts) == []
    change(texts["results", 0])
    (anomaly,) = check_views("once", outputs(), texts)
    assert (anomaly.kind, anomaly.topic, anomaly.partition) == ("unlike", "results", 0)
    assert anomaly.offset == offset
    assert detail in anomaly.detail
