"""The lines between the driver of a mesh and Spark's processes: counts of tasks, the order to end, plans of batches.

Owns: the socket that the driver listens on, the token that others show, the lines of JSON in both directions.
Must not know: what is counted, what runs, how batches are planned; it imports next to nothing, as `share` does.

A task waits until the driver lets it begin, and tells what it has done each second and at its end. The driver says one
thing more: end now. The end of a line is the end of the task, or of the driver; a task without a driver ends, too, so
nothing goes on that nobody has started.

The process in which Spark plans the batches of a component asks, and the driver answers, one line each. While the tasks
of a component are to end, there is nothing to plan for it.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from kop import clock
from kop.spark.mesh.share import Share

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 10.0
BEGIN_SECONDS: Final = 30.0
"""The seconds that a task waits until it may begin: a driver that is paused says nothing."""
ENDING_SECONDS: Final = 0.5
"""The seconds for which a component whose tasks are to end has nothing to plan, before Spark asks again."""
ACCEPT_SECONDS: Final = 0.1
"""The seconds before another try to take a connection: the process may have no file left for it."""
_BEGIN: Final = b'{"begin": true}\n'
_HAS_WORK: Final = "has_work"
_SHARES: Final = "shares"
_LINE_BYTES: Final = 1 << 20


class NoDriverError(Exception):
    """The driver does not let a task begin: another one has the mesh, or nobody."""


class NotPlannedError(Exception):
    """The driver cannot plan a batch; the text is that of its error."""


class BatchPlanner(Protocol):
    """Plans the batches of a component; see `kop.spark.mesh.planning.Planner`."""

    def has_work(self) -> bool:
        """Return if a batch is to be planned."""
        raise NotImplementedError

    def shares(self) -> list[Share]:
        """Return what the tasks of a batch have."""
        raise NotImplementedError

    def close(self) -> None:
        """Close its connections."""
        raise NotImplementedError


class TaskLine:
    """A task, or a process that plans, as the driver sees it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.component = ""
        self.told: Mapping[str, Any] = {}
        """The values of the last line that the task has sent."""

    def begin(self) -> None:
        """Tell the task to begin; nothing happens if its connection has ended."""
        with suppress(OSError):
            self._connection.sendall(_BEGIN)

    def end(self) -> None:
        """Tell the task to end, and do not wait for it; nothing happens if its connection has ended."""
        with suppress(OSError):
            self._connection.sendall(b'{"end": true}\n')

    def cut(self) -> None:
        """Cut the connection to the task, which ends the task."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class Hub:
    """The driver's end. `told` is called with what a task tells, `over` when its line has ended; `may_begin` before one
    begins, and may take its time; `new_planner` with the name of a component whose batches are to be planned. All on
    threads of here.
    """

    def __init__(
        self,
        host: str,
        told: Callable[[TaskLine], None],
        over: Callable[[TaskLine], None],
        may_begin: Callable[[], bool],
        new_planner: Callable[[str], BatchPlanner],
    ) -> None:
        self.token = clock.token_hex(16)
        self._told = told
        self._over = over
        self._may_begin = may_begin
        self._new_planner = new_planner
        self._lines: set[TaskLine] = set()
        self._plans: set[TaskLine] = set()
        """The lines of the processes that plan."""
        self._changed = threading.Condition()
        self._ending: set[str] = set()
        self._is_closed = False
        self._server = socket.create_server((host, 0), backlog=128)
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, name="kop-mesh-hub", daemon=True).start()

    def tasks(self, component: str | None = None) -> int:
        """Return the number of tasks that run: those of the component, or of all components without one."""
        return sum(1 for line in list(self._lines) if component in (None, line.component))

    def end_tasks(self, component: str) -> None:
        """Tell the tasks of a component to end, and those that begin later, too, until `allow` is called for it. Does
        not wait: `wait_until_none` does.
        """
        with self._changed:
            self._ending.add(component)
            lines = [line for line in self._lines if line.component == component]
        for line in lines:
            line.end()

    def is_ending(self, component: str) -> bool:
        """Return True if the tasks of a component are to end, those that begin later among them."""
        return component in self._ending

    def allow(self, component: str) -> None:
        """Undo `end_tasks` for a component: its tasks that begin from now on are not told to end."""
        with self._changed:
            self._ending.discard(component)
            self._changed.notify_all()

    def wait_until_none(self, seconds: float, component: str | None = None) -> bool:
        """Wait until no task runs, of the component or of all without one, for so many seconds at most. Returns True if
        none runs, False if the time was too short.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self.tasks(component), seconds)

    def close(self) -> None:
        """Stop listening, and cut the connections to all tasks, which ends the tasks, and to those that plan."""
        self._is_closed = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # else the thread would take one connection more
        self._server.close()
        for line in [*self._lines, *self._plans]:
            line.cut()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError as error:
                if self._is_closed:
                    return
                log.warning("a process of Spark cannot connect, and tries again: %s", error)
                threading.Event().wait(ACCEPT_SECONDS)
                continue
            threading.Thread(target=self._serve, args=(connection,), name="kop-mesh-task", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        line = TaskLine(connection)
        with connection, suppress(OSError, ValueError, KeyError), connection.makefile("rb") as lines:
            connection.settimeout(CONNECT_SECONDS)
            first = json.loads(lines.readline(_LINE_BYTES))
            if not isinstance(first, dict) or not self._is_token(first["token"]):
                return
            connection.settimeout(None)
            line.component = str(first["component"])
            if first.get("plans"):
                self._plans.add(line)
                try:
                    if not self._is_closed:  # else nobody would cut it
                        self._plan(line.component, connection, lines)
                finally:
                    self._plans.discard(line)
                return
            if not self._may_begin():
                return
            with self._changed:
                line.begin()  # before others can send it something
                self._lines.add(line)
                ends = line.component in self._ending
            try:
                if ends:
                    line.end()
                while text := lines.readline(_LINE_BYTES):
                    line.told = json.loads(text)
                    self._told(line)
            finally:
                self._over(line)
                with self._changed:
                    self._lines.discard(line)
                    self._changed.notify_all()

    def _plan(self, component: str, connection: socket.socket, questions: Iterable[bytes]) -> None:
        """Answer the questions of the process that plans the batches of a component, until its line ends. An error is
        logged with its stack at level INFO: the process gets the text alone.
        """
        planner: BatchPlanner | None = None
        try:
            for text in questions:
                answer: Any
                try:
                    planner = planner or self._new_planner(component)
                    if json.loads(text) == _SHARES:
                        answer = {_SHARES: [share.plain() for share in planner.shares()]}
                    else:
                        has_work = self._may_plan(component) and planner.has_work()
                        answer = {_HAS_WORK: has_work and component not in self._ending}  # it may have been told since
                except Exception as error:
                    log.info("a batch of %s is not planned", component, exc_info=True)
                    answer = {"failed": f"{type(error).__name__}: {error}"}
                connection.sendall(json.dumps(answer).encode() + b"\n")
        finally:
            if planner is not None:
                planner.close()

    def _may_plan(self, component: str) -> bool:
        """Return False if the tasks of a component are to end and no `allow` comes for 0.5 s; else True."""
        with self._changed:
            return self._changed.wait_for(lambda: component not in self._ending, ENDING_SECONDS)

    def _is_token(self, given: object) -> bool:
        return hmac.compare_digest(str(given).encode(), self.token.encode())


class DriverLink:
    """A task's end. `ended` is called once the task shall end or the driver is gone, on a thread of here.

    Made once the driver lets the task begin; NoDriverError if it does not.
    """

    def __init__(self, hub: tuple[str, int], token: str, component: str, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._lock = threading.Lock()
        self._connection = socket.create_connection(hub, CONNECT_SECONDS)
        self._connection.settimeout(BEGIN_SECONDS)
        self.tell(token=token, component=component)
        self._lines = self._connection.makefile("rb")
        try:
            may_begin = self._lines.readline() == _BEGIN
        except OSError:
            may_begin = False
        if not may_begin:
            self.close()
            raise NoDriverError(
                f"the driver of {component} does not let this task begin: it has lost the mesh, or is gone"
            )
        self._connection.settimeout(None)
        threading.Thread(target=self._listen, name="kop-mesh-link", daemon=True).start()

    def tell(self, **values: Any) -> None:
        """Send the values as a line to the driver; nothing happens if the driver is gone."""
        text = json.dumps(values, default=str).encode() + b"\n"
        with self._lock, suppress(OSError):
            self._connection.sendall(text)

    def close(self) -> None:
        """Close the connection to the driver, which takes that as the end of the task."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _listen(self) -> None:
        with suppress(OSError, ValueError), self._lines as lines:
            lines.readline()
        self._ended()


class PlanLink:
    """The end of the process that plans the batches of a component: each question is the driver's to answer.

    NotPlannedError if the driver cannot answer or is gone, OSError if it cannot be reached when this is made.
    """

    def __init__(self, hub: tuple[str, int], token: str, component: str) -> None:
        self._connection = socket.create_connection(hub, CONNECT_SECONDS)
        self._connection.settimeout(None)
        self._answers = self._connection.makefile("rb")
        self._send({"token": token, "component": component, "plans": True})

    def has_work(self) -> bool:
        """Return if a batch is to be planned, as `Planner.has_work` does."""
        return bool(self._ask(_HAS_WORK))

    def shares(self) -> list[Share]:
        """Return what the tasks of a batch have, as `Planner.shares` does."""
        return [Share.of_plain(values) for values in self._ask(_SHARES)]

    def close(self) -> None:
        """Close the connection."""
        self._answers.close()
        self._connection.close()

    def _ask(self, question: str) -> Any:
        try:
            self._send(question)
            answer = self._answers.readline()
        except OSError:
            answer = b""
        if not answer:
            raise NotPlannedError("the driver of the mesh is gone")
        values = json.loads(answer)
        if "failed" in values:
            raise NotPlannedError(values["failed"])
        return values[question]

    def _send(self, value: Any) -> None:
        self._connection.sendall(json.dumps(value).encode() + b"\n")
