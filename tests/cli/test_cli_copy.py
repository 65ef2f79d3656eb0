"""`kop produce` and `kop consume` as each other's inverse, and where `kop consume` begins and ends."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pytest
from cli.cli_support import Kop
from kafka import KafkaProducer
from support.waiting import SECONDS

from kop.cli.lines import LineError, LineRecord, from_json

RECORDS: list[dict[str, Any]] = [
    {"partition": 0, "timestamp": 1_700_000_000_000, "key": "k", "value": "text", "headers": []},
    {"partition": 0, "timestamp": 1_700_000_000_005, "key": "k", "value": None, "headers": []},
    {"partition": 0, "timestamp": 1_600_000_000_000, "key": None, "value": "", "headers": [{"name": "", "value": ""}]},
    {
        "partition": 2,
        "timestamp": 1_700_000_000_007,
        "key_base64": "//4=",
        "value_base64": "AAH/",
        "headers": [
            {"name": "twice", "value": "1"},
            {"name": "twice", "value": None},
            {"name": "ünïcode", "value_base64": "gA=="},
        ],
    },
    {"partition": 2, "timestamp": 1_700_000_000_006, "key": "", "value": 'a\n"b"\t\u2028', "headers": []},
]
"""What a topic may hold that a careless copy would lose."""


def lines(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def read(output: str) -> list[dict[str, Any]]:
    """The records of `kop consume --json`, partition by partition, without topic and offset."""
    records = [json.loads(line) for line in output.split("\n") if line]
    records.sort(key=lambda record: (record["partition"], record["offset"]))
    return [{name: value for name, value in record.items() if name not in {"topic", "offset"}} for record in records]


@pytest.fixture
def topics(kop: Kop) -> tuple[str, str]:
    """Two topics with three partitions, which keep the old records of these tests."""
    names = f"a-{uuid.uuid4().hex[:8]}", f"b-{uuid.uuid4().hex[:8]}"
    kop.ok("topics", "create", *names, "--partitions", "3", "-c", "retention.ms=-1")
    return names


def test_a_copy_by_a_pipe_has_equal_records(kop: Kop, topics: tuple[str, str]) -> None:
    source, target = topics
    kop.ok("produce", source, "--json", given=lines(RECORDS))
    printed = kop.ok("consume", source, "--json", "--until-end")
    assert read(printed) == RECORDS
    kop.ok("produce", target, "--json", "-z", "zstd", given=printed.encode())
    assert read(kop.ok("consume", target, "--json", "--until-end")) == RECORDS


def test_what_a_line_leaves_out_is_chosen(kop: Kop, topics: tuple[str, str]) -> None:
    kop.ok("produce", topics[0], "--json", "-H", "by=me", given=b'{"value": "v"}\n')
    (record,) = read(kop.ok("consume", topics[0], "--json", "--until-end"))
    assert abs(record.pop("timestamp") / 1000 - time.time()) < 120
    assert record.pop("partition") in {0, 1, 2}
    assert record == {"key": None, "value": "v", "headers": [{"name": "by", "value": "me"}]}


def test_keys_go_where_other_clients_put_them(kop: Kop, topics: tuple[str, str]) -> None:
    keys = [f"key-{number}" for number in range(40)]
    kop.ok("produce", topics[0], "-K", ":", given="".join(f"{key}:v\n" for key in keys).encode())
    producer = KafkaProducer(bootstrap_servers=kop.bootstrap)
    for key in keys:
        producer.send(topics[1], b"v", key.encode())
    producer.close(SECONDS)
    ours, theirs = (
        {(record["key"], record["partition"]) for record in read(kop.ok("consume", topic, "--json", "--until-end"))}
        for topic in topics
    )
    assert ours == theirs


def test_null_makes_tombstones(kop: Kop, topics: tuple[str, str]) -> None:
    kop.ok("produce", topics[0], "-p", "0", "-K", ":", "--null", "-", given=b"k:-\n-:v\n")
    shown = [(record["key"], record["value"]) for record in read(kop.ok("consume", topics[0], "--json", "--until-end"))]
    assert shown == [("k", None), (None, "v")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "is no JSON ("),
        (b"[]", "is no JSON object"),
        (b'{"key": "k"}', "has neither value nor value_base64; a tombstone has a value of null"),
        (b'{"valeu": "v"}', "has an unknown field 'valeu'"),
        (b'{"value": {"a": 1}}', "has a value that is neither a string nor null"),
        (b'{"value": "a", "value_base64": "YQ=="}', "has both value and value_base64"),
        (b'{"value_base64": "!"}', "has a value_base64 that is no base64"),
        (b'{"value": "\\ud800"}', "has a value that is no Unicode text"),
        (b'{"value": "v", "timestamp": "now"}', "has a timestamp that is no such number"),
        (b'{"value": "v", "partition": true}', "has a partition that is no such number"),
        (b'{"value": "v", "headers": {}}', "has headers that are no list"),
        (b'{"value": "v", "headers": [{"value": "v"}]}', "has a header that is not {name, value}"),
    ],
)
def test_a_line_that_is_no_record(line: bytes, problem: str) -> None:
    with pytest.raises(LineError) as raised:
        from_json(line)
    assert str(raised.value).startswith(problem)


def test_a_line_of_json() -> None:
    assert from_json(b'{"value": null, "topic": "t", "offset": 7}') == LineRecord(None, None, [], None, None)


def test_a_partition_that_the_other_topic_does_not_have_ends_the_copy(kop: Kop, topics: tuple[str, str]) -> None:
    outcome = kop("produce", topics[0], "--json", given=lines([RECORDS[0], {"value": "v", "partition": 7}]))
    assert (outcome.code, outcome.err) == (1, "kop: line 2 is for partition 7; the topic has 3; 1 of 2 was sent\n")


def test_many_lines_in_order_through_small_batches(kop: Kop) -> None:
    """The topic takes batches of 1000 bytes at most: larger ones are split, and nothing changes places."""
    topic = f"small-{uuid.uuid4().hex[:8]}"
    kop.ok("topics", "create", topic, "-c", "max.message.bytes=1000")
    text = "".join(f"line {number}\n" for number in range(2000))
    kop.ok("produce", topic, given=text.encode())
    assert kop.ok("consume", topic, "--until-end") == text
    large = kop("produce", topic, given=b"x" * 2000 + b"\n")
    assert large.code == 1
    assert large.err.startswith("kop: MESSAGE_TOO_LARGE: ")
    assert large.err.endswith("; 0 of 1 were sent\n")


@pytest.fixture
def numbered(kop: Kop, topics: tuple[str, str]) -> str:
    """A topic with values 0 to 9 in partition 0, a minute apart."""
    records = [
        {
            "value": str(number),
            "key": f"k{number % 2}",
            "partition": 0,
            "timestamp": 1_700_000_000_000 + number * 60_000,
        }
        for number in range(10)
    ]
    kop.ok("produce", topics[0], "--json", given=lines(records))
    return topics[0]


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["--until-end"], range(10)),
        (["--until-end", "-o", "-3"], range(7, 10)),
        (["-p", "0", "-o", "2", "--to-offset", "5"], range(2, 5)),
        (["--to-offset", "0"], range(0)),
        (["--to-offset", "99"], range(10)),
        (["--since", "2023-11-14T22:16:20Z", "--until-end"], range(3, 10)),
        (["--since", "2023-11-14T22:16:21", "--until", "2023-11-14T22:18:20Z"], range(4, 5)),
        (["--until", "PT1H"], range(10)),
        (["--since", "PT1H", "--until-end"], range(0)),
        (["--until-end", "--filter", "k1"], range(1, 10, 2)),
        (["--until-end", "--filter", "k1", "-n", "2"], range(1, 4, 2)),
        (["--until-end", "--read-committed"], range(10)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_where_reading_begins_and_ends(kop: Kop, numbered: str, arguments: list[str], values: range) -> None:
    assert kop.ok("consume", numbered, *arguments) == "".join(f"{value}\n" for value in values)


def test_a_template(kop: Kop, numbered: str) -> None:
    shown = kop.ok("consume", numbered, "--to-offset", "1", "--format", r"{partition}:{offset}\t{time} {key}={value}\n")
    assert shown == "0:0\t2023-11-14T22:13:20.000Z k0=0\n\n"


def test_transactions_and_the_end(kop: Kop, topics: tuple[str, str]) -> None:
    """Markers are at the end of the log; an open transaction holds back who reads what is committed."""
    producer = KafkaProducer(
        bootstrap_servers=kop.bootstrap, transactional_id=f"tx-{topics[0]}", max_block_ms=SECONDS * 1000
    )

    def send(value: bytes) -> None:
        producer.begin_transaction()
        producer.send(topics[0], value, partition=0).get(SECONDS)

    try:
        producer.init_transactions()
        send(b"committed")
        producer.commit_transaction()
        send(b"aborted")
        producer.abort_transaction()
        assert kop.ok("consume", topics[0], "--until-end", "--read-committed", "-t", "20") == "committed\n"
        assert kop.ok("consume", topics[0], "--until-end", "-t", "20") == "committed\naborted\n"
        send(b"open")
        assert kop.ok("consume", topics[0], "--until-end", "--read-committed", "-t", "20") == "committed\n"
        assert kop.ok("consume", topics[0], "--until-end", "-t", "20") == "committed\naborted\nopen\n"
        producer.abort_transaction()
    finally:
        producer.close(0)


def test_an_unknown_topic_names_near_names(kop: Kop, topics: tuple[str, str]) -> None:
    misspelt = topics[0][:-1]
    for command in (["consume", misspelt], ["topics", "describe", misspelt]):
        outcome = kop(*command)
        assert outcome.code == 1
        assert outcome.err.startswith(f"kop: {misspelt}: UNKNOWN_TOPIC_OR_PARTITION")
        assert f"did you mean {topics[0]}" in outcome.err
        assert "kop topics list" in outcome.err
