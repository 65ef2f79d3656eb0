"""What names and patterns of inputs mean among the topics that there are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from functions.function_kit import spec_with
from kafka import errors

from kop.client.read_client import TopicMetadata
from kop.functions.input_topics import input_of, partitions_of, reads, topics_of
from kop.functions.spec import FunctionSpec, InputSpec

DEAD = ("log-a-public-default-f-DLQ", "log-a-public-default-f-DLQ-public-default-f-DLQ")
LISTED = (*DEAD, "log-a", "log-b", "orders", "log-out", "__kop_functions", "internal")
UNLISTED = ("T/N/x", "hidden")
"""Those of other namespaces, and those that the user may not see, are told only if they are named."""


class Servers:
    """A client of servers that have these topics, of two partitions each."""

    def topics(
        self, names: Collection[str] | None, refused: dict[str, Exception] | None = None
    ) -> dict[str, TopicMetadata]:
        there = {}
        for name in LISTED if names is None else names:
            if name == "hidden":
                error = errors.TopicAuthorizationFailedError(name)
                if refused is None:
                    raise error
                refused[name] = error
            elif name in LISTED + UNLISTED:
                there[name] = TopicMetadata(None, {1: 0, 0: 0}, internal=name == "internal")
        return there


def spec_of(*inputs: str) -> FunctionSpec:
    """Return a function with these inputs; those with a star are patterns."""
    return spec_with(inputs={name: InputSpec(is_regex="*" in name) for name in inputs}, output="log-out")


def partitions(*inputs: str, refused: dict[str, Exception] | None = None) -> list[str]:
    client: Any = Servers()
    spec = spec_of(*inputs)
    there = partitions_of(spec, topics_of([spec], client, refused))
    assert [number for _, number in there] == [0, 1] * (len(there) // 2)
    return [topic for topic, number in there if number == 0]


@pytest.mark.parametrize(
    ("inputs", "topics"),
    [
        (["orders", "missing"], ["orders"]),
        (["T/N/x"], ["T/N/x"]),
        (["internal", "__kop_functions"], ["__kop_functions", "internal"]),
        (["log-.*"], ["log-a", "log-b"]),
        ([".*"], ["log-a", "log-b", "orders"]),
        (["orders", "log-a.*"], ["log-a", "orders"]),
        ([DEAD[0]], [DEAD[0]]),
        (["orders", "T/N/x", "log-a.*"], ["T/N/x", "log-a", "orders"]),
    ],
)
def test_inputs_mean_topics(inputs: list[str], topics: list[str]) -> None:
    assert partitions(*inputs) == topics


def test_a_topic_that_may_not_be_seen_is_told() -> None:
    for inputs in (["hidden", "orders"], ["hidden", "orders", "no-.*"]):
        refused: dict[str, Exception] = {}
        assert partitions(*inputs, refused=refused) == ["orders"]
        assert list(refused) == ["hidden"]
        with pytest.raises(errors.TopicAuthorizationFailedError):
            partitions(*inputs)


def test_a_pattern_reads_no_topic_of_its_own() -> None:
    spec = spec_of("in", "log-.*")
    told = {topic: reads(spec, topic) for topic in ("in", "log-a", "log-out", "other", "__kop_log-a")}
    assert told == {"in": True, "log-a": True, "log-out": False, "other": False, "__kop_log-a": False}
    assert not reads(spec, "log-a", internal=True)


def test_the_input_of_a_topic_is_told_by_its_name_before_a_pattern() -> None:
    inputs = {"log-.*": InputSpec(is_regex=True), "log-a": InputSpec()}
    spec = FunctionSpec(name="f", class_name="f", py="f.py", inputs=inputs)
    assert [input_of(spec, topic) for topic in ("log-a", "log-b")] == ["log-a", "log-.*"]
    with pytest.raises(KeyError):
        input_of(spec, "other")
