"""`make test` tries a few failed tests again, alone, and says so: support/second_attempt.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import second_attempt

CHANCE = """
import pathlib
def test_chance():
    seen = pathlib.Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError
def test_right():
    assert True
"""
WRONG = "import pytest\n@pytest.mark.parametrize('number', range({}))\ndef test_wrong(number):\n    assert number < 0\n"


@pytest.mark.parametrize(
    ("text", "status", "runs"),
    [
        pytest.param("def test_right():\n    assert True\n", 0, 1, id="nothing fails"),
        pytest.param(CHANCE, 0, 2, id="one fails once"),
        pytest.param(WRONG.format(1), 1, 2, id="one fails twice"),
        pytest.param(WRONG.format(second_attempt.MOST + 1), 1, 1, id="too many fail"),
        pytest.param("import nothing_of_this_name\n", 2, 1, id="a module cannot be read"),
    ],
)
def test_few_failures_have_a_second_attempt(text: str, status: int, runs: int, tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, second_attempt.__file__, "-n", "0", "-p", "no:randomly", "test_sample.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stdout
    assert ended.stdout.count("= test session starts =") == runs
    last = ended.stdout.splitlines()[-1]
    assert ("to be mended: test_sample.py::test_chance" in last) == (text is CHANCE)


def test_a_second_attempt_is_alone() -> None:
    arguments = ["-n", "3", "--dist", "worksteal", "-m", "not slow", "-n", "2"]
    assert second_attempt.without_workers(arguments) == ["-m", "not slow"]
