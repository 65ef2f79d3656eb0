"""`kop functions test`: a function on records of a file, without a server."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.cli_support import Invoke
from click.testing import Result

from kop.functions import stand_in

FUNCTION = """
    from pulsar import Function

    class Count(Function):
        def process(self, input, context):
            if input == "bad":
                context.incr_counter("bad", 1)
                context.publish("other", "never")
                raise ValueError("no " + input)
            if input == "nack":
                context.nack(context.get_message_id(), context.get_current_message_topic_name())
            context.incr_counter(input, 1)
            context.record_metric("size", len(input))
            if input == "void":
                return None
            if input == "both":
                context.publish("other", b"\\xff", message_conf={"partition_key": "k", "properties": {"h": "v"}})
            return f"{context.get_message_key()}:{input}:{context.get_counter(input)}"
"""


class Trial:
    """Runs `kop functions test` with a file of its own."""

    def __init__(self, invoke: Invoke, folder: Path) -> None:
        self._invoke = invoke
        self.folder = folder

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    def __call__(self, records: list[Any], *flags: str, text: str = FUNCTION, name: str = "counts.Count") -> Result:
        py = self.write(f"{name.partition('.')[0]}.py", text)
        samples = self.write("samples.jsonl", "".join(json.dumps(record) + "\n" for record in records))
        return self._invoke("functions", "test", "--py", py, "--classname", name, "--input", samples, *flags)


@pytest.fixture
def try_out(invoke: Invoke, tmp_path: Path) -> Iterator[Trial]:
    import sys

    before = list(sys.path)
    yield Trial(invoke, tmp_path)
    sys.path[:] = before
    stand_in.uninstall()


def test_a_table_of_what_each_record_gave(try_out: Trial) -> None:
    values = ["a", "a", "both", "void"]
    outcome = try_out([{"key": f"k{number}", "value": value} for number, value in enumerate(values)])
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout == textwrap.dedent(
        """\
        #  INPUT  GAVE     TOPIC   KEY  VALUE
        1  a      output   output  -    k0:a:1
        2  a      output   output  -    k1:a:2
        3  both   output   output  -    k2:both:1
        3  both   publish  other   k    \\xff
        4  void   nothing  -       -    -

        STATE  VALUE
        a      2
        both   1
        void   1

        METRIC  COUNT  SUM
        size        4   10
        """
    )


def test_json_has_everything(try_out: Trial) -> None:
    records = [
        {
            "key": "k",
            "value": "both",
            "topic": "lines",
            "partition": 3,
            "timestamp": 5,
            "headers": [{"name": "n", "value": "v"}],
        }
    ]
    outcome = try_out(records, "--inputs", "lines", "--output", "loud", "--json")
    assert json.loads(outcome.stdout) == {
        "records": [
            {
                "input": {"key": "k", "value": "both"},
                "output": {"topic": "loud", "value": "k:both:1"},
                "publishes": [
                    {
                        "topic": "other",
                        "key": "k",
                        "value_base64": "/w==",
                        "headers": [{"name": "h", "value": "v"}],
                    }
                ],
                "acked": False,
                "error": None,
            }
        ],
        "state": {"both": 1},
        "metrics": {"size": {"count": 1, "sum": 4.0}},
    }


def test_a_failed_call_leaves_nothing_and_the_command_fails(try_out: Trial) -> None:
    outcome = try_out([{"value": "bad"}, {"value": "nack"}, {"value": "a"}])
    assert outcome.exit_code == 1
    rows = [line.split(maxsplit=5)[2:] for line in outcome.stdout.splitlines()[1:4]]
    assert rows == [
        ["failed", "-", "-", "ValueError: no bad (counts.py, line 9)"],
        ["failed", "-", "-", "the function called context.nack"],
        ["output", "output", "-", ":a:1"],
    ]
    assert outcome.stdout.splitlines()[5:7] == ["STATE  VALUE", "a      1"], "what failed has changed no state"
    assert "2 of 3 calls failed" in outcome.stderr


def test_serdes_async_functions_and_wrong_inputs(try_out: Trial) -> None:
    text = """
        async def process(order: dict) -> dict:
            return {"id": order["id"] + 1}
    """
    outcome = try_out([{"value": '{"id": 1}'}, {"value": "?"}, {"value": "{}"}], text=text, name="orders")
    start = outcome.stdout.index("VALUE")
    values = [line[start:] for line in outcome.stdout.splitlines()[1:4]]
    assert values[0] == '{"id":2}'
    assert values[1].startswith("SerdeError: ")
    assert values[2] == "KeyError: 'id' (orders.py, line 3)"


@pytest.mark.parametrize(
    ("records", "flags", "code", "said"),
    [
        ([1], (), 2, "record 1: is no JSON object"),
        ([{"value": "a"}, {"valeu": "a"}], (), 2, "record 2: has an unknown field 'valeu'"),
        ([{"value": "a", "topic": 5}], (), 2, "record 1: has a topic that is no string"),
        ([{"value": "a", "topic": "x"}], ("--inputs", "a,b"), 1, "x is no input of the function: a, b"),
        ([{"value": "a"}], ("--topics-pattern", "a.*"), 2, "has no topic, and the inputs are a pattern"),
        ([], ("--parallelism", "0"), 2, "--parallelism"),
        ([], ("--secrets", '{"A": {"env": "KOP_NO_SUCH"}}'), 1, "set the variable KOP_NO_SUCH"),
    ],
)
def test_wrong_use(try_out: Trial, records: list[Any], flags: tuple[str, ...], code: int, said: str) -> None:
    outcome = try_out(records, *flags)
    assert (outcome.exit_code, outcome.stdout) == (code, "")
    assert said in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_file_that_cannot_be_loaded(try_out: Trial) -> None:
    outcome = try_out([], text="def process(text: str)\n", name="broken")
    assert (outcome.exit_code, "SyntaxError" in outcome.stderr) == (1, True)


def test_a_definition_names_the_topics(try_out: Trial) -> None:
    config = try_out.write("f.yaml", "className: counts.Count\ninputs: [lines]\noutput: loud\n")
    outcome = try_out([{"value": "a"}], "--function-config-file", config)
    assert "loud" in outcome.stdout
    assert "output" in outcome.stdout.splitlines()[1]
