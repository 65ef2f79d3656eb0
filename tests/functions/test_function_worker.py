"""Workers in this process, whose instances are processes: from a request to what the function writes."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from kop.address import Address
from kop.client.errors import ClientError
from kop.client.properties import connection
from kop.functions.packages import Assembler, Package
from kop.functions.registry import Registry
from kop.functions.scheduler import schedule
from kop.functions.worker import Worker
from kop.functions.worker_options import WorkerOptions, default_worker_id, scheduler_named
from kop.records.partitioning import partition_of
from kop.testing import Broker

FQFN = "public/default/shout"
SHOUT = Package("shout.py", b"def process(text: str) -> str:\n    return text + '!'\n")
CONFIG = {"className": "shout", "py": "shout.py", "inputs": ["in"], "output": "out", "parallelism": 2}
SECONDS = 40.0


@asynccontextmanager
async def workers(broker: Broker, folder: Path, count: int = 2) -> AsyncIterator[list[Worker]]:
    settings = connection({"bootstrap.servers": broker.bootstrap}, "kop-functions").settings
    made = [
        Worker(settings, 20.0, WorkerOptions(worker_id=f"w{n}", folder=folder / str(n), port=0)) for n in range(count)
    ]
    try:
        await asyncio.gather(*(worker.start() for worker in made))
        await until(lambda: not any(worker.not_ready() for worker in made), "all to be ready", SECONDS)
        await until(lambda: all(len(worker.workers()) == count for worker in made), "all to know all", SECONDS)
        yield made
    finally:
        await asyncio.gather(*(worker.close() for worker in made))


async def test_nothing_is_asked_of_a_worker_that_has_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client for writing is the start's, which waits for servers that are away."""
    begun, go_on = threading.Event(), threading.Event()

    def start(registry: Registry) -> None:
        begun.set()
        assert go_on.wait(SECONDS)
        raise ClientError("no server answers")

    monkeypatch.setattr(Registry, "start", start)
    with Broker() as broker:
        settings = connection({"bootstrap.servers": broker.bootstrap}, "kop-functions").settings
        worker = Worker(settings, 20.0, WorkerOptions(worker_id="w1", folder=tmp_path, port=0))
        starting = asyncio.create_task(worker.start())
        await until(begun.is_set, "the start", SECONDS)
        try:
            with pytest.raises(ClientError, match="wait until the worker has started"):
                await worker.requests.request("create", FQFN, config=CONFIG, package=SHOUT, by="ada")
        finally:
            go_on.set()
        with pytest.raises(ClientError, match="no server answers"):
            await starting


async def values(broker: Broker, topic: str) -> list[bytes]:
    records = await asyncio.to_thread(broker.records, topic, isolation_level="read_committed")
    return sorted(record.value or b"" for record in records)


async def test_a_function_runs_on_both_workers_and_is_asked_through_either(tmp_path: Path) -> None:
    with Broker() as broker:
        broker.create_topic("in", partitions=2)
        async with workers(broker, tmp_path) as (first, second):
            answer = await first.requests.request("create", FQFN, config=CONFIG, package=SHOUT, by="ada")
            assert answer.won, answer
            assert first.names("public", "default") == ["shout"]
            await until(lambda: second.definition(FQFN), "the other to know it")
            await until(
                lambda: {each.worker for each in first.assignments().values()} == {"w0", "w1"}, "both to have it"
            )

            async def runs() -> bool:
                return [s["running"] for s in (await second.questions.status(FQFN, None)).values()] == [True, True]

            await until(runs, "both to run", SECONDS)
            await asyncio.to_thread(broker.produce, "in", ["a", "b", "c"])

            async def written() -> bool:
                return await values(broker, "out") == [b"a!", b"b!", b"c!"]

            await until(written, "what it writes", SECONDS)
            for worker in (first, second):
                for instance in (0, 1):
                    asked = {"ask": "trigger", "value": "aGk=", "key": None, "topic": None, "seconds": 20}
                    assert (await worker.questions.ask(FQFN, instance, asked))["output"] == "aGkh"
            places = {}
            for number in range(6):
                asked["key"] = base64.b64encode(f"key-{number}".encode()).decode()
                assert (await second.questions.ask(FQFN, None, asked))["output"] == "aGkh"
            for record in await asyncio.to_thread(broker.records, "in"):
                if record.key is not None:
                    places[record.key] = record.partition
            assert places == {key: partition_of(key, 2) for key in places}
            assert len({*places.values()}) == 2
            nowhere = await first.questions.ask(FQFN, None, {**asked, "topic": "persistent://public/default/other"})
            assert (nowhere["status"], "name an input" in nowhere["error"]) == (400, True)
            assert "no instance" in (await first.questions.ask(FQFN, 7, {"ask": "trigger", "value": ""}))["error"]

            revision = answer.revision
            config = {"output": "louder", "parallelism": 1}
            wrong = await second.requests.request(
                "update", FQFN, expects=revision, config={"className": "shout.No"}, by="bob"
            )
            assert wrong.status == 400
            changed = await second.requests.request("update", FQFN, expects=revision, config=config, by="bob")
            assert changed.won
            lost = await first.requests.request("update", FQFN, expects=revision, config={"output": "x"}, by="ada")
            assert (lost.status, lost.revision) == (409, changed.revision)
            assert "bob has sent update" in lost.reason
            for worker in (second, first):  # the instance that is being replaced is not asked
                asked = {"ask": "trigger", "value": "aGk=", "key": None, "topic": None, "seconds": 20}
                assert (await worker.questions.ask(FQFN, None, asked))["output"] == "aGkh"
            await asyncio.to_thread(broker.produce, "in", ["d", "e"])

            async def moved() -> bool:
                return {b"d!", b"e!"} <= set(await values(broker, "louder"))

            await until(moved, "the new output", SECONDS)
            deleted = await first.requests.request("delete", FQFN, expects=changed.revision, by="ada")
            assert deleted.won
            assert first.functions() == []
            told = await first.history(FQFN, 10)
            assert [(row["kind"], row["by"], row["status"]) for row in told] == [
                ("create", "ada", 200),
                ("update", "bob", 200),
                ("update", "ada", 409),
                ("delete", "ada", 200),
            ]


