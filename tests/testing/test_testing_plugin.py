"""The pytest plugin as a project gets it that has kop installed; and every example of docs/testing.md."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from support.waiting import SECONDS

DOCS = Path(__file__).parents[2] / "docs" / "testing.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.DOTALL | re.MULTILINE)


def run(directory: Path, texts: Sequence[str], *options: str) -> str:
    """Run pytest on files of these texts in a process of its own; returns what it printed."""
    for number, text in enumerate(texts):
        (directory / f"test_example_{number}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *options]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_pytest_finds_the_plugin_where_kop_is_installed() -> None:
    (plugin,) = [point for point in entry_points(group="pytest11") if point.name == "kop"]
    assert plugin.value == "kop.testing.plugin"


def test_there_are_examples_for_the_three_clients() -> None:
    text = "".join(EXAMPLES)
    assert all(f"from {client} import" in text for client in ("kafka", "aiokafka", "confluent_kafka"))


def test_examples_of_the_docs_run(tmp_path: Path) -> None:
    tests = sum(text.count("def test_") for text in EXAMPLES)
    assert f"{tests} passed" in run(tmp_path, EXAMPLES, "--strict-markers")


def test_fixtures_give_the_brokers_that_the_docs_say(tmp_path: Path) -> None:
    text = """
import pytest

seen = []

def test_one(kop_broker, kop_shared_broker):
    seen.append((kop_broker, kop_shared_broker, kop_shared_broker.bootstrap))
    kop_shared_broker.create_topic("one")

def test_two(kop_broker, kop_shared_broker):
    (broker, shared, bootstrap), = seen
    assert broker is not kop_broker
    assert shared is kop_shared_broker and bootstrap == shared.bootstrap
    with pytest.raises(RuntimeError):
        broker.bootstrap
    with pytest.raises(Exception, match="already exists"):
        kop_shared_broker.create_topic("one")

def test_three(kop_broker, kop_broker_factory):
    others = [kop_broker_factory() for _ in range(3)]
    assert len({one.bootstrap for one in (kop_broker, *others)}) == 4
"""
    assert "3 passed" in run(tmp_path, [text], "-W", "error", "--strict-markers")


def test_a_run_that_uses_none_of_it_imports_nothing_of_the_broker(tmp_path: Path) -> None:
    text = """
import sys

def test_nothing():
    heavy = {"asyncio", "kafka", "aiohttp", "uvloop", "pydantic", "prometheus_client"}
    ours = {name for name in sys.modules if name.split(".")[0] == "kop"}
    assert ours == {"kop", "kop.testing", "kop.testing.plugin"}
    assert not heavy & set(sys.modules)
"""
    # Only this plugin: others that are installed here import some of these themselves.
    others = [f"-pno:{point.name}" for point in entry_points(group="pytest11") if point.name != "kop"]
    assert "1 passed" in run(tmp_path, [text], *others)
