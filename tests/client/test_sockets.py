"""Sockets that read much at a time, as kafka-python makes them for clients of kop."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from kafka.net.inet import KafkaNetSocket
from support.waiting import wait_until

from kop.client import sockets
from kop.client.read_client import Fetched, FetchSettings, ReadClient
from kop.client.sockets import WIDE_READS, WideSocket
from kop.testing import Broker


def test_more_is_read_than_kafka_python_asks_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = KafkaNetSocket(WIDE_READS).socket(socket.AF_INET, socket.SOCK_STREAM, 0)
        with made:
            made.connect(server.getsockname())
            other, _ = server.accept()
            with other:
                other.sendall(b"x" * 10_000)
                wait_until(lambda: len(made.recv(10_000, socket.MSG_PEEK)) == 10_000)
                assert made.recv(4096) == b"x" * 10_000


def test_clients_read_by_these_sockets(kop_shared_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    kop_shared_broker.create_topic("wide")
    kop_shared_broker.produce("wide", [b"v" * 500_000])
    sizes: list[int] = []

    class Counting(WideSocket):
        def recv(self, size: int, flags: int = 0, /) -> bytes:
            got = super().recv(size, flags)
            sizes.append(len(got))
            return got

    monkeypatch.setattr(sockets, "WideSocket", Counting)
    with closing(ReadClient({"bootstrap_servers": [kop_shared_broker.bootstrap]}, 20_000)) as reader:
        answer = reader.fetch_many({("wide", 0): 0}, FetchSettings())["wide", 0]
    assert isinstance(answer, Fetched)
    assert len(answer.records) > 500_000
    assert max(sizes) > 4096
