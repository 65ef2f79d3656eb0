"""The audit: a line of JSON for what was denied, for what was changed, for each login that failed, and, if that is set,
for what was allowed.

Owns: the shape of a line, how many there may be in a second, and where they go.
Must not know: requests, who decides and how.

Of each kind of line there are `LINES_A_SECOND` at most, so that a flood of refusals hides no change. The rest is
counted: by a metric, and by a line at the end of the second. All that clients choose is escaped as JSON does it, in
ASCII, and cut where it is long: a line stays one line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from logging.handlers import WatchedFileHandler
from typing import Final, Protocol

from prometheus_client.core import Metric

from kop import clock
from kop.errors import ConfigError, KopError
from kop.metrics import CountFamily, counter_value
from kop.repeats import Repeats
from kop.security.tenants import Space

LINES_A_SECOND: Final = 100
"""Lines of each kind in a second."""
LONGEST_TEXT: Final = 1000
"""Characters of a text that a line shows of what a client sent."""
MOST_ITEMS: Final = 50
"""Items of a list that a line shows."""
_NAME: Final = "kop.audit"
_log = logging.getLogger(__name__)


class Event(StrEnum):
    """The event that a line is about."""

    DENIED = "denied"
    ALLOWED = "allowed"
    CHANGED = "changed"
    LOGIN_FAILED = "login failed"


class Peer(Protocol):
    """The client that a line is about."""

    principal: str
    client_host: str
    space: Space


class AuditLines:
    """The target of the audit lines of a process: a file of their own, or the log of all else."""

    def __init__(self, file: str) -> None:
        """`file`: the path of the file to write; empty: the lines go to the log. ConfigError if it cannot be opened."""
        # A logger that is not among those that clients may alter: nobody turns it off from outside.
        self._logger = logging.Logger(_NAME, logging.INFO)
        self._handler: _AuditFile | None = None
        if not file:
            self._logger.parent = logging.getLogger()
            return
        try:
            self._handler = _AuditFile(file)
        except OSError as error:
            raise ConfigError([f"kop.audit.file: {file} cannot be written: {error.strerror}"]) from None
        self._logger.addHandler(self._handler)

    def write(self, line: str) -> None:
        """Write a line to the file, or to the log if there is none."""
        self._logger.info("%s", line)

    @property
    def lost(self) -> int:
        """The number of lines that could not be written to the file."""
        return 0 if self._handler is None else self._handler.lost

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._handler is not None:
            self._handler.close()


class _AuditFile(WatchedFileHandler):
    """A file that is opened anew once it was moved away, as logrotate does."""

    def __init__(self, path: str) -> None:
        super().__init__(path, encoding="ascii")
        self._repeats = Repeats()
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, into a new file if the old one was moved away."""
        try:
            super().emit(record)
        except OSError:  # no new file can be opened
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Count a line that could not be written. Now and then such a line is logged, with the error that is being
        handled.
        """
        self.lost += 1
        if self._repeats.say("", clock.monotonic()) is not None:
            reason = sys.exc_info()[1]
            _log.error("audit lines cannot be written to %s: %s: %s", self.baseFilename, reason, record.getMessage())


class Audit:
    """The audit of one broker. Used in the thread of its event loop."""

    def __init__(self, lines: AuditLines, broker: int, *, tells_allowed: bool = False) -> None:
        """`lines` takes the lines; `broker` is the id that they show; `tells_allowed`: operations that were allowed get
        lines, too.
        """
        self._lines = lines
        self._broker = broker
        self.tells_allowed = tells_allowed
        """True if there are lines about what was allowed, so that it has to be decided each time."""
        self._second = 0
        """The second of the steady clock in which `_in_second` were written."""
        self._in_second = dict.fromkeys(Event, 0)
        self._left_out = dict.fromkeys(Event, 0)
        """The lines that were left out and have not been told yet."""
        self._telling: asyncio.TimerHandle | None = None
        self._written = CountFamily("kop_audit_lines", "Audit lines written, by what they are about.", ["event"])
        self._dropped = CountFamily(
            "kop_audit_lines_left_out", "Audit lines beyond those of a second, by what they are about.", ["event"]
        )
        for event in Event:
            self._written.of(event)
            self._dropped.of(event)

    def decided(
        self,
        allowed: bool,
        peer: Peer,
        operation: str,
        resource: str,
        name: str | None,
        rule: Callable[[], str],
    ) -> None:
        """Write a line that a client may, or may not, do an operation on a resource; `rule` gives the reason, and is
        called only if the line is written. A `name` of None: some resource of the type.
        """
        event = Event.ALLOWED if allowed else Event.DENIED
        if self._has_room(event):
            self._tell(event, peer, operation, resource, name, rule=rule())

    def denied(self, peer: Peer, operation: str, resource: str, name: str, rule: str) -> None:
        """Write a line that a client may not do an operation on a resource; `rule` is the reason, of a denial that no
        authorizer has decided.
        """
        if self._has_room(Event.DENIED):
            self._tell(Event.DENIED, peer, operation, resource, name, rule=rule)

    def changed(
        self,
        peer: Peer,
        operation: str,
        resource: str,
        name: str,
        details: Mapping[str, object],
        failure: KopError | None = None,
    ) -> None:
        """Write a line that a client has changed a resource; `details` are values for JSON, and no secrets. After a
        `failure` it is not known if the change was made.
        """
        if self._has_room(Event.CHANGED):
            more = {} if failure is None else {"failure": failure.code.name}
            self._tell(Event.CHANGED, peer, operation, resource, name, **details, **more)

    def login_failed(
        self, peer: Peer, listener: str, mechanism: str, claimed: str | None, reason: str, *, again: bool = False
    ) -> None:
        """Write a line that a login has failed. `claimed`: the name that the client gave, None if it gave none.

        `again`: the client had logged in before, as the principal of `peer`, and wanted to renew that.
        """
        if self._has_room(Event.LOGIN_FAILED):
            operation = "LOG_IN_AGAIN" if again else "LOG_IN"
            about = {"listener": listener, "mechanism": mechanism, "reason": reason}
            self._tell(Event.LOGIN_FAILED, peer, operation, "USER", claimed, **about)

    def close(self) -> None:
        """Write how many lines were left out and not told of so far, and close the file."""
        if self._telling is not None:
            self._telling.cancel()
            self._tell_left_out()
        self._lines.close()

    def _has_room(self, event: Event) -> bool:
        """Return true, and count the line, if there may be another one about this kind of event in this second (100 are
        the most); else count it as left out, which a line at the end of the second tells.
        """
        now = clock.monotonic()
        if int(now) != self._second:
            self._second = int(now)
            self._in_second = dict.fromkeys(Event, 0)
        if self._in_second[event] < LINES_A_SECOND:
            self._in_second[event] += 1
            return True
        self._left_out[event] += 1
        self._dropped.of(event).value += 1
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(1 - now % 1, self._tell_left_out)
        return False

    def _tell_left_out(self) -> None:
        self._telling = None
        for event, count in self._left_out.items():
            if count:
                self._left_out[event] = 0
                self._line({"event": "left out", "of": event, "lines": count})

    def _tell(self, event: Event, peer: Peer, operation: str, resource: str, name: str | None, **more: object) -> None:
        self._written.of(event).value += 1
        self._line(
            {
                "event": event,
                "principal": peer.principal,
                "host": peer.client_host,
                **({} if peer.space.is_home else {"space": peer.space.name}),
                "operation": operation,
                "resource": resource,
                "name": name,
                **more,
            }
        )

    def _line(self, fields: Mapping[str, object]) -> None:
        now = datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        shown = {key: _short(value) for key, value in fields.items()}
        self._lines.write(json.dumps({"time": now, "broker": self._broker} | shown))

    def collect(self) -> Iterable[Metric]:
        """Return metrics: how many lines were written, left out, and lost because the file could not be written."""
        yield from self._written.collect()
        yield from self._dropped.collect()
        yield counter_value(
            "kop_audit_lines_lost", "Audit lines that could not be written to their file.", self._lines.lost
        )


def _short(value: object) -> object:
    """Return a value whose texts and lists are cut to what a line may show: 1,000 characters, 50 items."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else f"{value[:LONGEST_TEXT]}... ({len(value)} characters)"
    if isinstance(value, Mapping):
        return {_short(key): _short(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        more = [f"... ({len(value)} items)"] if len(value) > MOST_ITEMS else []
        return [_short(each) for each in value[:MOST_ITEMS]] + more
    return value
