"""What docs/functions.md shows of Python, run as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from kop.cli.main import cli
from kop.functions.config_reading import read
from kop.functions.function import load
from kop.functions.serdes import input_serde, output_serde

PAGE = (Path(__file__).parents[2] / "docs" / "functions.md").read_text()


def blocks(heading: str, language: str) -> list[str]:
    """The blocks of a section."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [text for kind, text in fenced if kind == language]


@pytest.mark.timeout(60)
def test_the_test_of_the_page_passes(tmp_path: Path) -> None:
    (text,) = blocks("In a test", "python")
    (tmp_path / "test_shout.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(tmp_path)]
    outcome = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_the_definition_of_the_page_is_right() -> None:
    text = next(text for text in blocks("Configuration", "yaml") if "className" in text)
    spec, notes = read(text, "page")
    assert (spec.name, notes) == ("shout", [])


@pytest.fixture
def shout(tmp_path: Path) -> Iterator[Path]:
    """The first function of the page."""
    (text,) = re.findall(r"^```python\n(# shout\.py\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "shout.py").write_text(text)
    before = list(sys.path)
    yield tmp_path / "shout.py"
    sys.path[:] = before


def test_the_trial_of_the_page_prints_what_it_says(shout: Path) -> None:
    commands, (printed,) = blocks("Trying out", "sh")[0], blocks("Trying out", "")
    sample = re.findall(r"echo '(.*)' > samples\.jsonl", commands)[0]
    samples = shout.parent / "samples.jsonl"
    samples.write_text(sample + "\n")
    flags = ["--py", str(shout), "--classname", "shout", "--input", str(samples)]
    outcome = CliRunner().invoke(cli, ["functions", "test", *flags])
    assert (outcome.exit_code, outcome.stdout) == (0, printed), outcome.output


def test_the_annotated_function_of_the_page(tmp_path: Path) -> None:
    text = blocks("Annotations", "python")[0]
    (tmp_path / "orders_of_the_page.py").write_text(text)
    code = load(tmp_path / "orders_of_the_page.py", "orders_of_the_page")
    spec, _ = read(json.dumps({"className": "orders_of_the_page", "py": "x.py", "inputs": ["a"], "output": "b"}), "x")
    order = input_serde(spec, "a", code).deserialize(b'{"id": 1, "amount": 100}')
    assert output_serde(spec, code).serialize(code.call(order, None)) == b'{"id":1,"large":true}'


def test_the_commands_of_the_page_are_there() -> None:
    commands = cli.get_command(None, "functions").commands  # type: ignore[arg-type, union-attr]
    table = re.findall(r"^\| ((?:`[a-z]+`(?:, )?)+) \|", textwrap.dedent(PAGE), re.MULTILINE)
    named = {name for row in table for name in re.findall(r"`([a-z]+)`", row)}
    assert commands.keys() <= named
    used = set(re.findall(r"^kop functions ([a-z]+)", PAGE, re.MULTILINE))
    assert used <= commands.keys()
    flags = {
        flag
        for text in re.findall(r"^kop functions .*$", PAGE, re.MULTILINE)
        for flag in re.findall(r"--[a-z-]+", text)
    }
    known = {opt for one_of in commands.values() for p in one_of.params for opt in p.opts}
    assert flags <= known
