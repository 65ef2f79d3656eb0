"""`kop spark`: PySpark with everything that `format("kop")` needs: a script, or the shell."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path

import click

from kop.cli.common import DEFAULT_BOOTSTRAP, CliUsageError, fail, note, server_option
from kop.cli.spark_pack import pack

BOOTSTRAP_VARIABLE = "KOP_BOOTSTRAP"
SUBMIT_VARIABLE = "PYSPARK_SUBMIT_ARGS"
"""The environment variable that gives Spark's options to a PySpark script that is run without spark-submit."""
WORKERS_PYTHON = "spark.pyspark.python"
DRIVER_PYTHON = "spark.pyspark.driver.python"
EPILOG = """\b
Examples:
  kop spark                          # the shell, with the session as `spark`
  kop spark orders.py --day monday
  kop spark --bootstrap broker.example:9092 orders.py
  kop spark --master spark://there:7077 --conf spark.cores.max=8 orders.py
  kop spark --pack environment.tar.gz

\b
A script finds the address in os.environ["KOP_BOOTSTRAP"]."""


def _checked(_context: click.Context, _option: click.Parameter, settings: tuple[str, ...]) -> tuple[str, ...]:
    for setting in settings:
        if not setting.partition("=")[0] or "=" not in setting:
            raise click.BadParameter(f"{setting!r} is not NAME=VALUE, as in spark.executor.memory=4g")
    return settings


conf_option = click.option(
    "--conf",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_checked,
    help="A setting of Spark; may be repeated.",
)
"""Adds `--conf`; the command gets `settings` of Spark, each NAME=VALUE."""


def given_settings(settings: tuple[str, ...]) -> dict[str, str]:
    """Return settings NAME=VALUE of Spark as a dict, for a session. If they name the Python of workers, and none for
    the driver, this Python is added for the driver.
    """
    given = dict(setting.split("=", 1) for setting in settings)
    if WORKERS_PYTHON in given:  # Spark would take it for the Python that plans here, too
        given.setdefault(DRIVER_PYTHON, sys.executable)
    return given


def spark_environment(bootstrap: str, settings: tuple[str, ...]) -> dict[str, str]:
    """Return the environment of a process that runs PySpark with kop in it. Ends the command if something is missing
    for that, with its name.
    """
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        fail(
            f"there is no PySpark in this Python: {sys.executable} -m pip install 'pyspark>=4.0,<4.4' 'pyarrow>=18,<28'"
        )
    home = os.environ.get("JAVA_HOME")
    if not shutil.which("java", path=f"{home}/bin" if home else None):
        fail(f"there is no java {f'in JAVA_HOME ({home})' if home else 'on PATH'}: Spark needs Java 17 or 21")
    environment = os.environ | {
        BOOTSTRAP_VARIABLE: bootstrap or DEFAULT_BOOTSTRAP,
        "PYSPARK_PYTHON": dict(setting.split("=", 1) for setting in settings).get(WORKERS_PYTHON, sys.executable),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    source = importlib.util.find_spec("pyspark_kop")
    if source is None or source.origin is None:
        fail("there is no module pyspark_kop, which is a part of kop: install kop again")
    folder = str(Path(source.origin).parent)
    if folder not in sys.path:  # an editable install: PySpark looks through the folders of the path alone
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


@click.command("spark", epilog=EPILOG, context_settings={"allow_interspersed_args": False})
@server_option
@click.option("--master", metavar="URL", help="Where Spark runs: spark://HOST:7077, or local[2]. Default: here.")
@conf_option
@click.option("--packages", metavar="GROUP:NAME:VERSION,...", help="Jars that Spark fetches from Maven Central.")
@click.option("--pack", "archive", metavar="FILE", help="Write this environment to FILE for executors, and end.")
@click.argument("script", required=False, type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    bootstrap: str,
    master: str | None,
    settings: tuple[str, ...],
    packages: str | None,
    archive: str | None,
    script: str | None,
    arguments: tuple[str, ...],
) -> None:
    """Run a PySpark script, or the PySpark shell, with format("kop"). What comes behind SCRIPT is the script's.

    Spark's workers get this Python, which has kop; on a cluster it has to be there, under the same path or the one of
    --conf spark.pyspark.python. What a script itself sets wins over these options. Needs Java 17 or 21.
    """
    if archive is not None:
        if script is not None:
            raise CliUsageError("--pack runs no script: give one of them")
        pack(archive)
        return
    environment = spark_environment(bootstrap, settings)
    pyspark = importlib.util.find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    options = [*(["--master", master] if master else []), *(["--packages", packages] if packages else [])]
    for name, value in given_settings(settings).items():
        options += ["--conf", f"{name}={value}"]
    if script is not None:
        run = [sys.executable, script, *arguments]
        if options:
            environment[SUBMIT_VARIABLE] = f"{shlex.join(options)} {os.environ.get(SUBMIT_VARIABLE, 'pyspark-shell')}"
    else:
        run = [str(Path(pyspark.origin).parent / "bin" / "pyspark"), *options, *arguments]
        note(f"the server's address is in the environment as {BOOTSTRAP_VARIABLE}: {environment[BOOTSTRAP_VARIABLE]}")
    sys.stdout.flush()
    os.execve(run[0], run, environment)
