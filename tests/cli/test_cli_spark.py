"""`kop spark` with a PySpark that only says what it was started with; conformance has the real one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli.cli_support import REPOSITORY, environment

SAY = """import json, os, sys
names = ("KOP_BOOTSTRAP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "PYSPARK_SUBMIT_ARGS")
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
    done = run(home, "--day", "monday")
    assert (done.returncode, "No such option" in done.stderr) == (2, True)


OPTIONS = ("--master", "spark://there:7077", "--packages", "a:b:1", "--conf", "spark.x=a b=c", "--conf", "spark.y=")


def test_options_of_spark_are_given_to_a_script(home: Path) -> None:
    script = home / "script.py"
    script.write_text(SAY)
    done = run(home, *OPTIONS, str(script), "--master", "its own")
    assert done.returncode == 0, done.stderr
    arguments, variables = json.loads(done.stdout)
    assert arguments == ["--master", "its own"]
    assert shlex.split(variables["PYSPARK_SUBMIT_ARGS"]) == [*OPTIONS, "pyspark-shell"]
    assert variables["PYSPARK_PYTHON"] == sys.executable
    done = run(home, *OPTIONS[:2], str(script), PYSPARK_SUBMIT_ARGS="--name x pyspark-shell")
    submitted = json.loads(done.stdout)[1]["PYSPARK_SUBMIT_ARGS"]
    assert submitted == "--master spark://there:7077 --name x pyspark-shell"
    done = run(home, str(script))
    assert json.loads(done.stdout)[1]["PYSPARK_SUBMIT_ARGS"] is None


def test_options_of_spark_are_given_to_the_shell(home: Path) -> None:
    done = run(home, *OPTIONS)
    assert done.returncode == 0, done.stderr
    arguments, variables = json.loads(done.stdout)
    assert arguments == list(OPTIONS)
    assert variables["PYSPARK_SUBMIT_ARGS"] is None


def test_workers_may_have_another_python_and_what_runs_here_keeps_this_one(home: Path) -> None:
    done = run(home, "--conf", "spark.pyspark.python=/opt/kop/bin/python")
    assert done.returncode == 0, done.stderr
    arguments, variables = json.loads(done.stdout)
    assert arguments[-2:] == ["--conf", f"spark.pyspark.driver.python={sys.executable}"]
    assert variables["PYSPARK_PYTHON"] == "/opt/kop/bin/python"
    assert variables["PYSPARK_DRIVER_PYTHON"] == sys.executable


@pytest.mark.parametrize("setting", ["spark.x", "=4g", ""])
def test_a_setting_without_a_value_is_refused(home: Path, setting: str) -> None:
    done = run(home, "--conf", setting)
    assert (done.returncode, "is not NAME=VALUE" in done.stderr) == (2, True)


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
