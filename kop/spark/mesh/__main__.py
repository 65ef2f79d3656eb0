"""The process of `kop mesh run`: a session of Spark and the driver of one mesh in it.

    python -m kop.spark.mesh JSON

Owns: what the command passes on, signals, lines for people, the exit code.
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kafka.errors import KafkaError

from kop.client.errors import RIGHTS, ClientError, FencedError, UnreachableError
from kop.client.properties import connection, read_properties
from kop.functions.localrun import names_of
from kop.functions.packages import PackageError
from kop.mesh import records
from kop.mesh.definition import defined_mesh
from kop.mesh.file import read_mesh, text_of
from kop.mesh.nodes import MeshError
from kop.spark.mesh.followed_mesh import FollowedMesh
from kop.spark.mesh.run_states import RunStates
from kop.spark.mesh.session import end_at_once, make_session, master_of
from kop.spark.mesh.start_notice import StartNotice
from kop.spark.mesh.task import cache_folder

WAIT_SECONDS: Final = 0.5
INTERRUPTED: Final = 130


def say(text: str) -> None:
    """Write a line for people to standard error, at once."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def log_to(path: Path) -> None:
    """Send what Spark, its workers and functions print to a file, which is emptied first. What this process writes to
    `sys.stderr` still goes to the user; its standard output goes to the file, too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    sys.stderr = os.fdopen(os.dup(2), "w")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def telling(is_asked: bool) -> Callable[[dict[str, Any]], None]:
    """Return a function that writes values as a line of JSON to what is standard output now, even if that is sent
    elsewhere later. The function does nothing if `is_asked` is False.
    """
    if not is_asked:
        return lambda _: None
    output = os.fdopen(os.dup(1), "w")

    def tell(values: dict[str, Any]) -> None:
        output.write(f"{json.dumps(values, ensure_ascii=False)}\n")
        output.flush()

    return tell


class Run:
    """A mesh on a thread of its own, so that signals are this process's and not PySpark's."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.over = threading.Event()
        self.code = 1
        self._given = given
        self._tell = telling(bool(given.get("json")))
        self._driver: Any = None
        self._spark: Any = None
        self._followed: FollowedMesh | None = None
        self._is_stopping = False
        self._name = str(given["mesh"])
        threading.Thread(target=self._run, name="kop-mesh-driver", daemon=True).start()

    def stop(self) -> None:
        """Ask the mesh to end, without waiting. The second time, or if no mesh runs yet, end the process: code 130."""
        if self._driver is None or self._is_stopping:
            os._exit(INTERRUPTED)
        self._is_stopping = True
        self._driver.stop()

    def _run(self) -> None:
        try:
            self.code = self._do()
        except (ClientError, FencedError, UnreachableError, MeshError, PackageError) as error:
            self._fail(str(error))
        except RIGHTS as error:
            self._fail(f"let this user use what the mesh needs: {error}; docs/mesh.md says which rights that are")
        except KafkaError as error:
            self._fail(f"the server did not do what the mesh needs: {error}; run it again once the server is well")
        except BaseException as error:
            traceback.print_exc()
            self._tell_failure(repr(error))
        finally:
            try:
                if self._spark is not None:
                    self._over_and_out()
                self._follow_no_more()
            finally:
                self.over.set()

    def _fail(self, reason: str) -> None:
        for line in reason.splitlines():
            say(f"kop: {line}")
        self._tell_failure(reason)

    def _tell_failure(self, reason: str) -> None:
        RunStates(self._name, self._tell).look(records.FAILED, reason, None)

    def _over_and_out(self) -> None:
        sys.stderr.flush()
        said, sys.stderr = sys.stderr, io.StringIO()  # PySpark's threads complain when the JVM has gone
        end_at_once(self._spark)
        if self._driver is not None:
            self._driver.close(stops_queries=False)
        self._follow_no_more()
        sys.stderr = said

    def _follow_no_more(self) -> None:
        followed, self._followed = self._followed, None
        if followed is not None:
            followed.close()

    def _do(self) -> int:
        given = self._given
        properties = {"bootstrap.servers": given["bootstrap"]}
        if given["client_config"]:
            properties |= read_properties(given["client_config"])
        made = connection(properties, f"kop-mesh-{os.getpid()}")
        settings, patience = dict(made.settings), made.patience_ms / 1000
        names = names_of(settings, patience, given["topic_namespace"])
        text = text_of(given["file"]) if given["file"] else ""
        mesh = read_mesh(text, given["file"], names) if text else None
        name = self._name = given["mesh"] if mesh is None else mesh.full_name
        followed = self._followed = FollowedMesh(settings, patience, name, names, given["file"])
        followed.start()
        if mesh is None:
            if followed.definition is None:
                raise ClientError(f"there is no mesh {name}: kop mesh run FILE defines and runs one")
            mesh = defined_mesh(followed.definition)
            for note in mesh.notes:  # those of a file were told when it was checked
                say(note)
        others = len(mesh.sources) + len(mesh.sinks) + len(mesh.queries)
        master = master_of(given["master"], len(mesh.functions) + (1 if others else 0))
        path = cache_folder().parent / "meshes" / f"{name.replace('/', '.')}.log"
        say(f"starting Spark for {name}; what it and the functions print is in {path}")
        log_to(path)
        notice = StartNotice(settings, name, "batch" if given["once"] else mesh.trigger)
        try:
            self._spark = make_session(mesh.name, master, given["settings"])
            if text:
                followed.ensure(mesh, text, given["seen"])
        except Exception as error:
            notice.close(str(error).partition("\n")[0])
            raise
        notice.close()
        from kop.spark.mesh.driver import MeshDriver  # noqa: PLC0415 (takes pyspark along)

        self._driver = MeshDriver(
            self._spark,
            followed,
            settings,
            patience,
            say,
            once=given["once"],
            properties=properties,
            checkpoints=given["checkpoints"],
            changed=self._tell,
        )
        self._driver.start()
        if self._driver.run():
            say(f"{name} has ended; all that was begun is committed")
            return 0
        say(f"{name} has ended while calls were under way: they are done again at the next start")
        return 1


def main(given: dict[str, Any]) -> None:
    """Run a mesh until a signal (SIGINT, SIGTERM), its own end or a failure, then end the process: code 0 if all that
    was begun is committed, else 1. `given` are the values that `kop mesh run` passes on.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    for noisy in ("kafka", "py4j"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    run = Run(given)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: run.stop())
    while not run.over.wait(WAIT_SECONDS):
        pass  # a signal is handled between two waits
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(run.code)  # py4j and kafka-python have threads that would wait for the JVM


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
