"""Runs the driver of a mesh by a user that has the rights of docs/mesh.md, and no others.

    python -m conformance.mesh.acls [--python PATH]

The page's commands are run as they stand there, by a super user, for the mesh that the page shows. Then the driver,
which leads the workers of functions, too, since nobody else does, has to bring records through it, exactly once; and
without the rights on its last output the mesh has to say what it lacks. Needs Java 17; PySpark goes into the venv of
the suite `spark-kop`.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance.mesh.__main__ import SECONDS
from conformance.mesh.processes import Driver
from conformance.mesh.pyspark_python import add_options, python_of
from conformance.suites import HERE
from kop.testing import Broker

PAGE = HERE.parent / "docs" / "mesh.md"
PASSWORDS = {"admin": "admin-secret", "mesh": "mesh-secret"}
ORDERS = [{"id": number, "amount": number, "count": 2} for number in range(5)]


def page_block(start: str, kind: str) -> str:
    """The first block of code of a kind behind a line of the page."""
    text = PAGE.read_text()
    match = re.search(rf"```{kind}\n(.*?)```", text[text.index(start) :], re.DOTALL)
    assert match is not None
    return match[1]


def properties(folder: Path, bootstrap: str, user: str) -> str:
    """The file of client properties of a user."""
    path = folder / f"{user}.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    path.write_text(
        f"bootstrap.servers={bootstrap}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f'sasl.jaas.config={module} required username="{user}" password="{PASSWORDS[user]}";\n'
    )
    return str(path)


def kop(*arguments: str, config: str, given: str = "") -> str:
    """Run a command of kop; what it printed."""
    command = [sys.executable, "-m", "kop.cli.main", *arguments, "--client-config", config]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        sys.exit(f"{shlex.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def wait(what: str, condition: Callable[[], bool], log: Path) -> None:
    """Wait until something is so."""
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"{what} has not come:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.5)  # neither a topic nor a log says when it grows


def totals(config: str) -> list[int]:
    lines = kop("consume", "totals", "--from-beginning", "--until-end", "--json", config=config).splitlines()
    return sorted(json.loads(json.loads(line)["value"])["total"] for line in lines)


def run(python: str) -> bool:
    """Run the mesh with its rights, and without one of them; return if both went as they should."""
    with tempfile.TemporaryDirectory(prefix="kop-mesh-acls-", ignore_cleanup_errors=True) as name:
        folder, log = Path(name), Path(name) / "driver.log"
        text = page_block("# Meshes", "yaml").replace(
            "EFFECTIVELY_ONCE", "EFFECTIVELY_ONCE\n    subscriptionPosition: Earliest"
        )
        (folder / "orders.yaml").write_text(text)
        (folder / "orders.py").write_text(page_block("# Meshes", "python"))
        authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        settings: dict[str, Any] = {"authorizer.class.name": authorizer, "super.users": "User:admin"}
        with Broker(users=PASSWORDS, **settings) as broker:
            admin = properties(folder, broker.bootstrap, "admin")
            for topic in ("orders", "clean-orders", "totals"):
                kop("topics", "create", topic, config=admin)
            rights = [line for line in page_block("## Rights", "sh").splitlines() if line.startswith("kop acls add")]
            for line in rights:
                kop(*shlex.split(line)[1:], config=admin)
            kop("produce", "orders", config=admin, given="\n".join(map(json.dumps, ORDERS)))
            arguments = [str(folder / "orders.yaml"), "--client-config", properties(folder, broker.bootstrap, "mesh")]
            driver = Driver(python, [*arguments, "--master", "local[2]"], folder)
            try:
                driver.start()
                expected = [order["amount"] * 2 for order in ORDERS if order["amount"] > 0]
                wait("what the mesh makes", lambda: totals(admin) == expected, log)
                kop("acls", "remove", "--principal", "User:mesh", "--topic", "totals", config=admin)
                kop("produce", "orders", config=admin, given=json.dumps(ORDERS[1]))
                wait("what it lacks", lambda: "has failed" in log.read_text(errors="replace"), log)
                told = [line for line in log.read_text(errors="replace").splitlines() if "has failed" in line][-1]
            finally:
                driver.kill()
        print(
            f"{len(rights)} commands of the page: {expected} came out; without its output it says: {told}", flush=True
        )
        return "totals" in told


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.mesh.acls", description=__doc__.partition("\n")[0])
    add_options(parser)
    python = python_of(parser.parse_args())
    return 0 if run(python) else 1


if __name__ == "__main__":
    sys.exit(main())
