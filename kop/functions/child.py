"""An instance in a process of its own: what the process does from its first step to its end.

Owns: the order of these steps, the answers to what the process is asked, and what it tells of its end.
Must not know: who started it, what is done when it ends.

Questions and answers are lines of JSON on one socket. Its end is the end of whoever started the process, and then the
process ends, too.
"""

from __future__ import annotations

import _thread
import base64
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from kop.client.errors import ClientError, UnreachableError
from kop.client.offsets import TopicPartition
from kop.functions import shapes, stand_in
from kop.functions.exception_text import text_of
from kop.functions.function import CodePlace, FunctionLoadError, load_place
from kop.functions.instance import Instance, ReplacedError
from kop.functions.logs import LogTopic
from kop.functions.poison_record import PoisonRecord
from kop.functions.serdes import SerdeError
from kop.functions.spec import FunctionSpec
from kop.functions.state import StateError
from kop.functions.triggers import ABSENT
from kop.garbage_collector import collect_seldom

GRACE_SECONDS: Final = 10.0
"""The seconds for which a call may go on that is under way when the instance is to end."""
FETCH_WAIT_MS: Final = 60_000
"""The milliseconds that a server may hold a Fetch that nothing has come for; fewer if the client waits less for an
answer, see `ReadClient`. Each Fetch more is the cost of an idle instance."""
_TOLD: Final = (ClientError, UnreachableError, FunctionLoadError, SerdeError)
"""Errors whose text says all."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """The data that an instance is started with."""

    spec: FunctionSpec
    place: CodePlace
    partitions: tuple[TopicPartition, ...]
    instance_id: int
    version: str
    settings: Mapping[str, Any]
    """kafka-python's."""
    patience: float
    poison: PoisonRecord | None = None
    """The record at which the process before this one has ended."""


class Control:
    """The socket to the one that started the process; lines go out from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._instance: Instance | None = None
        self._stopped = threading.Event()
        threading.Thread(target=self._listen, name="kop-function-control", daemon=True).start()

    def tell(self, **values: Any) -> None:
        """Send these values as a line of JSON to the worker."""
        line = json.dumps(values, default=str).encode() + b"\n"
        with self._lock, suppress(OSError):
            self._connection.sendall(line)

    def serve(self, instance: Instance) -> None:
        """Answer the worker's questions to an instance from now on; stop it at once if `stop` was called before."""
        self._instance = instance
        if self._stopped.is_set():
            instance.stop()

    def stop(self) -> None:
        """Let the instance end, now or once it is known; returns at once."""
        self._stopped.set()
        if self._instance is not None:
            self._instance.stop()

    def stop_at_signal(self, *_signal: Any) -> None:
        """Let the instance end, on another thread: the one that has the signal may be about to wait for a lock."""
        _thread.start_new_thread(self.stop, ())

    def _listen(self) -> None:
        with suppress(OSError, ValueError), self._connection.makefile("rb") as lines:
            for line in lines:
                question = json.loads(line)
                if question["ask"] == "stats":
                    self._answer(question)
                else:  # it may take a while
                    threading.Thread(target=self._answer, args=(question,), daemon=True).start()
        self.stop()
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    def _answer(self, question: Mapping[str, Any]) -> None:
        try:
            if self._instance is None:
                answer = {"error": "the instance has not begun yet", "status": ABSENT}
            else:
                answer = answer_to(self._instance, question)
        except (ClientError, StateError) as error:
            answer = {"error": str(error)}
        except Exception as error:
            answer = {"error": text_of(error)}
        self.tell(id=question["id"], answer=answer)


def answer_to(instance: Instance, question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of an instance to a question: `stats`, `trigger`, `state` or `putstate`, in its field `ask`.
    ValueError for another one; the errors of the instance are raised.
    """
    kind = question["ask"]
    if kind == "stats":
        return asdict(instance.stats.snapshot())
    if kind == "trigger":
        key = question.get("key")
        answer = instance.trigger(
            base64.b64decode(question["value"]),
            None if key is None else base64.b64decode(key),
            (question["topic"], int(question["partition"])),
            float(question["seconds"]),
        )
        output = None if answer.output is None else base64.b64encode(answer.output).decode()
        return {"output": output, "error": answer.error, "status": answer.status}
    if kind == "state":
        entry = instance.query_state(question["key"], question.get("partition"))
        return {"value": None if entry is None else shapes.state_told(entry.number, entry.value)}
    if kind == "putstate":
        instance.put_state(question["key"], shapes.state_kept(question), question.get("partition"))
        return {}
    raise ValueError(f"nobody answers {kind!r}")


def run(connection: socket.socket, calling: Any, start: Start) -> None:
    """Run an instance until it is told to stop or ends by an error, which is told the worker; then end the process,
    with exit code 0 or 1.
    """
    code = 1
    control = Control(connection)
    signal.signal(signal.SIGTERM, control.stop_at_signal)
    logs_to_stderr()
    numbers: Any = memoryview(calling).cast("B").cast("q")
    collect_seldom()
    try:
        stand_in.install()
        with LogTopic(start.spec, start.settings, start.instance_id) as topic:
            topic.take_output()
            instance = Instance(
                start.spec,
                load_place(start.place, start.spec.class_name),
                start.settings,
                start.partitions,
                instance_id=start.instance_id,
                patience=start.patience,
                fetch_wait_ms=FETCH_WAIT_MS,
                end_seconds=0,
                calling=numbers,
                version=start.version,
                poison=start.poison,
            )
            control.serve(instance)
            threading.Thread(target=_tell_start, args=(instance, control), daemon=True).start()
            instance.run()
        code = 0
    except ReplacedError as error:
        control.tell(told="replaced", text=str(error))
    except _TOLD as error:
        control.tell(told="error", text=str(error))
    except BaseException as error:
        traceback.print_exc()
        control.tell(told="error", text=text_of(error))
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # threads and handlers of the function's do not hold it up


def _tell_start(instance: Instance, control: Control) -> None:
    instance.started.wait()
    control.tell(told="begun")


def logs_to_stderr() -> None:
    """Let what is logged of functions, and by them, go to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("kop.functions")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
