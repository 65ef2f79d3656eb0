"""The history of a function, out of a topic with the requests for many."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kop.client.batches import build
from kop.client.properties import connection
from kop.client.read_client import FetchSettings, ReadClient
from kop.client.write_client import WriteClient
from kop.functions import history
from kop.functions.definitions import LeaderAnswer, Request, to_log
from kop.functions.history import FunctionHistory
from kop.functions.metadata import REQUESTS
from kop.records.batch import Codec
from kop.testing import Broker

F, G = "public/default/f", "public/default/g"


class CountingReader(ReadClient):
    """A client that counts the offsets from which it was asked for records."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.positions: list[int] = []

    def fetch(self, place: tuple[str, int], topic_id: str | None, offset: int, settings: FetchSettings):  # type: ignore[no-untyped-def]
        self.positions.append(offset)
        return super().fetch(place, topic_id, offset, settings)


class Log:
    """The topic of requests."""

    def __init__(self, broker: Broker) -> None:
        self._settings = connection({"bootstrap.servers": broker.bootstrap}, "test").settings
        self._writer = WriteClient(self._settings, 20.0)
        self._producer = self._writer.init_producer(None, -1)
        self._end = 0
        self.reader = CountingReader(self._settings, 20_000)

    def write(self, fqfn: str, said: Request | LeaderAnswer) -> int:
        rows = [(fqfn.encode(), to_log(said), (), None)]
        for batch, _ in build(rows, self._producer, self._end, now=0, codec=Codec.NONE):
            self._writer.produce(self._producer, {(REQUESTS, 0): batch})
        self._end += 1
        return self._end - 1

    def ask(self, kind, fqfn: str, expects: int | None = None, *, status: int = 200) -> int:  # type: ignore[no-untyped-def]
        """Write a request and its answer; the offset of the request."""
        offset = self.write(fqfn, Request(id=f"r{self._end}", kind=kind, fqfn=fqfn, expects=expects))
        revision = offset if status == 200 and kind != "delete" else None
        self.write(fqfn, LeaderAnswer(request=f"r{offset}", status=status, revision=revision, offset=offset))
        return offset

    def close(self) -> None:
        self._writer.close()
        self.reader.close()


@pytest.fixture
def log(kop_broker: Broker) -> Iterator[Log]:
    kop_broker.create_topic(REQUESTS, partitions=1)
    made = Log(kop_broker)
    yield made
    made.close()


def test_the_newest_requests_are_told_and_old_ones_that_won(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "STEP_OFFSETS", 10)
    created = log.ask("create", F)
    log.ask("update", F, None, status=409)  # it lost, long ago
    updated = log.ask("update", F, created)
    for _ in range(40):
        log.ask("create", G, status=409)
    stopped = log.ask("stop", F, updated)
    log.ask("update", F, updated, status=409)
    waiting = log.write(F, Request(id="waits", kind="update", fqfn=F, expects=stopped))

    def told(limit: int, scanned: int = 40) -> list[tuple[str, int | None]]:
        log.reader.positions.clear()
        read = FunctionHistory(log.reader, F, scanned=scanned).read(limit, stopped)
        return [(request.kind, None if answer is None else answer.status) for request, answer in read]

    newest = [("stop", 200), ("update", 409), ("update", None)]
    assert told(limit=2) == newest[1:]
    assert all(position > waiting - 20 for position in log.reader.positions), "what is old is not read"
    assert told(limit=100) == [("create", 200), ("update", 200), *newest]
    assert len(log.reader.positions) < 12, "of what is old, no more than what won is read"
    assert told(limit=4) == [("update", 200), *newest]
    assert told(limit=100, scanned=1000) == [("create", 200), ("update", 409), ("update", 200), *newest]
    assert FunctionHistory(log.reader, F, scanned=2).read(9, stopped)[-1][0].id == "waits"


def test_a_request_that_was_sent_twice_has_one_answer(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "STEP_OFFSETS", 2)
    first = Request(id="same", kind="create", fqfn=F)
    won = LeaderAnswer(request="same", status=200, revision=0, offset=0)
    for said in (first, first, won, won):
        log.write(F, said)
    assert FunctionHistory(log.reader, F).read(5, 0) == [(first, won)]
    assert FunctionHistory(log.reader, "public/default/none").read(5, None) == []
