"""Records are read ahead from several servers, none of which holds up another."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.waiting import wait_until

from kop.client.batches import build
from kop.client.read_client import Fetched, FetchSettings, TopicMetadata
from kop.client.write_client import Identity
from kop.functions.reading import MORE_BYTES, ReadAhead

PLACES = [("a", 0), ("a", 1), ("b", 0)]


class FakeServers:
    """Two servers. The second one has no records, and answers after an hour."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.clients = 0
        self.closed = 0

    def client(self) -> Any:
        self.clients += 1
        return self

    def topics(self, names: set[str]) -> dict[str, TopicMetadata]:
        return {"a": TopicMetadata(None, {0: 1, 1: 2}), "b": TopicMetadata(None, {0: 1})}

    def fetch_many(self, offsets: Mapping[Any, int], settings: FetchSettings) -> dict[Any, Fetched]:
        if ("a", 1) in offsets or all(offset == 1 for offset in offsets.values()):
            self.over.wait(30)
            return {}
        ((batch, _),) = build([(None, b"x", (), None)], Identity(-1, -1), -1, now=1)
        return {p: Fetched(bytes(batch) if not o else b"", 1, 1, 0, ()) for p, o in offsets.items()}

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def servers() -> Iterator[FakeServers]:
    made = FakeServers()
    yield made
    made.over.set()


def test_a_server_without_records_holds_up_no_other(servers: FakeServers) -> None:
    failures: list[BaseException] = []
    reader = ReadAhead(servers.client(), servers.client, dict.fromkeys(PLACES, 0), failures.append, FetchSettings())
    got: list[Any] = []
    end = time.monotonic() + 10
    while len(got) < 2 and time.monotonic() < end:
        got += [(taken.partition, record[3]) for taken in reader.take(10, (), 0.1) for record in taken.records]
    assert sorted(got) == [(("a", 0), b"x"), (("b", 0), b"x")]
    servers.over.set()
    reader.close(10)
    wait_until(lambda: servers.closed == servers.clients == 2)
    assert failures == []


class CountingServer:
    """A server that always has a further record, of a size."""

    def __init__(self, size: int) -> None:
        self.value = b"x" * size
        self.fetched: list[int] = []

    def topics(self, names: set[str]) -> dict[str, TopicMetadata]:
        return {"a": TopicMetadata(None, {0: 1})}

    def fetch_many(self, offsets: Mapping[Any, int], settings: FetchSettings) -> dict[Any, Fetched]:
        answers = {}
        for place, offset in offsets.items():
            self.fetched.append(offset)
            ((batch, _),) = build([(None, self.value, (), None)], Identity(-1, -1), -1, now=1)
            batch[:8] = offset.to_bytes(8, "big")
            answers[place] = Fetched(bytes(batch), offset + 1, offset + 1, 0, ())
        return answers

    def close(self) -> None:
        pass


def _wait_for(server: CountingServer, fetches: int) -> None:
    wait_until(lambda: len(server.fetched) >= fetches)


@pytest.mark.parametrize(("size", "ahead"), [(100, 1), (MORE_BYTES, 5)])
def test_little_is_read_when_it_is_wanted_and_much_ahead(size: int, ahead: int) -> None:
    server: Any = CountingServer(size)
    failures: list[BaseException] = []
    reader = ReadAhead(server, lambda: server, {("a", 0): 0}, failures.append, FetchSettings())
    taken: list[int] = []
    while len(taken) < 3:
        taken += [record[0] for some in reader.take(1, (), 10) for record in some.records]
        _wait_for(server, len(taken) + ahead - 1)
    reader.close(10)
    assert taken == [0, 1, 2]
    assert ahead > 1 or len(server.fetched) <= 4, "records are read before they are wanted"
    assert failures == []
