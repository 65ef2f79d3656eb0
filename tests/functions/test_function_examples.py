"""The examples of deploy/examples/functions, with the flags that their README gives them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from support.waiting import wait_until

from kop.testing import Broker
from kop.testing.functions import Functions, TestFunction

FOLDER = Path(__file__).parents[2] / "deploy" / "examples" / "functions"
COMMANDS = re.findall(r"^kop functions localrun (.*)$", (FOLDER / "README.md").read_text(), re.MULTILINE)


def run(functions: Functions, file: str) -> TestFunction:
    """Start an example with the flags of the one command that names its file."""
    (command,) = [shlex.split(line) for line in COMMANDS if f"--py {file} " in line]
    flags = {
        flag.removeprefix("--").replace("-", "_"): text for flag, text in zip(command[::2], command[1::2], strict=True)
    }
    return functions(flags.pop("classname"), **flags | {"py": str(FOLDER / file)})


def jsons(broker: Broker, topic: str) -> list[object]:
    return [json.loads(record.value or b"") for record in broker.records(topic, isolation_level="read_committed")]


def test_there_is_one_command_for_each_example() -> None:
    assert len(COMMANDS) == len(list(FOLDER.glob("*.py")))


def test_filter(kop_broker: Broker, kop_functions: Functions) -> None:
    function = run(kop_functions, "large_orders.py")
    kop_broker.produce("orders", ['{"id": 1, "amount": 250}', '{"id": 2, "amount": 99}', '{"id": 3, "amount": 100}'])
    wait_until(lambda: function.processed == 3)
    function.stop()
    assert jsons(kop_broker, "large-orders") == [{"id": 1, "amount": 250}, {"id": 3, "amount": 100}]


def test_route_by_content(kop_broker: Broker, kop_functions: Functions) -> None:
    function = run(kop_functions, "route.py")
    orders = [{"id": number, "country": country} for number, country in enumerate(["de", "fr", "de", "it"])]
    kop_broker.produce("orders", map(json.dumps, orders))
    wait_until(lambda: function.processed == 4)
    function.stop()
    assert jsons(kop_broker, "orders-de") == [orders[0], orders[2]]
    assert jsons(kop_broker, "orders-other") == [orders[1], orders[3]]
    assert kop_broker.committed("public/default/RouteFunction") == {("orders", 0): 4}


def test_enrich_from_a_table_topic(kop_broker: Broker, kop_functions: Functions) -> None:
    function = run(kop_functions, "enrich.py")
    kop_broker.produce("orders", ['{"id": 1, "customer": "c1"}'])
    wait_until(lambda: function.failures == 1)
    kop_broker.produce("customers", [("c1", '{"name": "Ann"}')])
    wait_until(lambda: function.processed == 2)
    kop_broker.produce("customers", [("c1", '{"name": "Bob"}')])
    wait_until(lambda: function.processed == 3)
    kop_broker.produce("orders", ['{"id": 2, "customer": "c1"}'])
    wait_until(lambda: function.processed == 4)
    kop_broker.produce("customers", [("c1", None)])
    wait_until(lambda: function.processed == 5)
    failures = function.failures
    kop_broker.produce("orders", ['{"id": 3, "customer": "c1"}'])
    wait_until(lambda: function.failures > failures)
    function.stop()
    assert jsons(kop_broker, "named-orders") == [
        {"id": 1, "customer": "c1", "name": "Ann"},
        {"id": 2, "customer": "c1", "name": "Bob"},
    ]


def test_word_count(kop_broker: Broker, kop_functions: Functions) -> None:
    function = run(kop_functions, "word_count.py")
    kop_broker.produce("lines", ["to be or not to be", "not 2 be"])
    wait_until(lambda: function.processed == 2)
    state = function.query_state("be")
    assert state is not None
    assert state.number == 3
    function.stop()
    lines = [record.value for record in kop_broker.records("counts", isolation_level="read_committed")]
    assert lines == [b"to=2 be=2 or=1 not=1", b"not=2 2=1 be=3"]


def test_windowed_average(kop_broker: Broker, kop_functions: Functions) -> None:
    function = run(kop_functions, "average.py")
    kop_broker.produce("temperatures", [f'{{"celsius": {number}}}' for number in (20, 21.5, 23)])
    wait_until(lambda: kop_broker.committed("public/default/average") == {("temperatures", 0): 3})
    function.stop()
    averages: list[Any] = jsons(kop_broker, "averages")
    assert sum(window["readings"] for window in averages) == 3
    assert sum(window["average"] * window["readings"] for window in averages) == 64.5


def test_dead_letters(kop_broker: Broker, kop_functions: Functions) -> None:
    function = run(kop_functions, "payments.py")
    kop_broker.produce("payments", ['{"id": 1, "amount": "2.50"}', '{"id": 2, "amount": "-1"}', '{"id": 3}', "?"])
    wait_until(lambda: kop_broker.committed("public/default/PaymentFunction") == {("payments", 0): 4})
    function.stop()
    assert jsons(kop_broker, "booked") == [{"id": 1, "amount": "2.50", "cents": 250}]
    dead = {record.value: dict(record.headers)["__pfn_exception__"] for record in kop_broker.records("payments-dead")}
    assert dead[b'{"id": 2, "amount": "-1"}'] == b"ValueError: an amount of -100 cents"
    assert dead[b'{"id": 3}'] == b"KeyError: 'amount'"
    assert len(dead) == 3
