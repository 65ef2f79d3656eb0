"""The process of `kop mesh run`: a session of Spark and the driver of one mesh in it.

    python -m kop.spark.mesh JSON

Owns: what the command passes on, signals, lines for people, the exit code.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from kop.client.errors import ClientError, FencedError, UnreachableError
from kop.client.properties import connection, parse_properties
from kop.functions.localrun import names_of
from kop.functions.packages import PackageError
from kop.mesh.file import read_mesh
from kop.mesh.nodes import MeshError
from kop.spark.mesh.session import end_at_once, make_session, master_of


def say(text: str) -> None:
    """Write a line for people."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main(given: dict[str, Any]) -> int:
    """Run a mesh until a signal; the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.ERROR)
    properties = {"bootstrap.servers": given["bootstrap"]}
    if given.get("client_config"):
        properties |= parse_properties(Path(given["client_config"]).read_text())
    try:
        made = connection(properties, f"kop-mesh-{os.getpid()}")
        settings, patience = dict(made.settings), made.patience_ms / 1000
        names = names_of(settings, patience, given["topic_namespace"])
        text = Path(given["file"]).read_text()
        mesh = read_mesh(text, given["file"], names)
    except (ClientError, UnreachableError, MeshError, OSError) as error:
        say(str(error))
        return 1
    for note in mesh.notes:
        say(note)
    others = len(mesh.sources) + len(mesh.sinks) + len(mesh.queries)
    needed = len(mesh.functions) + (1 if others else 0)
    spark = make_session(mesh.name, master_of(given.get("master"), needed), dict(given.get("settings") or ()))
    from kop.spark.mesh.driver import MeshDriver  # noqa: PLC0415 (takes pyspark along)

    code = 0
    try:
        driver = MeshDriver(spark, mesh, settings, patience, say, once=given["once"], text=text)
        for number in (signal.SIGINT, signal.SIGTERM):  # PySpark has put a handler of its own there
            signal.signal(number, lambda *_: driver.stop())
        if driver.run():
            say(f"{mesh.full_name} has ended; all that was begun is committed")
        else:
            say(f"{mesh.full_name} has ended while calls were under way: they are done again at the next start")
            code = 1
    except (ClientError, FencedError, UnreachableError, PackageError) as error:
        say(str(error))
        code = 1
    finally:
        end_at_once(spark)
    sys.stdout.flush()
    os._exit(code)  # py4j and kafka-python have threads that would wait for the JVM


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
