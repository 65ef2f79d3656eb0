"""What the Python suites share: declaring cases, running them under a time limit, reporting them as JSON lines.

Owns: the command line of a suite, time limits, topic and group names, clean-up of topics. Runs inside the venv of the
clients, imports protocol.py and the standard library only.

Must not know: any client library, or whether a Kafka or a kop answers.

A case is a function (or coroutine) that takes a `Run` and returns nothing, or raises: AssertionError for a wrong
answer, `Skip` when there is nothing to prove here. Several cases may run at once, so each makes its own topics.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import itertools
import os
import queue
import re
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from conformance.protocol import Result
from conformance.security import Security, read

if sys.__stdout__ is None:
    raise SystemExit("A suite reports its cases on standard output: start it with one.")
OUT = sys.__stdout__
OUT_LOCK = threading.Lock()
HERE = str(Path(__file__).resolve().parent)


class Skip(Exception):
    """Raised by a case that has nothing to prove against this server."""


def emit(line: str) -> None:
    """One whole line at a time, whatever thread it comes from."""
    with OUT_LOCK:
        OUT.write(line + "\n")
        OUT.flush()


@dataclass(slots=True)
class Case:
    name: str
    body: Callable[..., Any]
    values: dict[str, Any]
    slow: bool
    limit: float
    alone: bool
    attempts: int
    secure: bool


@dataclass(slots=True)
class Run:
    """What a case gets: where the server is, and names that nobody else uses."""

    bootstrap: str
    client: str
    fast: bool
    security: Security | None
    """How clients log in; None: there is nothing to do."""
    values: dict[str, Any] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        """The port that clients come by."""
        return int(self.bootstrap.rsplit(":", 1)[1])

    @property
    def plain(self) -> tuple[str, int]:
        """Host and port for those who write requests by hand."""
        host, _, port = (self.security.plain if self.security else self.bootstrap).rpartition(":")
        return host, int(port)

    @property
    def librdkafka(self) -> dict[str, Any]:
        """Settings of librdkafka by which it comes in."""
        return {"bootstrap.servers": self.bootstrap} | (self.security.librdkafka() if self.security else {})

    @property
    def kafka_python(self) -> dict[str, Any]:
        """Arguments by which a client of kafka-python comes in."""
        return {"bootstrap_servers": self.bootstrap} | (self.security.kafka_python() if self.security else {})

    @property
    def aiokafka(self) -> dict[str, Any]:
        """Arguments by which a client of aiokafka comes in."""
        return {"bootstrap_servers": self.bootstrap} | (self.security.aiokafka() if self.security else {})

    @property
    def spark(self) -> dict[str, Any]:
        """Options by which Spark's sources and sinks come in."""
        properties = self.security.java() if self.security else {}
        return {f"kafka.{name}": value for name, value in ({"bootstrap.servers": self.bootstrap} | properties).items()}

    def by(self, mechanism: str) -> Run:
        """This run with clients that come in by another mechanism, one of security.py's."""
        security = self.security.by(mechanism) if self.security else None
        if security is None:
            raise Skip(f"nothing is said of {mechanism} at this server")
        return replace(self, security=security, bootstrap=security.address(self.bootstrap))

    def name(self, hint: str = "t") -> str:
        """A topic name of its own; the topic is deleted after the case if it exists."""
        topic = f"conf-{self.client}-{hint}-{secrets.token_hex(4)}"
        self.topics.append(topic)
        return topic

    def group(self, hint: str = "g") -> str:
        """A group id of its own."""
        return f"conf-{self.client}-{hint}-{secrets.token_hex(4)}"


