"""The suites there are, and what each needs before it can run.

Owns: the table of suites, the venv of the Python clients, the npm packages. Everything installed goes under
conformance/.cache and is left there for the next run.

Must not know: the server under test, or how results are judged.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import venv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE / ".cache"
FLINK = ("2.2.1 5.0.0-2.2", "2.0.2 4.0.1-2.0")
"""Versions of Flink and of its Kafka connector, the newest first."""
_venv_lock = threading.Lock()


class Missing(Exception):
    """A client that cannot be installed here; the text says why."""


@dataclass(slots=True, frozen=True)
class Suite:
    """A client: `prepare` installs it and returns the command to which the suite's arguments are added.

    A suite that is not `fast` needs a long build or a long run: --fast leaves it out unless it is named. One that is
    `last` keeps the server so busy that it runs by itself after all others.
    """

    name: str
    prepare: Callable[[], list[str]]
    fast: bool = True
    last: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def _installed(mark: Path, source: Path) -> bool:
    return mark.exists() and mark.read_text() == hashlib.sha256(source.read_bytes()).hexdigest()


def _mark(mark: Path, source: Path) -> None:
    mark.write_text(hashlib.sha256(source.read_bytes()).hexdigest())


def _install(command: list[str], cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)
    except subprocess.TimeoutExpired:
        raise Missing(f"{' '.join(command[:3])} took longer than 10 minutes") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Missing(f"{' '.join(command[:3])} failed: {lines[-1] if lines else done.returncode}")


def python_clients(name: str = "venv", requirements: str = "requirements.txt") -> Path:
    """The interpreter of the venv that holds every Python client; PySpark, 400 MB, has another."""
    home, wanted = CACHE / name, HERE / requirements
    python = home / "bin" / "python"
    with _venv_lock:  # suites that share it are prepared side by side
        if not _installed(home / "installed", wanted):
            try:
                venv.create(home, with_pip=True, clear=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise Missing(f"no venv: {error}") from error
            _install([str(python), "-m", "pip", "install", "--quiet", "-r", str(wanted)], HERE)
            _mark(home / "installed", wanted)
    return python


def _python(script: str) -> Callable[[], list[str]]:
    return lambda: [str(python_clients()), str(HERE / "clients" / script)]


def _kcat() -> list[str]:
    if not shutil.which("kcat") and not shutil.which("kafkacat"):
        raise Missing("no kcat on PATH (Debian and Ubuntu: apt-get install kcat)")
    return [sys.executable, str(HERE / "clients" / "kcat_suite.py")]


def _kafkajs() -> list[str]:
    for tool in ("node", "npm"):
        if not shutil.which(tool):
            raise Missing(f"no {tool} on PATH")
    home, wanted = CACHE / "kafkajs", HERE / "clients" / "kafkajs" / "package.json"
    if not _installed(home / "installed", wanted):
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(wanted, home / "package.json")
        _install(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], home)
        _mark(home / "installed", wanted)
    return ["node", str(HERE / "clients" / "kafkajs" / "suite.js")]


def _spark(name: str = "venv-spark", requirements: str = "requirements-spark.txt") -> list[str]:
    """PySpark; the suite itself has Spark fetch the Kafka connector, and says so if Maven Central is out of reach."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if not java:
        raise Missing(f"no java {f'under JAVA_HOME ({home})' if home else 'on PATH'} (Spark 4 runs on Java 17 or 21)")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    major = re.search(r'version "(\d+)', said)
    if not major or int(major[1]) < 17:
        raise Missing(f"Spark 4 needs Java 17 or newer; {java} says {said.strip().partition(chr(10))[0]!r}")
    python = python_clients(name, requirements)
    for archive in python.parents[1].glob("lib/python*/site-packages/pyspark/python/lib/pyspark.zip"):
        archive.unlink()  # workers would import PySpark from it at each start, three times slower than from beside it
    return [str(python), str(HERE / "clients" / "spark_suite.py")]


def _spark_newest() -> list[str]:
    return _spark("venv-spark-newest", "requirements-spark-newest.txt")


def _flink() -> list[str]:
    """Flink's jars and the job are fetched and compiled here, so that no case waits for it."""
    for tool in ("java", "javac", "mvn"):
        if not shutil.which(tool):
            raise Missing(f"no {tool} on PATH (Java 17, Maven)")
    python = python_clients()
    for versions in FLINK:
        _install([str(HERE / "flink" / "job.sh"), *versions.split()], HERE)
    return [str(python), str(HERE / "clients" / "flink_suite.py")]


def _kop_in_spark(name: str) -> dict[str, str]:
    """The environment of a suite of format("kop"); kop itself is the one of this checkout."""
    return {"KOP_SPARK_FORMAT": "kop", "KOP_SPARK_SUITE": name, "PYTHONPATH": str(HERE.parent)}


def _executable(folder: str) -> Callable[[], list[str]]:
    """A suite of its own folder: an executable named `suite` there, which installs what it needs itself."""

    def prepare() -> list[str]:
        path = HERE / folder / "suite"
        if not os.access(path, os.X_OK):
            raise Missing(f"no executable conformance/{folder}/suite in this checkout")
        return [str(path)]

    return prepare


SUITES = (
    Suite("aiokafka", _python("aiokafka_suite.py")),
    Suite("kafka-python", _python("kafka_python_suite.py")),
    Suite("confluent-kafka", _python("confluent_suite.py")),
    Suite("kcat", _kcat),
    Suite("kafkajs", _kafkajs, environment={"NODE_PATH": str(CACHE / "kafkajs" / "node_modules")}),
    Suite("many-topics", _python("many_topics_suite.py"), last=True),
    Suite("spark", _spark, fast=False),
    Suite("spark-kop", _spark_newest, fast=False, environment=_kop_in_spark("spark-kop")),
    Suite("spark-kop-4.0", _spark, fast=False, environment=_kop_in_spark("spark-kop-4.0")),
    Suite("java", _executable("java"), fast=False),
    Suite("librdkafka", _executable("librdkafka"), fast=False),
    Suite("franz-go", _executable("franz-go"), fast=False),
    Suite("flink", _flink, fast=False, last=True),  # it kills the server
)
