"""Components of meshes without Spark: records through functions, failures, kills, state, ends of batches."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from support.waiting import SECONDS, wait_until

from kop.client.errors import UnreachableError
from kop.client.read_client import ReadClient
from kop.client.write_client import WriteClient
from kop.functions import stand_in
from kop.functions.calling import Calls
from kop.functions.packages import Package
from kop.functions.reading import Taken
from kop.functions.spec import FunctionSpec, Guarantee, InputSpec, WindowSpec
from kop.functions.stats import Stats
from kop.functions.watch import NOT_CALLING
from kop.functions.writing import Outputs
from kop.spark.mesh import task
from kop.spark.mesh.component import Step, TaskComponent, Work
from kop.spark.mesh.edge_rates import EdgeRates, ReadingPart, edge_rate
from kop.spark.mesh.link import DriverLink, Hub, NoDriverError, NotPlannedError, PlanLink
from kop.spark.mesh.planning import Planner
from kop.spark.mesh.share import Share
from kop.spark.mesh.starts import Starts
from kop.spark.mesh.task import run_task
from kop.testing import Broker

ONCE = Guarantee.EFFECTIVELY_ONCE


class Meshes:
    """Components on one broker, with a hub that keeps what tasks tell."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.told: list[Any] = []
        self.hub = Hub(
            "127.0.0.1", lambda line: self.told.append(line.told), lambda line: None, lambda: True, NoPlanner
        )

    def step(self, code: str, source: str, output: str, *, inner: bool = False, **fields: Any) -> Step:
        """A function `process` between two topics; its name is that of its output."""
        name = fields.pop("name", output)
        given: dict[str, Any] = {"processing_guarantees": ONCE, "subscription_position": "Earliest", **fields}
        spec = FunctionSpec(
            name=name,
            class_name=given.pop("class_name", "code_of_mesh.process"),
            py="code_of_mesh.py",
            inputs={source: InputSpec()},
            output=output,
            **given,
        )
        topics = {"inner_inputs": (source,), "inputs": ()} if inner else {"inputs": (source,)}
        no_state = None if "state_scope" in fields else "this function has none"
        return Step(spec, Package("code_of_mesh.py", code.encode()), **topics, no_state=no_state)

    def work(self, *steps: Step, seconds: float | None = None, **fields: Any) -> Work:
        """A component of these functions."""
        inputs = tuple(dict.fromkeys(topic for step in steps for topic in step.inputs))
        inner = frozenset(topic for step in steps for topic in step.inner_inputs)
        guarantee = steps[0].spec.processing_guarantees
        component = TaskComponent("public/default/mesh/c", steps, guarantee, inputs, inner, **fields)
        settings = {"bootstrap_servers": [self.broker.bootstrap]}
        return Work(component, settings, 20.0, ("127.0.0.1", self.hub.port), self.hub.token, 2, seconds)

    def drain(self, work: Work) -> list[dict[str, Any]]:
        """Plan a batch and do it."""
        planner = Planner(work)
        try:
            return [row for share in planner.shares() for row in run_task(work, share)]
        finally:
            planner.close()

    def values(self, topic: str) -> list[str]:
        """The committed values of a topic."""
        return [(r.value or b"").decode() for r in self.broker.records(topic, isolation_level="read_committed")]


@pytest.fixture
def meshes(kop_shared_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meshes]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = Meshes(kop_shared_broker)
    yield made
    made.hub.close()
    stand_in.uninstall()


A = "def process(text: str) -> str:\n    return text + '{}'\n"


def test_records_go_through_two_functions_in_one_transaction(meshes: Meshes) -> None:
    meshes.broker.create_topic("in1", partitions=2)
    work = meshes.work(
        meshes.step(A.format("a"), "in1", "mid1"), meshes.step(A.format("b"), "mid1", "out1", inner=True)
    )
    for number in range(6):
        meshes.broker.produce("in1", [(f"k{number}", str(number))])
    rows = meshes.drain(work)
    assert Counter(meshes.values("out1")) == Counter(f"{number}ab" for number in range(6))
    assert Counter(meshes.values("mid1")) == Counter(f"{number}a" for number in range(6))
    assert sum(row["processed"] for row in rows) == 12
    assert sum(meshes.broker.committed("public/default/mid1").values()) == 6
    assert meshes.drain(work)[0]["received"] == 0, "nothing is done again"
    assert meshes.told[-1]["last"]


