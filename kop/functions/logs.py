"""The log topic of a function: what it logs and prints, and how its calls fail, as records beside its transactions.

Owns: what becomes a record, the bound on how many a second, the thread that writes them.
Must not know: what the function does with its messages.

A log topic never holds a function up: what does not fit is dropped and counted, and a topic that refuses is said once
on stderr. The root logger is left alone.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self, TextIO

from kop import clock
from kop.client.batches import NewRecord
from kop.client.write_client import WriteClient
from kop.functions.instance import logger_of
from kop.functions.spec import FunctionSpec
from kop.functions.writing import Outputs
from kop.records.batch import Codec

RECORDS_A_SECOND: Final = 1_000
BYTES_A_SECOND: Final = 1 << 20
"""The bytes a second that a function may log, beside the records a second; a burst may have twice as much."""
RECORD_CHARACTERS: Final = 10_000
PATIENCE_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 30.0
"""The seconds after which a log topic that refused is tried again."""
LINGER_SECONDS: Final = 0.1
END_SECONDS: Final = 3.0


class Allowance:
    """The amount that may be logged. The rest that one second leaves the next one may take, too."""

    def __init__(self, now: float, records: int = RECORDS_A_SECOND, size: int = BYTES_A_SECOND) -> None:
        self._rates = (records, size)
        self._left = [records * 2.0, size * 2.0]
        self._at = now

    def take(self, size: int, now: float) -> bool:
        """Return True if a record of `size` bytes may be logged at the time `now`, in seconds of the clock that the
        object was made with, and count it if so.
        """
        passed, self._at = now - self._at, now
        for index, rate in enumerate(self._rates):
            self._left[index] = min(rate * 2.0, self._left[index] + rate * passed)
        if self._left[0] < 1 or self._left[1] < size:
            return False
        self._left[0] -= 1
        self._left[1] -= size
        return True


class LogTopic(logging.Handler):
    """The log topic of an instance, while a `with` block runs; nothing at all if the function has none."""

    def __init__(self, spec: FunctionSpec, settings: Mapping[str, Any], instance_id: int = 0) -> None:
        super().__init__(logging.INFO)
        self._topic = spec.log_topic
        self._settings = settings
        self._fqfn = spec.fqfn
        self._instance = str(instance_id)
        self._logger = logger_of(spec, instance_id)
        self._allowance = Allowance(clock.monotonic())
        self._waiting: deque[NewRecord] = deque()
        self._dropped = 0
        self._over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="kop-function-log", daemon=True)
        self._taken: list[_Copied] = []
        self._told = False

    def __enter__(self) -> Self:
        self._logger.setLevel(logging.INFO)
        if self._topic:
            self._logger.addHandler(self)
        self.start()
        return self

    def start(self) -> None:
        """Begin to write the texts that `put` is given, if the function has a log topic. Records of the function's
        logger come to the topic within a `with` block only, which calls this.
        """
        if self._topic:
            self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._topic and error is not None and kind is not None:
            self.put("ERROR", "".join(traceback.format_exception(error)))
        self.end()

    def end(self) -> None:
        """Take no further records of the logger and no output, and write what is left, within 3 s; later texts are
        dropped.
        """
        if not self._topic:
            return
        for stream in self._taken:
            stream.end()
        self._taken.clear()
        self._logger.removeHandler(self)
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join(END_SECONDS)

    def take_output(self) -> None:
        """Copy what is printed from now on into the topic, too, until `end`: the process is the function's alone."""
        if self._topic:
            self._taken = [_Copied(self, "stdout", "INFO"), _Copied(self, "stderr", "ERROR")]

    def emit(self, record: logging.LogRecord) -> None:
        """Put a record of the logger into the topic."""
        try:
            self.put(record.levelname, self.format(record))
        except Exception:
            self.handleError(record)

    def put(self, level: str, text: str) -> None:
        """Queue a text, cut at 10 000 characters, for the topic, or count it as dropped if too much was logged lately.
        It never waits.
        """
        value = text[:RECORD_CHARACTERS].encode(errors="backslashreplace")
        with self._changed:
            if not self._allowance.take(len(value), clock.monotonic()):
                self._dropped += 1
                return
            self._waiting.append(self._record(level, value))
            self._changed.notify()

    def _record(self, level: str, value: bytes) -> NewRecord:
        headers = [("loglevel", level.encode()), ("fqn", self._fqfn.encode()), ("instance", self._instance.encode())]
        return None, value, headers, clock.wall_ms()

    # -- the thread

    def _run(self) -> None:
        client: WriteClient | None = None
        outputs: Outputs | None = None
        while (records := self._next()) is not None:
            try:
                if client is None or outputs is None:
                    client = WriteClient(self._settings, PATIENCE_SECONDS)
                    client.make_topic(self._topic)
                    outputs = Outputs(client, client.init_producer(None, -1), Codec.LZ4)
                for record in records:
                    outputs.add(self._topic, 0, record)
                outputs.write()
                self._told = False
            except Exception as error:
                self._tell(error)
                if client is not None:
                    client.close()
                client = outputs = None
                with self._changed:
                    self._dropped += len(records)
                    if self._changed.wait_for(lambda: self._over, AGAIN_SECONDS):
                        return
                    self._dropped += len(self._waiting)
                    self._waiting.clear()
        if client is not None:
            client.close()

    def _next(self) -> list[NewRecord] | None:
        """Return the next records to write, and one about those that were dropped; waits until there are some. None at
        the end.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._over)
            self._changed.wait_for(lambda: self._over, LINGER_SECONDS)
            records = list(self._waiting)
            self._waiting.clear()
            if self._dropped:
                text = f"{self._dropped} records of the log were dropped: there were more than fit, or none could go"
                records.append(self._record("WARN", text.encode()))
                self._dropped = 0
            return records or None

    def _tell(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            text = f"{self._fqfn} cannot log to {self._topic}, and goes on without: {type(error).__name__}: {error}"
            stream = self._taken[1].real if self._taken else sys.stderr
            stream.write(f"{text}\n")
            stream.flush()


def log_end(spec: FunctionSpec, settings: Mapping[str, Any], instance_id: int, text: str) -> None:
    """Write to the log topic, on a thread of its own, how an instance ended that could not write it itself; do nothing
    if the function has no log topic.
    """

    def write() -> None:
        topic = LogTopic(spec, settings, instance_id)
        topic.start()
        topic.put("ERROR", text)
        topic.end()

    if spec.log_topic:
        threading.Thread(target=write, name="kop-function-log-end", daemon=True).start()


class _Copied(io.TextIOBase):
    """stdout or stderr, of which each line goes to the log topic, too."""

    def __init__(self, topic: LogTopic, name: str, level: str) -> None:
        self.real: TextIO = getattr(sys, name)
        self._topic = topic
        self._name = name
        self._level = level
        self._line = ""
        setattr(sys, name, self)

    def write(self, text: str) -> int:
        """Write to the stream, and copy the lines that are ended to the log topic."""
        self.real.write(text)
        *lines, self._line = (self._line + text).split("\n")
        self._line = self._line[:RECORD_CHARACTERS]
        for line in lines:
            if line:
                self._topic.put(self._level, line)
        return len(text)

    def end(self) -> None:
        """Put the stream back that was there, after a copy of the line that is not ended."""
        if self._line:
            self._topic.put(self._level, self._line)
        setattr(sys, self._name, self.real)

    def flush(self) -> None:
        """Flush the stream."""
        self.real.flush()

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the stream."""
        return self.real.fileno()

    def isatty(self) -> bool:
        """Return if it is a terminal."""
        return self.real.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return self.real.encoding
