"""`kop spark` with a PySpark that only says what it was started with; conformance has the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.cli_support import REPOSITORY, environment

SAY = """import json, os, sys
names = ("KOP_BOOTSTRAP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH")
print(json.dumps([sys.argv[1:], {name: os.environ.get(name) for name in names}]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder for the path with a PySpark and a Java."""
    package = tmp_path / "lib" / "pyspark"
    (package / "bin").mkdir(parents=True)
    (package / "__init__.py").touch()
    shell = package / "bin" / "pyspark"
    shell.write_text(f"#!{sys.executable}\n{SAY}")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    for program in (shell, java):
        program.chmod(0o755)
    return tmp_path


def run(home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    variables = environment(
        PYTHONPATH=os.pathsep.join([str(home / "lib"), str(REPOSITORY)]), PATH=str(home / "bin"), **more
    )
    variables.pop("JAVA_HOME", None)
    command = [sys.executable, "-m", "kop.cli.main", "spark", *arguments]
    return subprocess.run(command, env=variables | more, capture_output=True, text=True, check=False, timeout=120)


def test_a_script_gets_its_arguments_and_the_environment(home: Path) -> None:
    script = home / "script.py"
    script.write_text(SAY)
    done = run(home, "--bootstrap", "there:1", str(script), "--day", "monday", "x")
    assert done.returncode == 0, done.stderr
    arguments, variables = json.loads(done.stdout)
    assert arguments == ["--day", "monday", "x"]
    assert variables["KOP_BOOTSTRAP"] == "there:1"
    assert variables["PYSPARK_PYTHON"] == variables["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_options_behind_the_script_are_its_own(home: Path) -> None:
    script = home / "script.py"
    script.write_text(SAY)
    done = run(home, str(script), "--bootstrap", "other:1", "--help", "-b", "x", KOP_BOOTSTRAP="there:3")
    assert done.returncode == 0, done.stderr
    arguments, variables = json.loads(done.stdout)
    assert arguments == ["--bootstrap", "other:1", "--help", "-b", "x"]
    assert variables["KOP_BOOTSTRAP"] == "there:3"
    done = run(home, "--master", "local[2]")
    assert (done.returncode, "No such option" in done.stderr) == (2, True)


def test_without_a_script_it_is_the_shell(home: Path) -> None:
    done = run(home, KOP_BOOTSTRAP="there:2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[1]["KOP_BOOTSTRAP"] == "there:2"
    assert "there:2" in done.stderr


def test_what_is_not_there_is_said(home: Path) -> None:
    done = run(home, JAVA_HOME=str(home / "nowhere"))
    assert (done.returncode, "Java 17" in done.stderr) == (1, True)
    (home / "bin" / "java").unlink()
    done = run(home)
    assert (done.returncode, "no java on PATH" in done.stderr) == (1, True)
    done = run(home, "missing.py")
    assert (done.returncode, "missing.py" in done.stderr) == (2, True)