def test_a_function_that_fails_holds_up_its_partition_alone_and_what_was_before_it_is_there(meshes: Meshes) -> None:
    meshes.broker.create_topic("in2", partitions=1)
    picky = "def process(text: str) -> str:\n    if text == 'bada':\n        raise ValueError('bad')\n    return text\n"
    work = meshes.work(
        meshes.step(A.format("a"), "in2", "mid2"),
        meshes.step(picky, "mid2", "out2", inner=True, max_message_retries=1, dead_letter_topic="dead2"),
    )
    meshes.broker.produce("in2", ["1", "2", "bad", "3"])
    rows = meshes.drain(work)
    assert meshes.values("out2") == ["1a", "2a", "3a"]
    assert meshes.values("mid2") == ["1a", "2a", "bada", "3a"], "a record that was done again is there once"
    (dead,) = meshes.broker.records("dead2", isolation_level="read_committed")
    headers = dict(dead.headers)
    assert (dead.value, headers["REAL_TOPIC"]) == (b"bada", b"mid2")
    assert headers["__pfn_exception__"] == b"ValueError: bad"
    assert rows[1]["user_exceptions"] >= 2
    assert [row["handed"] for row in rows] == [{}, {"mid2": 4}], "what was done again counts once"
    assert meshes.broker.committed("public/default/mid2") == {("in2", 0): 4}


class Sends:
    """What tasks send of their outputs: each call waits for `go_on`, and the one of number `fails` raises an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: int = -1) -> None:
        self.count = 0
        self.go_on = threading.Event()
        send = Outputs.send

        def sent(outputs: Outputs, batches: Any, group: str | None = None) -> None:
            self.count += 1
            assert self.go_on.wait(10)
            if self.count - 1 == fails:
                raise UnreachableError("the server has gone")
            send(outputs, batches, group)

        monkeypatch.setattr(Outputs, "send", sent)
        monkeypatch.setattr(task, "DRAIN_RECORDS", 2)


def test_records_go_on_while_those_before_them_are_written(meshes: Meshes, monkeypatch: pytest.MonkeyPatch) -> None:
    meshes.broker.create_topic("in31", partitions=1)
    meshes.broker.produce("in31", [str(number) for number in range(9)])
    sends, pieces = Sends(monkeypatch), list[int]()
    take = Calls.take

    def seen(calls: Calls, taken: Taken, deadline: float) -> int:
        pieces.append(sends.count)
        if sends.count:
            sends.go_on.set()  # the first records are being written, and these are called
        return take(calls, taken, deadline)

    monkeypatch.setattr(Calls, "take", seen)
    meshes.drain(meshes.work(meshes.step(A.format("a"), "in31", "out31")))
    assert meshes.values("out31") == [f"{number}a" for number in range(9)]
    assert pieces[0] == 0
    assert pieces[-1] >= 1, "it was called before the first write had ended"
    assert meshes.broker.committed("public/default/out31") == {("in31", 0): 9}


def test_a_write_that_fails_ends_the_task_and_what_came_after_it_is_done_again(
    meshes: Meshes, monkeypatch: pytest.MonkeyPatch
) -> None:
    meshes.broker.create_topic("in32", partitions=2)
    for number in range(20):
        meshes.broker.produce("in32", [(f"k{number}", str(number))])
    work = meshes.work(meshes.step(A.format("a"), "in32", "out32"))
    with monkeypatch.context() as patch:
        Sends(patch, fails=2).go_on.set()
        with pytest.raises(UnreachableError, match="the server has gone"):
            meshes.drain(work)
    assert 0 < len(meshes.values("out32")) < 20
    meshes.drain(work)
    assert Counter(meshes.values("out32")) == Counter(f"{number}a" for number in range(20))
    assert sum(meshes.broker.committed("public/default/out32").values()) == 20


def test_who_waits_for_a_publish_is_told_when_it_is_written(meshes: Meshes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records after it may be called before that; their publishes are told with their own write."""
    meshes.broker.create_topic("in33", partitions=1)
    meshes.broker.create_topic("told33", partitions=1)
    meshes.broker.produce("in33", ["1", "2", "3"])
    code = """
import kop_told

def process(text: str, context) -> None:
    context.publish("told33", text, callback=lambda result, message: kop_told.ALL.append((text, kop_told.count())))
"""
    sends = Sends(monkeypatch)
    sends.go_on.set()
    monkeypatch.setattr(task, "DRAIN_RECORDS", 1)
    told: Any = ModuleType("kop_told")
    told.ALL, told.count = [], lambda: len(meshes.values("told33"))
    monkeypatch.setitem(sys.modules, "kop_told", told)
    meshes.drain(meshes.work(meshes.step(code, "in33", "out33")))
    assert [text for text, _ in told.ALL] == ["1", "2", "3"]
    assert all(count >= number for number, (_, count) in enumerate(told.ALL, 1)), told.ALL


COUNT = """
def process(word: str, context) -> str:
    context.incr_counter(word, 1)
    return f"{word}={context.get_counter(word)}"
"""


