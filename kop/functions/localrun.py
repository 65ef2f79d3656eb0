"""A function run here, without workers: one instance with all partitions of its inputs, on a thread of its own.

Owns: which topics there are and which are made, what is said of a start, when the function starts anew, the end of one
that hangs.
Must not know: flags, terminals, signals.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Self

from kop import clock
from kop.allocator import resident_bytes
from kop.client.errors import ClientError
from kop.client.offsets import TopicPartition
from kop.client.read_client import ReadClient
from kop.client.write_client import WriteClient
from kop.errors import without_frames
from kop.functions.function import FunctionCode, load, load_place
from kop.functions.input_topics import LOOK_SECONDS, partitions_of, topics_of
from kop.functions.instance import PATIENCE_SECONDS, Instance, read_secrets
from kop.functions.logs import LogTopic
from kop.functions.packages import read_package, unpack
from kop.functions.spec import FunctionSpec
from kop.functions.topics import DEFAULT_NAMESPACE, TopicNames
from kop.functions.watch import CallWatch, place_of

_PROBE: Final = f"{DEFAULT_NAMESPACE}/kop-functions"
"""A name that only a server with namespaces takes."""


class HungError(ClientError):
    """A function that has to be ended; its thread cannot be."""


def load_here(spec: FunctionSpec) -> FunctionCode:
    """Return the code of a function from its file, which may be a package. FunctionLoadError if the code cannot be
    imported, PackageError if the package cannot be unpacked.

    A package is unpacked into the user's cache, once.
    """
    if Path(spec.py).suffix == ".py":
        return load(spec.py, spec.class_name)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kop" / "functions"
    return load_place(unpack(read_package(spec.py), cache), spec.class_name)


class Running:
    """An instance on a thread. `settings` are kafka-python's; `say` is given lines for people.

    `alone`: the process is the function's alone, so what is printed goes to its log topic, and its memory is watched.

    `start` returns once no record is missed that is produced from then on; `stop` after the message that is being
    called, with all that is done written and committed. Both raise what ended the instance.
    """

    def __init__(
        self,
        spec: FunctionSpec,
        code: FunctionCode,
        settings: Mapping[str, Any],
        say: Callable[[str], None],
        *,
        patience: float = PATIENCE_SECONDS,
        fetch_wait_ms: int = 500,
        look_seconds: float = LOOK_SECONDS,
        alone: bool = False,
    ) -> None:
        self._spec = spec
        self._code = code
        self._alone = alone
        self._settings = dict(settings)
        self._say = say
        self._patience = patience
        self._fetch_wait_ms = fetch_wait_ms
        self._look_seconds = look_seconds
        self._instance: Instance | None = None
        self._failure: BaseException | None = None
        self._hangs = False
        self._over = threading.Event()
        self._log_topic = LogTopic(spec, settings)
        self._thread = threading.Thread(target=self._run, name=f"kop-function-{spec.name}", daemon=True)

    @property
    def spec(self) -> FunctionSpec:
        """The function."""
        return self._spec

    @property
    def is_over(self) -> bool:
        """True if the instance has ended."""
        return self._over.is_set()

    @property
    def is_stopping(self) -> bool:
        """True once the instance calls no further message."""
        return self._instance is not None and self._instance.is_stopping

    @property
    def processed(self) -> int:
        """The number of messages, or of windows, with which a call of the function went well."""
        return 0 if self._instance is None else self._instance.stats.processed

    @property
    def failures(self) -> int:
        """The number of calls that have failed."""
        return 0 if self._instance is None else self._instance.stats.failures

    @property
    def instance(self) -> Instance:
        """The instance, once it was started."""
        assert self._instance is not None
        return self._instance

    def start(self) -> Self:
        """Find the partitions of the inputs, make topics that are missing, and start the instance; returns itself once
        no record is missed that is produced from then on. Raises what ended the instance before that, ClientError if it
        cannot begin.
        """
        read_secrets(self._spec)  # nothing is made for a function that cannot start
        partitions = find_partitions(self._spec, self._settings, self._say, self._patience)
        if self._spec.parallelism > 1:
            self._say(f"parallelism is {self._spec.parallelism}; here one instance has all partitions")
        self._instance = Instance(
            self._spec,
            self._code,
            self._settings,
            partitions,
            patience=self._patience,
            fetch_wait_ms=self._fetch_wait_ms,
            look_seconds=self._look_seconds,
        )
        self._thread.start()
        watch = CallWatch(self._spec.timeout_ms, self._spec.ram if self._alone else None)
        if watch.seconds is not None:
            threading.Thread(target=self._look, args=(watch, self._instance), daemon=True).start()
        while not self._instance.started.wait(0.05):
            if self.is_over:
                self._raise()
        return self

    def wait(self, seconds: float) -> bool:
        """Wait up to so many seconds for the end of the instance, and return True if it has ended; raises what ended
        it, if that was an error.
        """
        over = self._over.wait(seconds)
        if over:
            self._raise()
        return over

    def stop(self) -> None:
        """End the instance after the message that is being called, with all that is done written and committed; returns
        then, and raises the error that ended it, if there was one. Do nothing before `start`.
        """
        if self._instance is not None:
            self._instance.stop()
            self._over.wait()
            if not self._hangs:
                self._thread.join()
            self._raise()

    def _run(self) -> None:
        assert self._instance is not None
        try:
            with self._log_topic:
                if self._alone:
                    self._log_topic.take_output()
                self._instance.run()
        except BaseException as error:
            self._failure = without_frames(error)
        finally:
            self._over.set()

    def _look(self, watch: CallWatch, instance: Instance) -> None:
        """Watch the function until the instance is over. If it hangs, or takes more memory than it may, log that, stop
        the instance, and let `wait` and `stop` raise HungError without waiting for its thread.
        """
        while not self._over.wait(watch.seconds):
            calling = list(instance.calling)
            reason = watch.look(calling, resident_bytes(), clock.monotonic())
            if reason is not None:
                at = place_of(calling, instance.partitions)
                where = "" if at is None else f" at {at[0][0]}-{at[0][1]} offset {at[1]}"
                self._hangs = True
                text = f"{self._spec.fqfn} has to be ended{where}: {reason}"
                self._failure = HungError(text)
                self._log_topic.put("ERROR", text)
                self._log_topic.end()
                instance.stop()
                self._over.set()

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def names_of(settings: Mapping[str, Any], patience: float, namespace: str = DEFAULT_NAMESPACE) -> TopicNames:
    """Return the meaning of topic names on a server, which is asked if it takes names with slashes. `settings` are
    kafka-python's.
    """
    with closing(WriteClient(settings, patience)) as client:
        return TopicNames(namespace, has_namespaces=client.takes_name(_PROBE))


def find_partitions(
    spec: FunctionSpec, settings: Mapping[str, Any], say: Callable[[str], None], patience: float
) -> list[TopicPartition]:
    """Return the partitions of all inputs. The output, and inputs that are no patterns, are made with the servers'
    defaults if they are not there, which `say` is told. ClientError if there is no partition. `patience`: the seconds
    for which requests are tried again.
    """
    with closing(WriteClient(settings, patience)) as writer:
        for topic in filter(None, [*spec.named_inputs, spec.output]):
            if writer.make_topic(topic):
                say(f"made the topic {topic}")
    with closing(ReadClient(settings, int(patience * 1000))) as reader:
        partitions = list(partitions_of(spec, topics_of([spec], reader)))
    if not partitions:
        raise ClientError(f"no topic matches {', '.join(spec.inputs)}: create one, then start again")
    return partitions


class Changes:
    """The file of a function, looked at from time to time."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._seen = self._state()

    def came(self) -> bool:
        """Return True if the file has another time or size than when this object was made. A file that is missing is
        being written, and does not count.
        """
        now = self._state()
        return now is not None and now != self._seen

    def _state(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size
