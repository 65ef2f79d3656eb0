"""Functions in the process of a test, each on a thread of its own.

Owns: how a test starts a function, waits for it, and learns how it ended.
Must not know: pytest, brokers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from kop import clock
from kop.client.properties import connection
from kop.functions import stand_in
from kop.functions.config_reading import from_flags
from kop.functions.function import load, of_object
from kop.functions.localrun import Running
from kop.functions.state import StateValue
from kop.functions.triggers import TriggerAnswer, place_for

SECONDS: Final = 20.0
_PATIENCE_SECONDS: Final = 10.0
_FETCH_WAIT_MS: Final = 100
_LOOK_SECONDS: Final = 0.3


class TestFunction:
    """A function that runs. What ended it is raised by `stop` and `wait`."""

    __test__ = False

    def __init__(self, running: Running) -> None:
        self._running = running

    @property
    def processed(self) -> int:
        """The number of messages that are done."""
        return self._running.processed

    @property
    def failures(self) -> int:
        """The number of calls that have failed."""
        return self._running.failures

    def trigger(
        self, value: bytes | str, key: bytes | None = None, seconds: float = SECONDS, topic: str | None = None
    ) -> TriggerAnswer:
        """Send a message to the function, and return its output or its error once it is done, or an error if that takes
        longer than `seconds`; `topic` names one of several inputs.
        """
        data = value.encode() if isinstance(value, str) else value
        place = place_for(self._running.spec, topic, key, self._running.instance.partitions)
        return self._running.instance.trigger(data, key, place, seconds)

    def query_state(self, key: str, partition: int | None = None) -> StateValue | None:
        """Return an entry of the function's state: its `number` is that of a counter, its `value` bytes; None if there
        is none. `partition` is needed if each has a state of its own.
        """
        return self._running.instance.query_state(key, partition)

    def put_state(self, key: str, value: int | bytes | str, partition: int | None = None) -> None:
        """Set an entry of the function's state, an int as a counter, anything else as a value; returns once it is
        committed. `partition` is needed if each has a state of its own.
        """
        self._running.instance.put_state(key, value, partition)

    def wait_until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Wait until a condition holds, for `seconds` at most: TimeoutError then. If the function ends before, its
        error is raised, or RuntimeError if it ended without one.
        """
        end = clock.monotonic() + seconds
        while not condition():
            if self._running.wait(0):
                raise RuntimeError("the function has ended")
            if clock.monotonic() > end:
                raise TimeoutError(f"not within {seconds:g} s")
            time.sleep(0.005)

    def wait(self, seconds: float = SECONDS) -> None:
        """Wait until the function has ended by itself, for `seconds` at most: TimeoutError then. Raises what ended
        it.
        """
        if not self._running.wait(seconds):
            raise TimeoutError(f"the function still runs after {seconds:g} s")

    @property
    def is_stopping(self) -> bool:
        """True once the function is called with no further message."""
        return self._running.is_stopping

    def stop(self) -> None:
        """End the function after the message that is being called, with all that is done written and committed. Raises
        what ended it before.
        """
        self._running.stop()


class Functions:
    """Starts functions on one server. At the end of a `with` block they are stopped, the last one first.

    `folder` is where files with functions are looked for. In the block the stand-in for `pulsar` is in this process,
    unless pulsar-client is installed.
    """

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._settings = connection({"bootstrap.servers": bootstrap}, "kop-functions").settings
        self._folder = folder
        self._running: list[Running] = []
        self._installed = False

    def __call__(self, function: Any, config: str = "", **flags: Any) -> TestFunction:
        """Start a function, and return once it misses no record that is produced from then on.

        `function`: a function, a class or a module of the test, or the name of one in a file: `"wordcount.WordCount"`
        with `py="wordcount.py"`. `config`: Pulsar's FunctionConfig as YAML or JSON. Further ones are the flags of
        `kop functions localrun`, with `_` for `-`: `inputs="lines"`, `output="counts"`, `user_config={...}`.
        """
        given = {name.replace("_", "-"): value for name, value in flags.items()}
        if isinstance(function, str):
            given["classname"] = function
            if "py" in given:
                given["py"] = str(self._folder / given["py"])
            spec, _ = from_flags(given, (config, "config"))
            code = load(spec.py, spec.class_name)
        else:
            name = getattr(function, "__name__", type(function).__name__)
            given.setdefault("name", "".join(part for part in name if part.isalnum() or part == "_") or "function")
            spec, _ = from_flags({"py": __file__, "classname": name} | given, (config, "config"))
            code = of_object(function, name)
        running = Running(
            spec,
            code,
            self._settings,
            lambda line: None,
            patience=_PATIENCE_SECONDS,
            fetch_wait_ms=_FETCH_WAIT_MS,
            look_seconds=_LOOK_SECONDS,
        )
        running.start()
        self._running.append(running)
        return TestFunction(running)

    def __enter__(self) -> Self:
        self._installed = stand_in.install()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        failure: BaseException | None = None
        try:
            while self._running:
                try:
                    self._running.pop().stop()
                except Exception as ended:
                    failure = failure or ended
        finally:
            if self._installed:
                stand_in.uninstall()
        if failure is not None and error is None:
            raise failure
