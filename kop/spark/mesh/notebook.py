"""`kop.spark.run_mesh`: a mesh in a session of Spark that exists: a notebook, a script of spark-submit.

Owns: the thread of the driver, what a user may ask of a mesh that runs.
Must not know: how a mesh runs (`kop.spark.mesh.driver`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from kop.client.properties import connection, properties_of_environment
from kop.errors import without_frames
from kop.functions.localrun import names_of
from kop.functions.topic_requests import read_definitions
from kop.mesh.file import draft_of, text_of
from kop.mesh.mesh_check import check
from kop.mesh.nodes import MeshError
from kop.spark.mesh.driver import MeshDriver
from kop.spark.mesh.followed_mesh import FollowedMesh

_KAFKA = "kafka."


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


class RunningMesh:
    """A mesh that runs beside whoever has started it."""

    def __init__(self, driver: MeshDriver, followed: FollowedMesh) -> None:
        self._driver = driver
        self._followed = followed
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kop-mesh-driver", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """True if the mesh has ended, with or without an error."""
        return not self._thread.is_alive()

    def status(self) -> dict[str, Any]:
        """Return the state of the mesh, and state and counts of its components and parts, as plain values."""
        return self._driver.report()

    def stop(self) -> None:
        """Ask the mesh to end once what it has begun is committed, and wait for that. Raises the error that ended the
        mesh, if one has and `wait` has not raised it before.
        """
        self._driver.stop()
        self.wait()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the mesh has ended, for so many seconds at most (None: without a limit), and return if it has.
        Raises the error that ended the mesh, if one has; a second call does not raise it again.
        """
        self._thread.join(seconds)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return self.is_over

    def _run(self) -> None:
        try:
            self._driver.run()
        except Exception as error:
            self._failure = without_frames(error)
        finally:
            self._driver.close(stops_queries=True)
            # Only the place in the group of workers is left. The thread below is no daemon: the process waits until it
            # is given up, 5 s at most.
            threading.Thread(target=self._followed.close, name="kop-mesh-leave").start()


def run_mesh(
    spark: Any,
    file: str,
    options: Mapping[str, str] | None = None,
    *,
    once: bool = False,
    checkpoints: str = "",
    topic_namespace: str = "public/default",
) -> RunningMesh:
    """Define the mesh of a file, and run it in this session on a thread of its own; returns once it is defined, before
    its queries run. MeshError if the file is wrong, ClientError if the mesh cannot be defined. Notes about the file are
    written to standard error.

    `options`: `kafka.bootstrap.servers` and what else the connection needs, as for `format("kop")`; without them it is
    the connection that `kop mesh run` has without options: of KOP_CLIENT_CONFIG and KOP_BOOTSTRAP, else the server of
    this machine. `once`: process the records that there are, in batches, and end; `checkpoints`: the folder for those
    of sources and sinks.
    """
    if options is None:
        properties = properties_of_environment(os.environ)
    else:
        properties = {name.removeprefix(_KAFKA): value for name, value in options.items()}
    made = connection(properties, "kop-mesh")
    settings, patience = dict(made.settings), made.patience_ms / 1000
    text = text_of(file)
    names = names_of(settings, patience, topic_namespace)
    checked = check(draft_of(text, file, names), makes_topics=True)
    if checked.plan is None:
        raise MeshError(file, checked.mistakes)
    mesh = checked.mesh
    there = read_definitions(settings, patience)[0].get(mesh.full_name)
    for note in checked.notes:
        _say(note)
    with ExitStack() as stack:
        followed = FollowedMesh(settings, patience, mesh.full_name, names, file)
        stack.callback(followed.close)
        driver = MeshDriver(
            spark,
            followed,
            settings,
            patience,
            _say,
            once=once,
            properties=properties,
            checkpoints=checkpoints,
            spare=1,
        )
        stack.callback(driver.close, stops_queries=False)
        driver.start()
        followed.start()
        followed.ensure(mesh, text, None if there is None else there.revision)
        stack.pop_all()
    return RunningMesh(driver, followed)
