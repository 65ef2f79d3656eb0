"""`kop transactions` against a `kop serve`: results on stdout, the rest on stderr, exit codes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from cli.cli_support import Kop
from kafka import KafkaProducer
from kafka.errors import KafkaError
from support.waiting import SECONDS

Opened = tuple[KafkaProducer, str, str]


@pytest.fixture
def opened(kop: Kop) -> Iterator[Opened]:
    """A producer with an open transaction over two partitions, its transactional id and topic."""
    name = f"tx-{uuid.uuid4().hex[:8]}"
    topic = f"t-{name}"
    kop.ok("topics", "create", topic, "-p", "2")
    producer = KafkaProducer(
        bootstrap_servers=kop.bootstrap,
        transactional_id=name,
        transaction_timeout_ms=900_000,
        max_block_ms=SECONDS * 1000,
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send(topic, b"v", partition=partition).get(SECONDS)
        yield producer, name, topic
    finally:
        producer.close(0)


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()[1:]]


def test_list_describe_abort(kop: Kop, opened: Opened) -> None:
    producer, name, topic = opened
    listed = kop.ok("transactions", "list")
    assert listed.splitlines()[0].split() == ["TRANSACTIONAL-ID", "STATE", "PRODUCER", "COORDINATOR"]
    (mine,) = [row for row in rows(listed) if row[0] == name]
    assert mine[1] == "Ongoing"
    assert mine in rows(kop.ok("transactions", "list", "--open"))
    assert mine in rows(kop.ok("transactions", "list", "--longer-than", "PT0.001S"))
    assert name not in kop.ok("transactions", "list", "--longer-than", "PT1H")

    lines = kop.ok("transactions", "describe", name).splitlines()
    assert lines[0].startswith(f"{name}: state Ongoing, open for ")
    assert f"producer {mine[2]} epoch 0, timeout 900 s, coordinator {mine[3]}" in lines[0]
    assert [line.split() for line in lines[1:]] == [["TOPIC", "PARTITION"], [topic, "0"], [topic, "1"]]
    assert f"{name}: state Ongoing" in kop.ok("transactions", "describe", "--open")

    assert kop.ok("transactions", "abort", name) == f"{name}: aborted\n"
    assert name not in kop.ok("transactions", "list", "--open")
    again = kop.ok("transactions", "abort", name)
    assert again == f"{name}: no open transaction, its state is Empty\n"
    with pytest.raises(KafkaError):
        producer.commit_transaction()


def test_an_unknown_transactional_id_is_named(kop: Kop) -> None:
    for what in ("describe", "abort"):
        missing = kop("transactions", what, "nobody-1", "nobody-2")
        assert (missing.code, missing.out) == (1, "")
        assert [line.split(":")[:3] for line in missing.err.splitlines()] == [
            ["kop", " nobody-1", " TRANSACTIONAL_ID_NOT_FOUND"],
            ["kop", " nobody-2", " TRANSACTIONAL_ID_NOT_FOUND"],
        ]
