"""The listeners of a mesh's queries, without Spark: one for each, however often it is started."""

from __future__ import annotations

import atexit
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from spark.pyspark_names import pyspark_names

from kop.mesh.file import read_mesh

with pyspark_names():
    from kop.spark.listener import ProgressListener
    from kop.spark.mesh.parts import PartQueries

MESH = "name: m\nsinks: [{name: s, inputs: [t], format: noop}]\n"
GROUP = "public/default/listeners"


class RowsOfTest:
    """A reader, a frame and a writer of Spark in one; `start` raises `failure` if there is one."""

    failure: Exception | None = None
    columns = ("key", "value")
    dtypes = (("key", "binary"), ("value", "binary"))

    @property
    def writeStream(self) -> RowsOfTest:
        """The writer."""
        return self

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: self

    def start(self) -> None:
        """Start a query, or raise the failure."""
        if self.failure is not None:
            raise self.failure


def test_a_sink_that_starts_again_has_one_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    active: list[Any] = []
    streams = SimpleNamespace(active=[], addListener=active.append, removeListener=active.remove)
    rows = RowsOfTest()
    spark = SimpleNamespace(
        streams=streams,
        readStream=rows,
        createDataFrame=lambda *_: rows,
        dataSource=SimpleNamespace(register=lambda _: None),
    )
    listeners: dict[str, tuple[Any, ProgressListener]] = {}
    (sink,) = read_mesh(MESH, "mesh.yaml").sinks

    def start() -> None:
        parts = PartQueries(spark, {"kafka.bootstrap.servers": "127.0.0.1:1"}, {}, listeners)
        for _ in range(2):
            parts.start(sink, checkpoint="c", trigger={}, name="public/default/m/s", group=GROUP)

    def threads() -> int:
        return sum(thread.name == f"kop-progress-{GROUP}" for thread in threading.enumerate())

    hooks: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda hook, *_: hooks.append(hook))
    monkeypatch.setattr(atexit, "unregister", hooks.remove)
    start()
    start()  # as for another definition
    assert [listener for _, listener in listeners.values()] == active
    assert (len(active), threads(), len(hooks)) == (1, 1, 2)

    rows.failure = ValueError("no such format")
    with pytest.raises(ValueError, match="no such format"):
        start()
    assert (len(active), threads(), len(hooks)) == (0, 0, 0)
