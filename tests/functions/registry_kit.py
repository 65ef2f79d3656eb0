"""Several registries on one broker, as the workers of a cluster have them, and what a leader does at a moment of a
test's choice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.waiting import wait_until

from kop.client.properties import connection
from kop.client.write_client import WriteClient
from kop.functions.definitions import LeaderAnswer, Request, WorkerInfo
from kop.functions.leading import LEADER_ID
from kop.functions.packages import Assembler, Package
from kop.functions.registry import Registry, membership_of
from kop.testing import Broker

FQFN = "public/default/f"
PACKAGE = Package("f.py", b"def process(text: str) -> str:\n    return text\n")
CONFIG = {"tenant": "public", "namespace": "default", "name": "f", "className": "f", "py": "f.py", "inputs": ["in"]}
SECONDS = 30.0


class WorkerOfTest:
    """A worker without processes."""

    def __init__(self, broker: Broker, folder: Path, name: str, **settings: Any) -> None:
        self.name = name
        self.answers: list[LeaderAnswer] = []
        self._came = threading.Condition()
        kafka = connection({"bootstrap.servers": broker.bootstrap}, "kop-functions").settings
        me = WorkerInfo(name, "127.0.0.1", 1)
        self.membership = membership_of(kafka, me)
        self.registry = Registry(
            kafka,
            me,
            Assembler(folder / name),
            self.membership,
            answered=self._take,
            patience=20,
            **settings,
        )

    def _take(self, answer: LeaderAnswer) -> None:
        with self._came:
            self.answers.append(answer)
            self._came.notify_all()

    def send(self, kind: Any, fqfn: str = FQFN, **fields: Any) -> str:
        """Send a request; its id."""
        asked = {"id": f"{self.name}-{time.monotonic_ns()}", "by": self.name} | fields
        request = Request(kind=kind, fqfn=fqfn, **asked)
        self.registry.send(request)
        return request.id

    def answer(self, request: str) -> LeaderAnswer:
        """Wait for the answer of a request."""
        with self._came:

            def came() -> list[LeaderAnswer]:
                return [answer for answer in self.answers if answer.request == request]

            assert self._came.wait_for(came, SECONDS), f"no answer to {request}"
            return came()[0]

    def ask(self, kind: Any, fqfn: str = FQFN, **fields: Any) -> LeaderAnswer:
        """Send a request, and wait for its answer."""
        return self.answer(self.send(kind, fqfn, **fields))

    def create(self, fqfn: str = FQFN, **config: Any) -> LeaderAnswer:
        """Create a function, and wait until it is known here: the answer may be seen a moment before."""
        answer = self.create_unseen(fqfn, **config)
        if answer.won:
            self.until(lambda metadata: fqfn in metadata.definitions and (fqfn, 0) in metadata.assignments)
        return answer

    def create_unseen(self, fqfn: str = FQFN, **config: Any) -> LeaderAnswer:
        """Create a function, which others may delete at once."""
        name = {"name": fqfn.rpartition("/")[2]}
        return self.ask("create", fqfn, config=CONFIG | name | config, package=PACKAGE.digest, package_name="f.py")

    def until(self, condition: Callable[[Any], object], what: str = "") -> None:
        """Wait until what the topics say is as a test wants it."""
        wait_until(lambda: condition(self.registry.metadata), what or "the topics to say it", SECONDS)


class WorkersOfTest:
    """Some of them, started; at the end all are closed."""

    def __init__(self, broker: Broker, folder: Path, count: int) -> None:
        self.all = [WorkerOfTest(broker, folder, f"w{number}") for number in range(count)]
        self._made = list(self.all)

    def __enter__(self) -> WorkersOfTest:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda member: member.registry.start(), self.all))
        self.all[0].registry.upload(PACKAGE)
        wait_until(lambda: all(len(m.registry.workers()) == len(self.all) for m in self.all), "all to join", SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda member: member.registry.close(), self._made))

    def leader(self, other: WorkerOfTest | None = None) -> WorkerOfTest:
        """Wait for the one that leads, and is not `other`; that."""
        return wait_until(
            lambda: [member for member in self.all if member.registry.leads and member is not other],
            "somebody to lead",
            SECONDS,
        )[0]

    def follower(self, *others: WorkerOfTest) -> WorkerOfTest:
        """Return one that does not lead."""
        leader = self.leader()
        return next(member for member in self.all if member is not leader and member not in others)


class Held:
    """Holds a leader up before it commits, as a pause of its process would, until it is let go."""

    def __init__(self, monkeypatch: Any) -> None:
        self.reached = threading.Event()
        self.let_go = threading.Event()
        self.armed = True
        real = WriteClient.end_transaction

        def end_transaction(client: WriteClient, identity: Any, commit: bool = True) -> None:
            if identity.transactional_id == LEADER_ID and self.armed:
                self.armed = False
                self.reached.set()
                assert self.let_go.wait(SECONDS)
            real(client, identity, commit)

        monkeypatch.setattr(WriteClient, "end_transaction", end_transaction)
