"""The JSON of offsets is the one of Spark's Kafka source, both ways."""

from __future__ import annotations

import json

import pytest

from kop.spark.offsets import from_dict, parse_assignment, parse_offsets, to_dict


def test_offsets_are_read_and_written_as_sparks_kafka_source_does() -> None:
    text = '{"a":{"0":23,"1":-2},"b":{"0":-1}}'
    offsets = parse_offsets(text)
    assert offsets == {("a", 0): 23, ("a", 1): -2, ("b", 0): -1}
    assert json.dumps(to_dict(offsets), separators=(",", ":")) == text
    assert from_dict(to_dict(offsets)) == offsets


def test_equal_offsets_are_equal_text() -> None:
    offsets, same = {("b", 2): 1, ("b", 10): 2, ("a", 0): 3}, {("a", 0): 3, ("b", 10): 2, ("b", 2): 1}
    assert json.dumps(to_dict(offsets)) == json.dumps(to_dict(same)) == '{"a": {"0": 3}, "b": {"2": 1, "10": 2}}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no JSON"),
        ("[]", "an object belongs"),
        ('{"a": 1}', "an object belongs"),
        ('{"a": {"x": 1}}', "'x'"),
        ('{"a": {"0": "1"}}', "no whole number"),
        ('{"a": {"0": true}}', "no whole number"),
        ('{"a": {"0": 1.5}}', "no whole number"),
        ('{"a": {"0": 9223372036854775808}}', "more than 64 bits"),
        ('{"a": {"0": 1}, "a": {"1": 2}}', "has 'a' twice"),
        ('{"a": {"0": 1, "00": 2}}', "partition 00 of a twice"),
    ],
)
def test_what_is_wrong_with_offsets_is_said(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_offsets(text)


def test_an_assignment_is_a_list_of_partitions_for_each_topic() -> None:
    assert parse_assignment('{"a": [0, 2], "b": [1]}') == [("a", 0), ("a", 2), ("b", 1)]
    for text in ('{"a": 1}', '{"a": ["0"]}', '{"a": [-1]}', "[]", "nothing"):
        with pytest.raises(ValueError, match="is no"):
            parse_assignment(text)