def test_state_is_of_the_input_partition_and_goes_on_in_the_next_batch(meshes: Meshes) -> None:
    meshes.broker.create_topic("in3", partitions=2)
    work = meshes.work(
        meshes.step(A.format(""), "in3", "mid3"),
        meshes.step(COUNT, "mid3", "out3", inner=True, state_scope="partition"),
    )
    for _ in range(3):
        meshes.broker.produce("in3", [("k1", "x"), ("k2", "x"), ("k1", "x")])
        meshes.drain(work)
    by_partition = Counter(record.partition for record in meshes.broker.records("in3"))
    assert sorted(meshes.values("out3")) == sorted(
        f"x={number}" for count in by_partition.values() for number in range(1, count + 1)
    )


def test_a_call_that_fails_has_changed_no_state_of_the_functions_before_it(meshes: Meshes) -> None:
    meshes.broker.create_topic("in4", partitions=1)
    often = (
        "tries = []\ndef process(text: str) -> str:\n    tries.append(text)\n"
        "    if len(tries) == 3:\n        raise ValueError\n    return text\n"
    )
    work = meshes.work(
        meshes.step(COUNT, "in4", "mid4", state_scope="partition"), meshes.step(often, "mid4", "out4", inner=True)
    )
    meshes.broker.produce("in4", ["w"] * 4)
    meshes.drain(work)
    assert meshes.values("out4") == ["w=1", "w=2", "w=3", "w=4"]


def test_two_functions_read_one_topic_and_one_of_them_is_ahead(meshes: Meshes) -> None:
    meshes.broker.create_topic("in5", partitions=1)
    first = meshes.step(A.format("a"), "in5", "left5")
    second = meshes.step(A.format("b"), "in5", "right5")
    meshes.broker.produce("in5", ["1", "2"])
    meshes.drain(meshes.work(first))
    meshes.broker.produce("in5", ["3"])
    meshes.drain(meshes.work(first, second))
    assert (meshes.values("left5"), meshes.values("right5")) == (["1a", "2a", "3a"], ["1b", "2b", "3b"])
    assert meshes.broker.committed("public/default/right5") == {("in5", 0): 3}


def test_several_functions_are_called_with_what_another_gives(meshes: Meshes) -> None:
    meshes.broker.create_topic("in10", partitions=1)
    steps = [meshes.step(A.format("a"), "in10", "mid10")]
    steps += [meshes.step(A.format(name), "mid10", f"out10{name}", inner=True) for name in "bc"]
    meshes.broker.produce("in10", ["1", "2"])
    meshes.drain(meshes.work(*steps))
    assert (meshes.values("out10b"), meshes.values("out10c")) == (["1ab", "2ab"], ["1ac", "2ac"])


def test_a_private_topic_is_not_written(meshes: Meshes) -> None:
    meshes.broker.create_topic("in6", partitions=1)
    steps = meshes.step(A.format("a"), "in6", "mid6"), meshes.step(A.format("b"), "mid6", "out6", inner=True)
    meshes.broker.produce("in6", ["1"])
    meshes.drain(meshes.work(*steps, private=frozenset({"mid6"})))
    assert meshes.values("out6") == ["1ab"]
    assert "mid6" not in meshes.broker.topics()


@pytest.mark.parametrize("guarantee", [Guarantee.ATLEAST_ONCE, Guarantee.ATMOST_ONCE])
def test_other_guarantees(meshes: Meshes, guarantee: Guarantee) -> None:
    source, output = f"in-{guarantee.value}", f"out-{guarantee.value}"
    meshes.broker.create_topic(source, partitions=1)
    work = meshes.work(
        meshes.step(A.format("a"), source, f"mid{output}", processing_guarantees=guarantee),
        meshes.step(A.format("b"), f"mid{output}", output, inner=True, processing_guarantees=guarantee),
    )
    meshes.broker.produce(source, ["1", "2"])
    meshes.drain(work)
    meshes.drain(work)
    assert meshes.values(output) == ["1ab", "2ab"]


