"""What `write_stream` asks of PySpark, which is a recorder here; conformance runs it with the real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kop.spark.given import OptionError
from kop.spark.streams import write_stream

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "t"}
EXACTLY = SERVERS | {"deliveryGuarantee": "exactly-once", "exactlyOnceTasks": 4}


class Recorder:
    """Notes every call, in order, and answers each with itself."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **named: Any) -> Recorder:
            self.calls.append((name, args, named))
            return self

        return call

    def options_of(self, name: str) -> Any:
        return next((args or named) for called, args, named in self.calls if called == name)


def started(options: dict[str, Any], columns: list[str], query_id: str | None = "query", **more: Any) -> Any:
    """The streaming query's calls, and those of its batch 7."""
    stream, written = Recorder(), Recorder()
    context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": query_id}.get)
    session = SimpleNamespace(sparkContext=context)
    frame = SimpleNamespace(columns=columns, writeStream=stream, sparkSession=session)
    write_stream(frame, options=options, checkpoint="/c", **more)
    repartitions: list[tuple[Any, ...]] = []
    batch = SimpleNamespace(write=written, sparkSession=session)

    def repartition(*how: Any) -> Any:
        repartitions.append(how)
        return batch

    batch.repartition = repartition
    stream.options_of("foreachBatch")[0](batch, 7)
    return stream, written, repartitions


def test_each_batch_is_written_by_the_data_source() -> None:
    stream, written, repartitions = started(SERVERS, ["value"], output_mode="update", trigger={"availableNow": True})
    assert stream.options_of("outputMode") == ("update",)
    assert stream.options_of("trigger") == {"availableNow": True}
    assert stream.options_of("option") == ("checkpointLocation", "/c")
    assert stream.calls[-1][0] == "start"
    assert [name for name, *_ in written.calls] == ["format", "options", "mode", "save"]
    assert (written.options_of("format"), written.options_of("options")) == (("kop",), SERVERS)
    assert repartitions == []


@pytest.mark.parametrize(
    ("columns", "by", "how"),
    [
        (["key", "value"], (), (4, "key")),
        (["KEY", "value"], (), (4, "key")),
        (["value"], (), (4,)),
        (["key", "value", "topic"], ("topic", "key"), (4, "topic", "key")),
    ],
)
def test_a_batch_that_is_written_once_has_its_tasks_and_its_name(
    columns: list[str], by: tuple[str, ...], how: tuple[Any, ...]
) -> None:
    _, written, repartitions = started(EXACTLY, columns, repartition_by=by)
    assert repartitions == [how]
    named = {"exactlyOnceTasks": "4", "exactlyOnceId": "query", "exactlyOnceBatch": "7"}
    assert written.options_of("options") == EXACTLY | named


def test_a_name_that_was_given_is_kept() -> None:
    _, written, _ = started(EXACTLY | {"exactlyonceid": "mine"}, ["value"], query_id=None)
    assert written.options_of("options")["exactlyonceid"] == "mine"
    assert "exactlyOnceId" not in written.options_of("options")


def test_without_a_name_there_is_nothing_to_know_a_repeated_batch_by() -> None:
    with pytest.raises(ValueError, match="set exactlyOnceId to a name of this query"):
        started(EXACTLY, ["value"], query_id=None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (EXACTLY | {"exactlyOnceTasks": "two"}, "set exactlyOnceTasks to another value: 'two' is no whole number"),
        (SERVERS | {"topik": "t"}, "option topik .* did you mean topic"),
        (SERVERS | {"deliveryGuarantee": "exactly-once"}, "set exactlyOnceTasks to the number of tasks"),
    ],
)
def test_options_that_cannot_be_kept_are_refused_before_the_query_starts(options: dict[str, str], says: str) -> None:
    frame = SimpleNamespace(columns=["value"], writeStream=Recorder(), sparkSession=SimpleNamespace(sparkContext=1))
    with pytest.raises(OptionError, match=says):
        write_stream(frame, options=options, checkpoint="/c")
    assert frame.writeStream.calls == []


def test_a_session_of_spark_connect_has_to_be_told_a_name() -> None:
    frame = SimpleNamespace(columns=["value"], writeStream=Recorder(), sparkSession=SimpleNamespace())
    with pytest.raises(OptionError, match="set exactlyOnceId to a name of this query"):
        write_stream(frame, options=EXACTLY, checkpoint="/c")
    write_stream(frame, options=EXACTLY | {"exactlyOnceId": "mine"}, checkpoint="/c")
    assert frame.writeStream.calls[-1][0] == "start"
