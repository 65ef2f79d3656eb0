"""Pure parts of meshes that run: counts, the master of a session, errors of queries, what drivers report."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kop import clock
from kop.mesh import records
from kop.spark.mesh import __main__, session
from kop.spark.mesh.counting import Counting, MinuteCounts
from kop.spark.mesh.edge_rates import edge_rate
from kop.spark.mesh.session import cores_for, cores_of, master_of


def told(processed: int, failures: int = 0) -> dict[str, object]:
    return {
        "function": "f",
        "processed": processed,
        "user_exceptions": failures,
        "latest_user_exceptions": [{"text": str(number), "at_ms": number} for number in range(failures)],
        "user_metrics": {"m": [1, 2.0]},
    }


def test_counts_of_tasks_that_run_and_have_ended() -> None:
    counting = Counting()
    counting.told("a", [told(1)])
    counting.told("a", [told(3, 2)])
    counting.over("a")
    counting.told("b", [told(4, 1)])
    counts = counting.functions(0.0)["f"]
    assert (counts["processed"], counts["user_exceptions"], counts["user_metrics"]) == (7, 3, {"m": [2, 4.0]})
    assert [failure["at_ms"] for failure in counts["latest_user_exceptions"]] == [0, 0, 1]
    counting.told("b", [told(24)])
    assert counting.functions(4.0)["f"]["rate"] == 5.0
    counting.over("c")


def test_an_edge_within_a_component_has_a_rate_of_its_own() -> None:
    counting = Counting()
    counting.told("a", [{**told(3), "handed": {"t": 2}}])
    counting.functions(0.0)
    counting.over("a")
    counting.told("b", [{**told(20), "handed": {"t": 8, "u": 12}}])
    counts = counting.functions(2.0)["f"]
    assert counts["handed_rates"] == {"t": 4.0, "u": 6.0}
    part = {"name": "f", "inputs": ["in", "t", "u", "v"], "inner_inputs": ["t", "u", "v"], **counts}
    assert [edge_rate(part, topic, {("f", "in"): 1.5}) for topic in part["inputs"]] == [1.5, 4.0, 6.0, 0.0]


def test_the_record_that_a_task_calls_with_is_told_while_it_runs() -> None:
    counting = Counting()
    counting.told("a", [{**told(1), "at": None}])
    counting.told("b", [{**told(1), "at": ["in", 2, 7]}])
    assert counting.functions(0.0)["f"]["at"] == ["in", 2, 7]
    counting.over("b")
    assert "at" not in counting.functions(1.0)["f"]


def test_counts_of_the_last_whole_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    minutes = MinuteCounts()

    def at(seconds: float, processed: int) -> int:
        monkeypatch.setattr(clock, "wall", lambda: 6_000.0 + seconds)
        made = minutes.of("f", {"processed": processed, "received": processed, "state": "running"})
        assert made["received_1min"] == made["processed_1min"]
        assert made["latency_count_1min"] == 0
        return int(made["processed_1min"])

    assert [at(30, 5), at(59, 8)] == [0, 0]
    assert [at(60, 8), at(119, 20)] == [8, 8]
    assert [at(121, 21), at(150, 30)] == [13, 13]
    assert at(241, 40) == 0, "in the minute before nobody has looked"
    assert at(300, 41) == 1


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("local", "local[1,4]"),
        ("local[3]", "local[3,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,8]", "local[2,8]"),
        ("spark://there:7077", "spark://there:7077"),
    ],
)
def test_a_task_is_tried_again_wherever_it_runs(given: str, made: str) -> None:
    assert master_of(given, 1) == made


def test_there_are_as_many_cores_as_are_needed() -> None:
    assert master_of(None, 99) == "local[99,4]"


class ClusterOfTest:
    """A session whose executors come one after the other."""

    def __init__(self, master: str, *cores: int) -> None:
        self.conf = {"spark.master": master}
        self.sparkContext = self
        self._cores = list(cores)

    @property
    def defaultParallelism(self) -> int:
        """How many cores there are at the moment."""
        return self._cores.pop(0) if len(self._cores) > 1 else self._cores[0]


def test_executors_of_a_cluster_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SETTLED_SECONDS", 0.0)
    assert cores_of(ClusterOfTest("local[3,4]", 3), 9, lambda _: False) == 3
    assert cores_of(ClusterOfTest("spark://there:7077", 2, 2, 2, 4, 6), 4, lambda _: False) == 4
    assert cores_of(ClusterOfTest("spark://there:7077", 2, 2, 4), 9, lambda _: True) == 2
    monkeypatch.setattr(session, "CORES_SECONDS", 0.0)
    assert cores_of(ClusterOfTest("spark://there:7077", 2, 3), 9, lambda _: False) == 3


@pytest.mark.parametrize(
    ("components", "cores", "others", "spare", "left"),
    [
        (2, 4, False, 0, 4),
        (2, 4, True, 0, 3),
        (2, 4, True, 1, 2),
        (2, 2, False, 1, 2),  # none is left to others of the session if there are too few
        (3, 4, True, 1, 3),
        (3, 3, True, 0, 2),  # too few
        (0, 2, True, 0, 1),
    ],
)
def test_cores_are_shared(components: int, cores: int, others: bool, spare: int, left: int) -> None:
    assert cores_for(components, cores, others=others, spare=spare) == left


def test_a_driver_that_says_nothing_has_gone() -> None:
    report = {"state": "running", "at_ms": 1_000}
    assert records.state_of(report, 2_000) == "running"
    assert records.state_of(report, 20_000) == "gone"
    assert records.state_of({"state": "stopped", "at_ms": 1_000}, 20_000) == "stopped"


def test_names_and_keys() -> None:
    assert records.full_name("a") == "public/default/a"
    assert records.full_name("t/n/a") == "t/n/a"
    assert records.split_key(records.key(records.REPORT, "t/n/a")) == (records.REPORT, "t/n/a")
    assert records.decode(b"no json") == {}


def test_a_child_that_ends_while_it_is_looked_at_does_not_keep_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    read_text = Path.read_text

    def read(path: Path) -> str:
        if path.name == "children":
            return "999999999 "  # no such process any more
        return read_text(path)

    monkeypatch.setattr(Path, "read_text", read)
    stopped: list[bool] = []
    session.end_at_once(SimpleNamespace(stop=lambda: stopped.append(True)))
    assert stopped == [True]


def test_a_run_is_over_though_its_session_does_not_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise OSError("no such process")

    (tmp_path / "mesh.yaml").write_text("name: m")
    mesh = SimpleNamespace(name="m", full_name="m", sources=(), sinks=(), queries=(), functions=())
    followed = SimpleNamespace(start=lambda: None, ensure=fail, close=lambda: None)
    names: dict[str, Any] = {
        "end_at_once": fail,
        "names_of": lambda *_: None,
        "read_mesh": lambda *_: mesh,
        "FollowedMesh": lambda *_: followed,
        "log_to": lambda _: None,
        "make_session": lambda *_: object(),
    }
    for name, value in names.items():
        monkeypatch.setattr(__main__, name, value)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # which it replaces
    absent = dict.fromkeys(("mesh", "client_config", "topic_namespace", "master"))
    given = {"bootstrap": "127.0.0.1:1", "file": str(tmp_path / "mesh.yaml"), **absent}
    run = __main__.Run({**given, "settings": {}})
    assert run.over.wait(10.0)
    assert run.code == 1