def test_a_task_that_is_killed_before_its_commit_leaves_nothing_behind(
    meshes: Meshes, monkeypatch: pytest.MonkeyPatch
) -> None:
    meshes.broker.create_topic("in7", partitions=1)
    dice = "import random\n" + A.replace("text + '{}'", "text + ' ' + str(random.random())")
    work = meshes.work(
        meshes.step(COUNT, "in7", "mid7", state_scope="partition"), meshes.step(dice, "mid7", "out7", inner=True)
    )
    meshes.broker.produce("in7", ["w"] * 5)
    with monkeypatch.context() as patch:

        def die(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError

        patch.setattr(WriteClient, "commit_in_transaction", die)
        with pytest.raises(ZeroDivisionError):
            meshes.drain(work)
    assert meshes.values("out7") == []
    meshes.drain(work)
    assert [value.partition(" ")[0] for value in meshes.values("out7")] == [f"w={number}" for number in range(1, 6)]


def test_a_batch_does_not_end_while_a_record_is_tried_so_many_times(meshes: Meshes) -> None:
    meshes.broker.create_topic("in-tried", partitions=1)
    bad = "def process(text: str) -> str:\n    if text == 'bad':\n        raise ValueError\n    return text\n"
    step = meshes.step(bad, "in-tried", "out-tried", max_message_retries=1, dead_letter_topic="dead-tried")
    meshes.broker.produce("in-tried", ["bad", "2"])
    work = meshes.work(step, seconds=0.15)  # less than what lies between two attempts
    end = time.monotonic() + 60
    while not (told := meshes.drain(work)[0]["user_exceptions"]):  # the batch in which it was fetched
        assert time.monotonic() < end
    assert told == 2
    dead = meshes.broker.records("dead-tried", isolation_level="read_committed")
    assert [record.value for record in dead] == [b"bad"]


RUN = """
import pickle, sys
from kop.spark.mesh.task import run_task
for work, share in pickle.load(sys.stdin.buffer):
    run_task(work, share)
"""
FORKS = """
import os, signal, sys
def process(text: str) -> str:
    if "pytest" not in sys.modules and os.fork() == 0:
        signal.alarm(180)
    return text + "a"
"""
DEADLY = "import os\ndef process(text: str) -> str:\n    if text == 'xa':\n        os._exit(3)\n    return text\n"


def test_functions_that_fork_and_end_their_process(meshes: Meshes) -> None:
    meshes.broker.create_topic("in14", partitions=1)
    work = meshes.work(meshes.step(FORKS, "in14", "mid14"), meshes.step(DEADLY, "mid14", "out14", inner=True))
    batches = []
    for values in (["1"], ["2", "x", "3"]):
        meshes.broker.produce("in14", values)
        with closing(Planner(work)) as planner:
            batches += [(work, share) for share in planner.shares()]
    ended = subprocess.run([sys.executable, "-c", RUN], input=pickle.dumps(batches), check=False, timeout=180)
    assert ended.returncode == 3
    assert meshes.values("out14") in (["1a"], ["1a", "2a"]), "once, by the process that has not been forked"
    meshes.hub.end_tasks("c")
    run_task(*batches[1])
    wait_until(lambda: any("killed" in line for line in meshes.told), "the line of the next task")
    (told,) = [line for line in meshes.told if "killed" in line]
    assert told["text"] == "public/default/out14 has ended its worker at mid14-0 offset 2"
    assert told["suspect"] in (["in14", 0, 2], ["in14", 0, 3]), "the last of those that went through together"
    run_task(*batches[1])
    assert len([line for line in meshes.told if "killed" in line]) == 1, "it is told once"


HANGS = "import time\ndef hang() -> None:\n    time.sleep(60)\ndef process(text: str) -> None:\n    hang()\n"


@pytest.mark.parametrize("is_whole", [False, True])
def test_the_place_in_which_a_call_hangs_is_written_when_its_process_ends(meshes: Meshes, is_whole: bool) -> None:
    topic = f"in36{is_whole}"
    meshes.broker.create_topic(topic, partitions=1)
    meshes.broker.produce(topic, ["1"])
    work = meshes.work(meshes.step(HANGS, topic, f"out36{is_whole}", timeout_ms=300), is_whole=is_whole)
    with closing(Planner(work)) as planner:
        batches = [(work, share) for share in planner.shares()]
    ended = subprocess.run(
        [sys.executable, "-c", RUN], input=pickle.dumps(batches), check=False, timeout=180, capture_output=True
    )
    assert ended.returncode == 70
    assert b"in hang" in ended.stderr, ended.stderr.decode()


def test_a_partition_that_is_added_is_read_from_its_beginning(meshes: Meshes) -> None:
    meshes.broker.create_topic("in16", partitions=1)
    work = meshes.work(meshes.step(COUNT, "in16", "out16", state_scope="partition"))
    meshes.broker.produce("in16", ["w"])
    meshes.drain(work)
    with closing(WriteClient(work.settings, 20.0)) as writer:
        writer.partitions_at_least("in16", 2, {})
    with KafkaProducer(bootstrap_servers=meshes.broker.bootstrap) as producer:
        producer.send("in16", b"w", partition=1).get(20)
    meshes.drain(replace(work, counts={"in16": 1}))
    assert meshes.values("out16") == ["w=1"], "what was cut for one partition leaves another one alone"
    meshes.drain(work)
    assert meshes.values("out16") == ["w=1", "w=1"]


SEES = """
def process(text: str, context) -> str:
    origin = context.get_message_properties()["__pfn_input_topic__"]
    return f"{text} of {origin} at {context.get_message_id()}"
"""


@pytest.mark.parametrize("private", [True, False])
def test_functions_behind_a_plain_one_see_its_results_and_whence_they_came(meshes: Meshes, private: bool) -> None:
    source, mid, out = (f"{topic}-sees-{private}" for topic in ("in", "mid", "out"))
    meshes.broker.create_topic(source, partitions=1)
    odd = meshes.step("def process(text: str):\n    return text if int(text) % 2 else None\n", source, mid)
    work = meshes.work(
        odd, meshes.step(SEES, mid, out, inner=True), private=frozenset({mid}) if private else frozenset()
    )
    meshes.broker.produce(source, [str(number) for number in range(6)])
    rows = meshes.drain(work)
    assert [value.split(" at ")[0] for value in meshes.values(out)] == [f"{n} of {source}" for n in (1, 3, 5)]
    assert [row["processed"] for row in rows] == [6, 3]


SPREADS = """
def process(text: str) -> {kind}:
    if text == "2":
        return {bad}
    return {good}
"""


@pytest.mark.parametrize(
    ("kind", "bad", "good", "told"),
    [
        ("str", r"'\ud800'", "text", "the result is no UTF-8"),
        ("str", "b'2'", "text", "the result is a bytes, which must be a str"),
        ("bytes", "'2'", "text.encode()", "the result is a str, which must be bytes"),
        ("str", "'x' * 10_000_000", "text", "the result"),
    ],
)
def test_a_result_in_the_middle_that_cannot_be_written_is_given_up_alone(
    meshes: Meshes, kind: str, bad: str, good: str, told: str
) -> None:
    name = f"{kind}-{abs(hash((bad, good)))}"
    meshes.broker.create_topic(f"in-{name}", partitions=1)
    code = SPREADS.format(kind=kind, bad=bad, good=good)
    last = meshes.step(code, f"mid-{name}", f"out-{name}", inner=True, max_message_retries=0,
                       dead_letter_topic=f"dead-{name}")  # fmt: skip
    work = meshes.work(meshes.step(A.format(""), f"in-{name}", f"mid-{name}"), last, private=frozenset({f"mid-{name}"}))
    meshes.broker.produce(f"in-{name}", ["1", "2", "3"])
    meshes.drain(work)
    assert meshes.values(f"out-{name}") == ["1", "3"]
    (dead,) = meshes.broker.records(f"dead-{name}", isolation_level="read_committed")
    assert told in str(dict(dead.headers)["__pfn_exception__"])
    assert dead.value == b"2"


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("wrong", "def process(text: str) -> str:\n    return 7\n", "the result is a int, which must be a str"),
        ("input", "def process(number: int) -> int:\n    return number\n", "int"),
    ],
)
def test_what_has_the_wrong_type_is_a_dead_letter_and_the_rest_goes_on(
    meshes: Meshes, name: str, code: str, told: str
) -> None:
    meshes.broker.create_topic(f"in-{name}", partitions=2)
    picky = meshes.step(
        code, f"mid-{name}", f"out-{name}", inner=True, max_message_retries=0, dead_letter_topic=f"dead-{name}"
    )
    work = meshes.work(meshes.step(A.format(""), f"in-{name}", f"mid-{name}"), picky)
    meshes.broker.produce(f"in-{name}", ["no number"])
    rows = meshes.drain(work)
    (dead,) = meshes.broker.records(f"dead-{name}", isolation_level="read_committed")
    headers = dict(dead.headers)
    assert headers["REAL_TOPIC"] == f"mid-{name}".encode()
    assert told in str(headers["__pfn_exception__"])
    assert rows[1]["user_exceptions"] + rows[1]["system_exceptions"] == 1
    assert meshes.drain(work)[0]["received"] == 0, "it holds up nothing"


