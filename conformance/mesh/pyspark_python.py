"""The interpreter with PySpark that a program of this package runs meshes with.

Owns: the options that choose it, and its installation. Must not know: what is run.
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Final

from conformance.suites import Missing, python_clients

VENVS: Final = {
    "newest": ("venv-spark-newest", "requirements-spark-newest.txt"),
    "4.0": ("venv-spark", "requirements-spark.txt"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let a program be told which PySpark it takes."""
    parser.add_argument("--pyspark", choices=[*VENVS], default="newest")
    parser.add_argument("--python", help="an interpreter with pyspark and what kop needs")


def python_of(asked: argparse.Namespace) -> str:
    """Return the path of the interpreter, which is installed if it is missing; a signal ends what is started after."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # what it has started ends with it
    try:
        return asked.python or str(python_clients(*VENVS[asked.pyspark]))
    except Missing as error:
        sys.exit(f"PySpark cannot be installed: {error}")
