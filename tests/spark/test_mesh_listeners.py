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


def test_a_sink_that_starts_again_has_one_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    active: list[Any] = []
    streams = SimpleNamespace(active=[], addListener=active.append, removeListener=active.remove)
    spark = SimpleNamespace(streams=streams, dataSource=SimpleNamespace(register=lambda _: None))
    listeners: dict[str, tuple[Any, ProgressListener]] = {}
    (sink,) = read_mesh(MESH, "mesh.yaml").sinks

    def start() -> None:
        parts = PartQueries(spark, {"kafka.bootstrap.servers": "127.0.0.1:1"}, {}, listeners)
        for _ in range(2):
            parts.start(sink, checkpoint="c", trigger={}, name="public/default/m/s", group=GROUP)

    def threads() -> int:
        return sum(thread.name == f"kop-progress-{GROUP}" for thread in threading.enumerate())

    monkeypatch.setattr(PartQueries, "_sink", lambda *_: None)
    hooks: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda hook, *_: hooks.append(hook))
    monkeypatch.setattr(atexit, "unregister", hooks.remove)
    start()
    start()  # as for another definition
    assert [listener for _, listener in listeners.values()] == active
    assert (len(active), threads(), len(hooks)) == (1, 1, 2)

    def fail(*_: Any) -> None:
        raise ValueError("no such format")

    monkeypatch.setattr(PartQueries, "_sink", fail)
    with pytest.raises(ValueError, match="no such format"):
        start()
    assert (len(active), threads(), len(hooks)) == (0, 0, 0)