def test_an_output_that_was_deleted_is_made_again_or_named(meshes: Meshes) -> None:
    meshes.broker.create_topic("in17", partitions=1)
    work = meshes.work(meshes.step(A.format("a"), "in17", "out17"))
    meshes.broker.produce("in17", ["1"])
    meshes.drain(work)
    with closing(KafkaAdminClient(bootstrap_servers=meshes.broker.bootstrap)) as admin:
        admin.delete_topics(["out17"])
    meshes.broker.produce("in17", ["2"])
    meshes.drain(work)
    assert meshes.values("out17") == ["2a"]


def test_a_batch_ends_early_where_the_driver_says_so(meshes: Meshes) -> None:
    meshes.broker.create_topic("in8", partitions=1)
    work = meshes.work(meshes.step(A.format("a"), "in8", "out8"), seconds=60.0)
    thread = threading.Thread(target=meshes.drain, args=(work,))
    thread.start()
    meshes.broker.produce("in8", ["1"])
    wait_until(lambda: meshes.values("out8") == ["1a"] if "out8" in meshes.broker.topics() else False, "the record")
    meshes.hub.end_tasks("c")
    thread.join(60)
    assert not thread.is_alive()
    assert meshes.hub.wait_until_none(60)


def test_windows_run_as_the_function_does_elsewhere(meshes: Meshes) -> None:
    meshes.broker.create_topic("in9", partitions=2)
    average = "def process(numbers: list[float]) -> float:\n    return sum(numbers) / len(numbers)\n"
    window = WindowSpec(length_count=2, sliding_count=2)
    work = meshes.work(meshes.step(average, "in9", "out9", window=window), is_whole=True)
    meshes.broker.produce("in9", ["1", "2"])
    meshes.drain(work)
    assert meshes.values("out9") == ["1.5"]