async def test_one_worker_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    real = Assembler.package

    def counted(assembler: Assembler, digest: str, name: str) -> Package | None:
        reads.append(digest)
        return real(assembler, digest, name)

    monkeypatch.setattr(Assembler, "package", counted)
    with Broker() as broker:
        broker.create_topic("in", partitions=2)
        async with workers(broker, tmp_path, 1) as (worker,):
            for package, config, reason in (
                (Package("shout.py", b"def process(x):\n  retrun x"), {}, "line 2: SyntaxError"),
                (SHOUT, {"paralelism": 2}, "is it parallelism?"),
                (SHOUT, {"className": "shout.Missing"}, "Missing"),
                (None, {}, "the package is missing"),
            ):
                refused = await worker.requests.request(
                    "create", FQFN, config=CONFIG | config, package=package, by="ada"
                )
                assert refused.status == 400
                assert reason in refused.reason
            assert await worker.requests.request("update", FQFN, config={"output": "o"}, by="ada") is not None
            broker.fail("CreateTopics", "TOPIC_AUTHORIZATION_FAILED")
            refused = await worker.requests.request("create", FQFN, config=CONFIG, package=SHOUT, by="ada")
            assert (refused.status, "make the topic out, or allow this user to" in refused.reason) == (403, True)

            await worker.upload("code/shout.py", SHOUT.data)
            assert await worker.download("code/shout.py") == SHOUT.data
            assert await worker.download("code/other.py") is None

            created = await worker.requests.request("create", FQFN, config=CONFIG, package=SHOUT, by="ada")
            assert created.won
            assert await worker.package(FQFN) == SHOUT
            again = await worker.requests.request("create", FQFN, config=CONFIG, package=SHOUT, by="bob")
            assert (again.status, again.revision) == (409, created.revision)

            async def started(number: int) -> Any:
                return (await worker.questions.status(FQFN, number)).get(number, {}).get("running")

            await until(lambda: started(1), "it to run", SECONDS)
            read = len(reads)
            stopped = await worker.requests.request("stop", FQFN, expects=created.revision, instance=1, by="ada")
            assert stopped.won
            await until(lambda: [number for _, number in worker.assignments()] == [0], "it to stop", SECONDS)
            await until(lambda: len(worker.local()) == 1, "the process to end", SECONDS)
            assert len(reads) == read, "a package that lies here is not read again"
            assert (await worker.requests.drain("w9")).status == 404
            assert (await worker.requests.drain("w0")).status == 409
            assert worker.assignments()


async def test_the_lag_of_an_instance_that_does_not_run_is_counted(tmp_path: Path) -> None:
    crash = Package("shout.py", b"import os\ndef process(text: str) -> str:\n    os._exit(3)\n")
    with Broker() as broker:
        broker.create_topic("in")
        async with workers(broker, tmp_path, 1) as (worker,):
            created = await worker.requests.request(
                "create", FQFN, config={**CONFIG, "parallelism": 1}, package=crash, by="ada"
            )
            assert created.won, created
            await asyncio.to_thread(broker.produce, "in", ["a", "b", "c"])

            async def told() -> Any:
                status = (await worker.questions.status(FQFN, None)).get(0, {})
                return status.get("error") and not status["running"] and status.get("lag") == {"in-0": 3}

            await until(told, "the lag of what has ended", SECONDS)


def test_a_worker_has_a_name_that_others_can_read() -> None:
    assert default_worker_id(6750).endswith("-6750")
    with pytest.raises(ClientError, match="may have letters, digits"):
        Worker({}, 1.0, WorkerOptions(worker_id="a b", folder=Path()))


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({"host": "127.0.0.1"}, "127.0.0.1:6750"),
        ({"host": "0.0.0.0"}, f"{socket.gethostname()}:6750"),
        ({"host": "0.0.0.0", "advertise": Address("w.example", 80)}, "w.example:80"),
        ({"host": "127.0.0.1", "advertise": Address("w.example", 0)}, "w.example:6750"),
    ],
)
def test_a_worker_announces_where_it_is_asked(options: dict[str, Any], address: str) -> None:
    assert Worker({}, 1.0, WorkerOptions(worker_id="w", folder=Path(), **options)).address == address


def test_another_scheduler_is_named_as_module_and_function() -> None:
    assert scheduler_named("") is schedule
    assert scheduler_named("kop.functions.scheduler.schedule") is schedule
    for name in ("nowhere.schedule", "kop.functions.scheduler.other", "schedule"):
        with pytest.raises(ClientError, match="name a scheduler"):
            scheduler_named(name)