class Suite:
    """The cases of one client.

    `cleanup` (optional) is called with the topic names that a case asked for. `workers` cases run at once; cases
    marked `alone` run by themselves afterwards (they measure time).
    """

    def __init__(self, client: str, version: str, workers: int = 3) -> None:
        self.client = client
        self.version = version
        self.workers = workers
        self.cases: list[Case] = []
        self.cleanup: Callable[[Run, list[str]], Any] | None = None

    def case(
        self,
        *,
        slow: bool = False,
        limit: float = 30,
        alone: bool = False,
        attempts: int = 1,
        fast: Callable[..., bool] | None = None,
        secure: bool = False,
        **each: Iterable[Any],
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declare a case, or with `each` one case for every combination of the values.

        `fast` says which combinations the fast part keeps (all of them without it); `slow` leaves all of them out.
        `secure`: one about logins, which is left out if the server asks for none.
        `attempts` above 1 is for races that are the client's own: say at the case which one.
        """

        def declare(body: Callable[..., Any]) -> Callable[..., Any]:
            names = list(each)
            for combination in itertools.product(*each.values()):
                values = dict(zip(names, combination, strict=True))
                suffix = ",".join(f"{k}={v}" for k, v in values.items())
                keep = not slow and (fast is None or fast(**values))
                name = body.__name__ + (f"[{suffix}]" if suffix else "")
                self.cases.append(Case(name, body, values, not keep, limit, alone, attempts, secure))
            return body

        return declare

    def main(self) -> None:
        """Parse the command line, run the cases, leave."""
        parser = argparse.ArgumentParser(description=f"conformance suite of {self.client}")
        parser.add_argument("--bootstrap", default="127.0.0.1:9092")
        parser.add_argument("--security", default="", metavar="FILE", help="how to log in (conformance/security.py)")
        parser.add_argument("--fast", action="store_true", help="leave the slow cases out")
        parser.add_argument("--list", action="store_true", help="print the plan and leave")
        parser.add_argument("--case", action="append", default=[], help="run only this case (repeatable)")
        parser.add_argument("--match", default="", help="run only the cases whose name holds this pattern")
        options = parser.parse_args()
        chosen = [
            case
            for case in self.cases
            if (not options.fast or not case.slow)
            and (not options.case or case.name in options.case)
            and re.search(options.match, case.name)
            and (options.security or options.list or not case.secure)
        ]
        emit(_json({"client": self.client, "version": self.version}))
        emit(_json({"client": self.client, "plan": [case.name for case in chosen]}))
        if not options.list:
            self._run(chosen, options.bootstrap, read(options.security), options.fast)
        OUT.flush()
        # Clients leave threads behind when a case ran out of time: nothing is left to wait for.
        os._exit(0)

    def _run(self, chosen: list[Case], bootstrap: str, security: Security | None, fast: bool) -> None:
        together: queue.SimpleQueue[Case] = queue.SimpleQueue()
        for case in chosen:
            if not case.alone:
                together.put(case)

        def work() -> None:
            while True:
                try:
                    case = together.get_nowait()
                except queue.Empty:
                    return
                self._one(case, Run(bootstrap, self.client, fast, security, case.values))

        threads = [threading.Thread(target=work, daemon=True) for _ in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for case in chosen:
            if case.alone:
                self._one(case, Run(bootstrap, self.client, fast, security, case.values))

    def _one(self, case: Case, run: Run) -> None:
        emit(_json({"client": self.client, "case": case.name, "begin": True}))
        begun = time.monotonic()
        ok, detail = _try(case, run)
        for attempt in range(2, case.attempts + 1):
            if ok is False:
                first, (ok, detail) = detail, _try(case, run)
                detail = detail or f"passed at attempt {attempt}; before: {first}"
        emit(Result(self.client, case.name, ok, detail, time.monotonic() - begun).line())
        if self.cleanup and run.topics:
            try:
                self.cleanup(run, run.topics)
            except Exception as error:
                print(f"clean-up after {case.name}: {error!r}", file=sys.stderr)


def _try(case: Case, run: Run) -> tuple[bool | None, str]:
    """Run a case once: whether it passed (None when skipped), and what there is to say."""
    outcome: queue.SimpleQueue[tuple[bool | None, str]] = queue.SimpleQueue()

    def body() -> None:
        try:
            if inspect.iscoroutinefunction(case.body):
                asyncio.run(_limited(case.body(run, **case.values), case.limit))
            else:
                case.body(run, **case.values)
            outcome.put((True, ""))
        except Skip as reason:
            outcome.put((None, str(reason)))
        except BaseException as error:
            outcome.put((False, _describe(error)))

    # A thread of its own: a blocking client that never returns is left behind, and the next case starts.
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    try:
        return outcome.get(timeout=case.limit + 2)
    except queue.Empty:
        return False, f"no end after {case.limit:g} s; {_where(thread)}"


async def _limited(body: Coroutine[Any, Any, None], limit: float) -> None:
    """Cancel a coroutine that takes too long, and say at which line of the suite it waits."""
    task = asyncio.ensure_future(body)
    done, _ = await asyncio.wait({task}, timeout=limit)
    if not done:
        frames = task.get_stack()
        where = f"{Path(frames[-1].f_code.co_filename).name}:{frames[-1].f_lineno}" if frames else "the client"
        task.cancel()
        await asyncio.wait({task}, timeout=1)
        raise AssertionError(f"no end after {limit:g} s; waits at {where}")
    task.result()


def _json(message: dict[str, Any]) -> str:
    import json

    return json.dumps(message)


def _describe(error: BaseException) -> str:
    """The error and the line of the case that it came from, in one line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(HERE)]
    frames = [f for f in frames if not f.filename.endswith("/suite.py")] or frames
    where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-3:]))
    text = " ".join(str(error).split()) or (frames[-1].line if frames else "") or ""
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return f"{kind}{text[:600]} ({where})"


def _where(thread: threading.Thread) -> str:
    """The line of the suite at which a thread that takes too long stands."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(HERE) and not name.endswith("/suite.py"):
            return f"waits at {Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "waits in the client"


def eventually(check: Callable[[], Any], seconds: float = 10, every: float = 0.1) -> Any:
    """Call `check` until it returns something true without raising; its last error or value otherwise."""
    end = time.monotonic() + seconds
    while True:
        try:
            value = check()
            if value:
                return value
            error: Exception = AssertionError(f"still {value!r} after {seconds:g} s")
        except Exception as caught:
            error = caught
        if time.monotonic() > end:
            raise error
        time.sleep(every)


def same(got: Any, wanted: Any, what: str = "") -> None:
    """An assertion that shows both sides, shortened."""
    if got != wanted:
        prefix = f"{what}: " if what else ""
        raise AssertionError(f"{prefix}got {_short(got)}, wanted {_short(wanted)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:100]}...{text[-50:]}"