def test_a_batch_of_a_whole_component_ends_at_its_planned_ends_under_steady_input(
    meshes: Meshes, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, over = ("in37", 0), threading.Event()

    class Busy:
        """An instance that has done all up to the planned end, and has lag, since more comes all the time."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self.started = threading.Event()
            self.partitions, self.calling = [place], [0, NOT_CALLING, 0]
            self.stats = Stats(self.partitions, self.calling)
            self.stats.lag = lambda: {place: 5}
            self.done = self.reached = lambda: {place: 7}
            self.stop = over.set

        def run(self) -> None:
            """Run until the end of the batch."""
            self.started.set()
            over.wait()

    monkeypatch.setattr(task, "Instance", Busy)
    work = meshes.work(meshes.step(A.format(""), "in37", "out37"), is_whole=True)
    thread = threading.Thread(target=run_task, args=(work, Share(0, (place,), {place: 7})))
    thread.start()
    has_ended = over.wait(SECONDS)
    meshes.hub.end_tasks("c")
    thread.join(10.0)
    assert has_ended


def test_offsets_where_functions_are_cut_and_joined(meshes: Meshes) -> None:
    meshes.broker.create_topic("in11", partitions=1)
    first, called = (
        meshes.step(A.format("a"), "in11", "mid11"),
        meshes.step(A.format("b"), "mid11", "out11", inner=True),
    )
    apart = meshes.step(A.format("b"), "mid11", "out11")
    settings = {"bootstrap_servers": [meshes.broker.bootstrap]}
    reader, writer = ReadClient(settings, 20_000), WriteClient(settings, 20.0)
    try:
        meshes.broker.produce("in11", ["1"])
        meshes.drain(meshes.work(first, called))
        before = {"public/default/mid11": [], "public/default/out11": ["mid11"]}
        works = meshes.work(first), meshes.work(apart)
        components = [work.component for work in works]
        Starts(reader, writer, before).commit(components)  # the function was called, and now reads
        meshes.broker.produce("in11", ["2"])
        for work in works:
            meshes.drain(work)
        assert meshes.values("out11") == ["1ab", "2ab"], "nothing is missing, nothing twice"
        joined = [meshes.work(first, called).component]
        before = {"public/default/mid11": [], "public/default/out11": []}
        assert Starts(reader, writer, before).not_drained(joined) == {}
        meshes.broker.produce("mid11", ["3a"])
        assert Starts(reader, writer, before).not_drained(joined) == {"out11": ("mid11", 1)}
    finally:
        reader.close()
        writer.close()


class NoPlanner:
    """A planner whose servers are away, and that is told when it ends."""

    def __init__(self, component: str) -> None:
        self.component = component
        self.away = True
        self.is_closed = threading.Event()

    def has_work(self) -> bool:
        if self.away:
            raise UnreachableError(f"no server for {self.component}")
        return True

    def shares(self) -> list[Share]:
        return [Share(0, (("in", 0), ("in", 2)), {("in", 0): 5, ("in", 2): 0}), Share(1, (("in", 1),))]

    def close(self) -> None:
        self.is_closed.set()


def test_the_driver_answers_who_plans_until_that_line_ends() -> None:
    made: list[NoPlanner] = []

    def new(component: str) -> NoPlanner:
        made.append(NoPlanner(component))
        return made[-1]

    hub = Hub("127.0.0.1", lambda line: None, lambda line: None, lambda: False, new)
    try:
        with closing(PlanLink(("127.0.0.1", hub.port), hub.token, "c")) as link:
            for _ in range(2):
                assert link.shares() == NoPlanner("c").shares()
                with pytest.raises(NotPlannedError, match="UnreachableError: no server for c"):
                    link.has_work()
            assert hub.tasks() == 0, "it is no task"
            made[0].away = False
            assert link.has_work()
            hub.end_tasks("c")
            assert not link.has_work(), "its tasks would only have to end"
            hub.allow("c")
            assert link.has_work()
            (planner,) = made
            assert not planner.is_closed.is_set()
        assert planner.is_closed.wait(10)
        with closing(PlanLink(("127.0.0.1", hub.port), "guessed", "c")) as link, pytest.raises(NotPlannedError):
            link.shares()
        assert len(made) == 1
        with closing(PlanLink(("127.0.0.1", hub.port), hub.token, "c")) as link:
            link.shares()
            hub.close()
            with pytest.raises(NotPlannedError, match="the driver of the mesh is gone"):
                link.shares()
        assert made[1].is_closed.wait(10)
    finally:
        hub.close()


def test_tasks_begin_only_if_they_have_the_token_and_the_driver_has_the_mesh(meshes: Meshes) -> None:
    refusing = Hub("127.0.0.1", lambda line: None, lambda line: None, lambda: False, NoPlanner)
    try:
        for hub, token in ((meshes.hub, "guessed"), (refusing, refusing.token)):
            with pytest.raises(NoDriverError, match="does not let this task begin"):
                DriverLink(("127.0.0.1", hub.port), token, "c", lambda: None)
            assert hub.tasks() == 0
    finally:
        refusing.close()


@pytest.mark.parametrize("first", ['["no object"]', '{"token": "\u00e9", "component": "c"}', "no JSON", "{}"])
def test_a_first_line_of_strangers_ends_their_connection_alone(meshes: Meshes, first: str) -> None:
    with socket.create_connection(("127.0.0.1", meshes.hub.port), 10) as stranger:
        stranger.sendall(f"{first}\n".encode())
        assert stranger.recv(100) == b""
    DriverLink(("127.0.0.1", meshes.hub.port), meshes.hub.token, "c", lambda: None).close()
    assert meshes.hub.wait_until_none(10)


def test_rates_of_edges_are_told_by_what_groups_have_done(meshes: Meshes) -> None:
    meshes.broker.create_topic("in23", partitions=1)
    settings = {"bootstrap_servers": [meshes.broker.bootstrap]}
    rates, writer = EdgeRates(settings), WriteClient(settings, 20.0)
    part = ReadingPart("public/default/a", "rates", ("in23", "gone23"))
    try:
        for seconds, done, told in ((0.0, 1, {}), (1.0, 2, {}), (10.0, 3, {("public/default/a", "in23"): 0.2})):
            writer.commit("rates", {("in23", 0): done})
            assert rates.rates([part], seconds) == told
        assert rates.rates([], 20.0) == {}
    finally:
        rates.close()
        writer.close()
    assert edge_rate({"name": "a", "inputs": ["x"], "rate": 2.0}, "x", {}) == 2.0
    assert (
        edge_rate({"name": "a", "inputs": ["x", "y"], "inner_inputs": [], "rate": 2.0}, "x", {("a", "x"): 0.5}) == 0.5
    )


def test_the_rate_of_an_edge_is_that_of_partitions_that_are_in_both_answers(
    meshes: Meshes, monkeypatch: pytest.MonkeyPatch
) -> None:
    meshes.broker.create_topic("in35", partitions=3)
    settings = {"bootstrap_servers": [meshes.broker.bootstrap]}
    edge, part = ("a", "in35"), ReadingPart("a", "rates35", ("in35",))
    first, second, third = ("in35", 0), ("in35", 1), ("in35", 2)
    with closing(EdgeRates(settings)) as rates, closing(WriteClient(settings, 20.0)) as writer:
        writer.commit("rates35", {first: 10, third: 1000})
        rates.rates([part], 0.0)
        writer.commit("rates35", {first: 30, second: 5000})
        committed = WriteClient.committed

        def without_open(client: WriteClient, group: str, places: Any, may_be_open: Any) -> Any:
            offsets = committed(client, group, places, may_be_open)
            return {place: done for place, done in offsets.items() if place != third}

        monkeypatch.setattr(WriteClient, "committed", without_open)
        assert rates.rates([part], 10.0) == {edge: 2.0}


def test_what_is_before_a_record_that_ended_a_process_is_committed_first(meshes: Meshes) -> None:
    meshes.broker.create_topic("in12", partitions=1)
    deadly = "def process(text: str) -> str:\n    if text == 'x':\n        raise KeyboardInterrupt\n    return text\n"
    work = meshes.work(meshes.step(deadly, "in12", "out12"))
    meshes.broker.produce("in12", ["1", "2", "x"])
    for suspects, there in (({}, []), ({("in12", 0): 2}, ["1", "2"])):
        with pytest.raises(KeyboardInterrupt):
            meshes.drain(replace(work, suspects=suspects))
        assert meshes.values("out12") == there


BATCHES = """
import pyarrow as pa

def process_batch(batch, context):
    values = [value.decode() for value in batch.column("value").to_pylist()]
    if "bad" in values:
        raise ValueError("bad")
    keys = batch.column("key")
    return pa.RecordBatch.from_arrays([keys, pa.array([f"{value}!" for value in values])], ["key", "value"])
"""


def test_record_batches_go_on_to_the_next_function_and_a_bad_record_is_alone(meshes: Meshes) -> None:
    meshes.broker.create_topic("in20", partitions=2)
    batches = meshes.step(
        BATCHES, "mid20", "out20", inner=True, max_message_retries=1, dead_letter_topic="dead20",
        class_name="code_of_mesh.process_batch",
    )  # fmt: skip
    for private in (False, True):
        work = meshes.work(
            meshes.step(A.format("a") if not private else A.format(""), "in20", "mid20", name=f"first20{private}"),
            batches if not private else replace(batches, spec=replace(batches.spec, name="again20", output="out20b")),
            meshes.step(A.format("z"), "out20b" if private else "out20", f"end20{private}", inner=True),
            private=frozenset({"out20b"} if private else ()),
        )
        if not private:
            meshes.broker.produce("in20", [(f"k{number}", str(number)) for number in range(5)])
        else:
            meshes.broker.produce("in20", [("k", "bad"), ("k", "last")])
        rows = meshes.drain(work)
        assert (sum(row["user_exceptions"] for row in rows) > 0) == private
    assert Counter(meshes.values("out20")) == Counter(f"{number}a!" for number in range(5))
    assert Counter(meshes.values("end20False")) == Counter(f"{number}a!z" for number in range(5))
    keyed = {(r.key or b"").decode(): (r.value or b"").decode() for r in meshes.broker.records("end20False")}
    assert set(keyed) <= {"", *(f"k{number}" for number in range(5))}
    assert Counter(meshes.values("end20True")) == Counter([*(f"{number}!z" for number in range(5)), "last!z"])
    assert [r.value for r in meshes.broker.records("dead20", isolation_level="read_committed")] == [b"bad"]


MANUAL = """
HELD = []

def process(text: str, context) -> str:
    HELD.append(context.get_message_id())
    if text == "now":
        for message in HELD:
            context.ack(message, context.get_current_message_topic_name())
        HELD.clear()
    return text
"""


def test_what_a_function_acknowledges_is_committed_and_nothing_else(meshes: Meshes) -> None:
    meshes.broker.create_topic("in21", partitions=1)
    step = meshes.step(MANUAL, "in21", "out21", processing_guarantees=Guarantee.MANUAL)
    work = replace(meshes.work(step, is_whole=True), once=True)
    meshes.broker.produce("in21", ["1", "2", "now", "3"])
    meshes.drain(work)
    assert meshes.broker.committed("public/default/out21") == {("in21", 0): 3}
    assert ["in21", 0, 4] in next(told["reached"] for told in meshes.told if "reached" in told)
    planner = Planner(work)
    assert (planner.lag(), planner.left({("in21", 0): 4})) == (1, 0), "what nobody acknowledged is called again"
    planner.shares()
    assert not planner.has_work(), "all was called once"
    meshes.broker.produce("in21", ["now"])
    assert planner.has_work()
    meshes.drain(work)
    assert planner.lag() == 0
    planner.close()


SLOW_AGAIN = """
import time
TRIES = []

def process(text: str, context) -> str:
    TRIES.append(text)
    if TRIES == ["1"]:
        raise ValueError("not now")
    if text == "1":
        time.sleep(0.5)  # longer than it takes until the task looks if its batch is over
    context.ack(context.get_message_id(), context.get_current_message_topic_name())
    return text
"""


def test_a_batch_goes_on_while_a_record_is_tried_again_and_others_wait_for_it(meshes: Meshes) -> None:
    meshes.broker.create_topic("in34", partitions=1)
    step = meshes.step(SLOW_AGAIN, "in34", "out34", processing_guarantees=Guarantee.MANUAL, retain_key_ordering=True)
    meshes.broker.produce("in34", [("k", "1"), ("k", "2"), ("k", "3")])
    meshes.drain(replace(meshes.work(step, is_whole=True), once=True))
    assert meshes.values("out34") == ["1", "2", "3"]
    assert meshes.broker.committed("public/default/out34") == {("in34", 0): 3}
