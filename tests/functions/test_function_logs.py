"""The log topic of a function."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from functions.function_kit import spec_with
from functions.instance_kit import values
from support.waiting import wait_until

from kop.client.properties import connection
from kop.functions.config_reading import from_flags
from kop.functions.function import CodePlace
from kop.functions.instance import logger_of
from kop.functions.logs import Allowance, LogTopic
from kop.functions.process import Processes, WantedInstance
from kop.testing import Broker
from kop.testing.functions import Functions


def test_what_may_be_logged_is_bounded_by_records_and_by_bytes() -> None:
    allowance = Allowance(0.0, records=10, size=1_000)
    assert [allowance.take(1, 0.0) for _ in range(21)] == [True] * 20 + [False]
    assert [allowance.take(1, 0.5) for _ in range(6)] == [True] * 5 + [False]
    assert not allowance.take(2_001, 100.0)
    assert allowance.take(2_000, 100.0)
    assert not allowance.take(1, 100.0)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        made.create_topic("log")
        yield made


@pytest.fixture
def settings(broker: Broker) -> Any:
    return connection({"bootstrap.servers": broker.bootstrap}, "test").settings


def test_a_function_logs_to_its_topic_and_no_other_one_does(broker: Broker, tmp_path: Path) -> None:
    def careful(text: str, context: Any) -> None:
        context.get_logger().info("saw %s", text)
        if text == "b":
            raise ValueError("not this one")

    def other(text: str, context: Any) -> None:
        context.get_logger().warning("other")

    root = list(logging.getLogger().handlers)
    with Functions(broker.bootstrap, tmp_path) as functions:
        function = functions(careful, inputs="in", log_topic="log", max_message_retries=0, dead_letter_topic="dead")
        second = functions(other, inputs="in")
        broker.produce("in", ["a", "b"])
        wait_until(lambda: function.processed == 1 and function.failures == 1 and second.processed == 2)
        wait_until(lambda: len(values(broker, "log")) == 3)
        assert logging.getLogger().handlers == root
    first, _, failed = broker.records("log")
    assert first.value == b"saw a"
    assert first.headers == (("loglevel", b"INFO"), ("fqn", b"public/default/careful"), ("instance", b"0"))
    assert b"the function failed" in (failed.value or b"")
    assert b"ValueError: not this one" in (failed.value or b"")
    assert dict(failed.headers)["loglevel"] == b"ERROR"
    assert logger_of(spec_with(name="careful"), 0).handlers == []


def test_what_is_printed_goes_to_the_topic_too(
    broker: Broker, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout, sys.stderr
    with LogTopic(spec_with(log_topic="log"), settings) as topic:
        topic.take_output()
        sys.stdout.write("out\n")
        sys.stderr.write("error\n")
        sys.stdout.write("no end")
    assert (sys.stdout, sys.stderr) == before
    records = [(record.value, dict(record.headers)["loglevel"]) for record in broker.records("log")]
    assert records == [(b"out", b"INFO"), (b"error", b"ERROR"), (b"no end", b"INFO")]
    assert capsys.readouterr() == ("out\nno end", "error\n")


def test_the_error_that_ends_a_function_is_logged(broker: Broker, settings: Any) -> None:
    with pytest.raises(RuntimeError), LogTopic(spec_with(log_topic="log"), settings):
        raise RuntimeError("the end")
    assert "RuntimeError: the end" in values(broker, "log")[0]


def test_the_end_of_a_process_that_was_killed_is_logged(broker: Broker, settings: Any, tmp_path: Path) -> None:
    broker.create_topic("in")
    codes = {
        "crashes": "import ctypes\ndef process(text: str) -> None:\n    ctypes.string_at(0)\n",
        "hangs": "import time\ndef process(text: str) -> None:\n    time.sleep(100)\n",
    }
    processes = Processes(settings, patience=10)
    try:
        wanted = {}
        for name, code in codes.items():
            path = tmp_path / f"{name}.py"
            path.write_text(code)
            flags = {"py": str(path), "classname": name, "inputs": "in", "log-topic": "log", "timeout-ms": 300}
            spec, _ = from_flags(flags)
            wanted[spec.fqfn, 0] = WantedInstance(spec, CodePlace(str(path)), (("in", 0),), 1, 1)
        processes.want(wanted)
        wait_until(lambda: all(broker.committed(name) for name, _ in wanted))
        broker.produce("in", ["a"])

        def told(name: str, *parts: str) -> bool:
            return any(all(part in text for part in (name, *parts)) for text in values(broker, "log"))

        wait_until(lambda: told("default/crashes has ended at in-0 offset 0", "SIGSEGV", "Segmentation fault"))
        wait_until(lambda: told("default/hangs has ended at in-0 offset 0", "longer than timeoutMs, 300 ms"))
    finally:
        processes.close()
    ends = [record for record in broker.records("log") if b"default/hangs has ended" in (record.value or b"")]
    assert dict(ends[0].headers) == {"loglevel": b"ERROR", "fqn": b"public/default/hangs", "instance": b"0"}


def test_what_is_too_much_is_dropped_and_counted(broker: Broker, settings: Any) -> None:
    with LogTopic(spec_with(log_topic="log"), settings, 3) as topic:
        for number in range(10_000):
            topic.put("INFO", str(number))
    texts = values(broker, "log")
    assert texts[:2_000] == [str(number) for number in range(2_000)]
    dropped = [int(text.split()[0]) for text in texts if "records of the log were dropped" in text]
    assert len(texts) - len(dropped) + sum(dropped) == 10_000
    assert {dict(record.headers)["instance"] for record in broker.records("log")} == {b"3"}


def test_a_log_topic_that_refuses_is_said_once_and_stops_nothing(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def loud(text: str, context: Any) -> str:
        context.get_logger().info(text)
        return text

    with Functions(broker.bootstrap, tmp_path) as functions:
        function = functions(loud, inputs="in", output="out", log_topic="no such topic")
        broker.produce("in", ["a"])
        told = ""

        def is_told() -> bool:
            nonlocal told
            told += capsys.readouterr().err
            return "cannot log to" in told

        wait_until(is_told)
        broker.produce("in", ["b"])
        wait_until(lambda: function.processed == 2)
        function.stop()
    assert values(broker, "out") == ["a", "b"]
    assert (told + capsys.readouterr().err).count("cannot log to") == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "kop-function-log"]
