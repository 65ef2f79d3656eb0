"""Each row once, whatever an attempt dies of: the sink's protocol against a running broker, without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from spark.sink_kit import POINTS, GivenUpError, Sink, read

from kop.client.errors import FencedError
from kop.spark.exactly_once import GROUP_PREFIX, MARKER_TOPIC, Digest, Marker, SinkError
from kop.spark.sink_columns import SinkColumns, schema
from kop.testing import Broker


@pytest.fixture(scope="module", params=["memory:", "sqlite"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    store = request.param if request.param != "sqlite" else f"sqlite:{tmp_path_factory.mktemp('sink') / 'kop.db'}"
    with Broker(store=store, num_partitions=3) as made:
        yield made


@pytest.fixture
def sink(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Sink]:
    name = f"{abs(hash(request.node.name)):x}"
    with Sink(broker.bootstrap, f"sink-{name}", f"topic-{name}") as made:
        yield made


def values(batch: int, task: int, count: int = 8) -> list[str]:
    return [f"b{batch}-t{task}-{number}" for number in range(count)]


def whole(sink: Sink, batch: int) -> list[str]:
    """Write a batch without a failure; its values."""
    for task in range(sink.tasks):
        sink.write(batch, task, sink.rows(values(batch, task)))
    return [value for task in range(sink.tasks) for value in values(batch, task)]


@pytest.mark.parametrize("point", POINTS)
def test_a_task_that_dies_anywhere_is_repeated_without_loss_or_duplicates(sink: Sink, point: str) -> None:
    wanted = whole(sink, 0)
    with pytest.raises(GivenUpError):
        sink.write(1, 0, sink.rows(values(1, 0)), give_up=point)
    sink.write(1, 1, sink.rows(values(1, 1)))
    # Another driver plans the batch again: the rows come in another order and in other pieces.
    shuffled = random.Random(point).sample(values(1, 0), 8)
    outcome = sink.write(1, 0, sink.rows(shuffled, size=5))
    assert outcome == (8, point == "after end")
    assert sink.write(1, 1, sink.rows(values(1, 1))) == (8, True)
    wanted += values(1, 0) + values(1, 1) + whole(sink, 2)
    assert sink.committed() == sorted(wanted)


def test_any_number_of_deaths_over_many_batches(sink: Sink) -> None:
    chance = random.Random(7)
    wanted: list[str] = []
    for batch in range(6):
        left = set(range(sink.tasks))
        while left:  # each round is an attempt of the whole batch, until all tasks of one round have ended
            left = set()
            for task in range(sink.tasks):
                point = chance.choice(("", *POINTS))
                rows = sink.rows(values(batch, task), size=chance.randrange(1, 9))
                try:
                    sink.write(batch, task, rows, give_up=point)
                except GivenUpError:
                    left.add(task)
        wanted += [value for task in range(sink.tasks) for value in values(batch, task)]
    assert sink.committed() == sorted(wanted)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_attempt_that_lives_on_beside_a_newer_one_writes_nothing(sink: Sink, after: int) -> None:
    """Spark took the executor for dead; it is not."""

    def rows_of_the_old_one() -> Iterator[pa.RecordBatch]:
        batches = sink.rows(values(0, 0), size=2)
        yield from batches[:after]
        assert sink.write(0, 0, sink.rows(values(0, 0))) == (8, False)
        yield from batches[after:]

    with pytest.raises(FencedError):
        sink.write(0, 0, rows_of_the_old_one())
    assert sink.committed() == sorted(values(0, 0))
    assert sink.write(0, 0, sink.rows(values(0, 0))) == (8, True)


def test_an_attempt_that_wakes_up_after_its_last_row_writes_nothing(sink: Sink) -> None:
    def rows_of_the_old_one() -> Iterator[pa.RecordBatch]:
        yield from sink.rows(values(0, 0))
        sink.write(0, 0, sink.rows(values(0, 0)))
        sink.write(1, 0, sink.rows(values(1, 0)))

    with pytest.raises(FencedError):
        sink.write(0, 0, rows_of_the_old_one())
    assert sink.committed() == sorted(values(0, 0) + values(1, 0))


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(values(1, 0)[1:], id="one less"),
        pytest.param([*values(1, 0), "new"], id="one more"),
        pytest.param([*values(1, 0)[1:], "other"], id="another"),
        pytest.param([*values(1, 0)[1:], values(1, 0)[1]], id="one twice"),
        pytest.param([], id="none"),
    ],
)
def test_a_batch_that_gives_other_rows_is_refused(sink: Sink, now: list[str]) -> None:
    wanted = whole(sink, 0)
    sink.write(1, 0, sink.rows(values(1, 0)))
    with pytest.raises(SinkError, match="batch 1 is not deterministic and was partly committed"):
        sink.write(1, 0, sink.rows(now))
    assert sink.committed() == sorted(wanted + values(1, 0))


def test_what_was_not_committed_may_be_other_rows(sink: Sink) -> None:
    """Nobody has seen the first ones."""
    with pytest.raises(GivenUpError):
        sink.write(0, 0, sink.rows(["first"]), give_up="after commit")
    sink.write(0, 0, sink.rows(["second"]))
    assert sink.committed() == ["second"]


@pytest.mark.parametrize("tasks", [1, 3])
def test_another_number_of_tasks_is_refused(sink: Sink, tasks: int) -> None:
    wanted = whole(sink, 0)
    for batch in (0, 1):
        with pytest.raises(SinkError, match=r"written by 2 tasks so far.*go back to 2 tasks"):
            sink.write(batch, tasks - 1, sink.rows(["x"]), tasks=tasks)
    assert sink.committed() == sorted(wanted)


def test_the_first_batch_too_knows_how_many_tasks_began_it(sink: Sink) -> None:
    sink.write(0, 0, sink.rows(["a"]))
    with pytest.raises(SinkError, match="written by 2 tasks so far"):
        sink.write(0, 1, sink.rows(["b"]), tasks=3)  # it has no marker of its own


def test_more_tasks_than_were_promised_are_refused(sink: Sink) -> None:
    with pytest.raises(SinkError, match=r"exactlyOnceTasks says that 2 tasks.*repartition\(2"):
        sink.write(0, 2, sink.rows(["x"]))


def test_a_lost_marker_is_refused(sink: Sink) -> None:
    with pytest.raises(SinkError, match=r"no marker of the batches before.*exactlyOnceFrom=4"):
        sink.write(4, 0, sink.rows(["x"]))
    assert sink.write(4, 0, sink.rows(["x"]), first_batch=4) == (1, False)
    assert sink.write(5, 0, sink.rows(["y"]), first_batch=4) == (1, False)
    with pytest.raises(SinkError, match="no marker"):
        sink.write(5, 1, sink.rows(["z"]), first_batch=4)
    assert sink.committed() == ["x", "y"]


def test_a_checkpoint_from_the_past_is_refused(sink: Sink) -> None:
    whole(sink, 0)
    wanted = whole(sink, 1)
    with pytest.raises(SinkError, match="batches up to 1 were committed under this name already"):
        sink.write(0, 0, sink.rows(values(0, 0)))
    assert set(wanted) < set(sink.committed())


def test_a_marker_of_somebody_else_is_refused(sink: Sink) -> None:
    client = sink.client()
    client.partitions_at_least(MARKER_TOPIC, 2)
    assert client.commit(GROUP_PREFIX + sink.name, {(MARKER_TOPIC, 1): 1}) == {}
    with pytest.raises(SinkError, match="another exactlyOnceId"):
        sink.write(0, 0, sink.rows(["x"]))


def test_tasks_without_rows_leave_a_marker(sink: Sink) -> None:
    assert sink.write(0, 0, []) == (0, False)
    assert sink.write(0, 0, []) == (0, True)
    assert sink.write(1, 0, sink.rows(["x"])) == (1, False)
    assert sink.committed() == ["x"]


def test_rows_without_a_key_go_to_every_partition_in_the_end(sink: Sink) -> None:
    columns = SinkColumns.of([("value", "string")], sink.topic)
    for batch in range(3):
        for task in range(sink.tasks):
            sink.write(batch, task, [columns.batch(pa.record_batch({"value": ["v"]}))])
    used = [record.partition for _, record in read(sink.bootstrap, sink.topic)]
    assert sorted(used) == [0, 0, 1, 1, 2, 2]


def test_one_client_writes_one_batch_after_the_other(sink: Sink) -> None:
    """A worker process keeps its connections, and what it knows of the cluster."""
    client = sink.client()
    wanted: list[str] = []
    for batch in range(4):
        for task in (1, 0):
            sink.write(batch, task, sink.rows(values(batch, task)), client=client)
            wanted += values(batch, task)
    assert sink.committed() == sorted(wanted)


def test_the_marker_topic_gets_as_many_partitions_as_there_are_tasks(sink: Sink) -> None:
    client = sink.client()
    for tasks in (2, 7, 3):
        name = f"{sink.name}-{tasks}"
        with Sink(sink.bootstrap, name, sink.topic, tasks) as other:
            assert other.write(0, tasks - 1, other.rows([f"of {tasks}"])) == (1, False)
    assert len(client.leaders(MARKER_TOPIC, make=False)) >= 7
    assert sink.committed() == ["of 2", "of 3", "of 7"]


def test_markers_outlast_the_broker(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'kop.db'}"
    with Broker(store=store) as broker, Sink(broker.bootstrap, "s", "t") as sink:
        whole(sink, 0)
        with pytest.raises(GivenUpError):
            sink.write(1, 0, sink.rows(values(1, 0)), give_up="after commit")
    with Broker(store=store) as broker, Sink(broker.bootstrap, "s", "t") as sink:
        assert sink.write(1, 1, sink.rows(values(1, 1))) == (8, False)
        assert sink.write(1, 0, sink.rows(values(1, 0))) == (8, False)
        assert len(sink.committed()) == 32


# -- digest and marker


def test_the_digest_tells_fields_apart() -> None:
    def text(**row: object) -> str:
        digest = Digest()
        digest.add(pa.RecordBatch.from_pylist([{"topic": "t", "value": b"v"} | row], schema=schema()))
        return digest.text()

    header = {"key": "h", "value": b"x"}
    rows: list[dict[str, object]] = [
        {},
        {"value": None},
        {"value": b""},
        {"key": b""},
        {"key": b"v", "value": None},
        {"key": b"v", "value": b""},
        {"topic": "tt"},
        {"partition": 0},
        {"partition": 1},
        {"headers": [header]},
        {"headers": [header, header]},
        {"headers": [{"key": "h", "value": None}]},
        {"headers": [{"key": "hx", "value": b""}]},
        {"timestamp": 0},
        {"timestamp": 1000},
    ]
    assert len({text(**row) for row in rows}) == len(rows)


def test_the_digest_knows_neither_order_nor_pieces() -> None:
    with Sink("", "s", "t") as sink:
        names = [f"v{number}" for number in range(20)]
        texts = set()
        for seed in range(5):
            digest = Digest()
            for batch in sink.rows(random.Random(seed).sample(names, 20), size=seed + 1):
                digest.add(batch)
            texts.add((digest.rows, digest.text()))
        assert len(texts) == 1


def test_a_marker_reads_what_it_wrote() -> None:
    marker = Marker(7, 3, 12_345_678, "ab" * 16)
    assert Marker.read(7, marker.metadata()) == marker
    assert len(marker.metadata()) < 100


@pytest.mark.parametrize(
    "metadata", ["", "text", "[]", "{}", '{"v": 2, "tasks": 1, "rows": 1, "digest": ""}', '{"v": 1}']
)
def test_metadata_that_is_no_marker(metadata: str) -> None:
    with pytest.raises(SinkError, match="give the sink another exactlyOnceId"):
        Marker.read(1, metadata)
