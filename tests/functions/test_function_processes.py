"""Instances as processes: how they begin, how each way to fail is told, and that the others go on."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from functions.instance_kit import values
from support.waiting import wait_until

from kop.client.properties import connection
from kop.functions.config_reading import from_flags
from kop.functions.function import CodePlace
from kop.functions.process import LONGEST_DELAY, WELL_SECONDS, Attempts, InstanceStatus, Processes, WantedInstance
from kop.testing import Broker

GOOD = "def process(text: str) -> str:\n    return text.upper()\n"


class Machine:
    """Functions that run as processes beside a broker."""

    def __init__(self, broker: Broker, processes: Processes, folder: Path) -> None:
        self.broker = broker
        self.processes = processes
        self.folder = folder
        self.wanted: dict[tuple[str, int], WantedInstance] = {}

    def wants(self, name: str, code: str, *, number: int = 1, **flags: Any) -> None:
        """Let a function run from `in` to `out-NAME`."""
        path = self.folder / f"{name}.py"
        path.write_text(textwrap.dedent(code))
        given = {"py": str(path), "classname": name, "inputs": "in", "output": f"out-{name}"}
        spec, _ = from_flags(given | {key.replace("_", "-"): value for key, value in flags.items()})
        if number == 1:
            self.broker.create_topic(spec.output)
        self.wanted[spec.fqfn, 0] = WantedInstance(spec, CodePlace(str(path)), (("in", 0),), 1, number)
        self.processes.want(self.wanted)

    def status(self, name: str) -> InstanceStatus:
        return self.processes.status()[f"public/default/{name}", 0]

    def begun(self, *names: str) -> None:
        """Wait until all of these functions take messages."""
        for name in names:
            self.started(name)

    def started(self, name: str) -> None:
        """Wait until a function takes messages."""
        wait_until(lambda: self.broker.committed(f"public/default/{name}") != {}, f"the start of {name}")

    def failed(self, name: str) -> InstanceStatus:
        """Wait until a function has ended by itself."""
        wait_until(lambda: self.status(name).error != "", f"the end of {name}")
        return self.status(name)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Broker() as broker:
        broker.create_topic("in")
        broker.create_topic("out")
        processes = Processes(connection({"bootstrap.servers": broker.bootstrap}, "test").settings, patience=10)
        try:
            yield Machine(broker, processes, tmp_path)
        finally:
            processes.close()


def test_an_instance_that_ends_again_and_again_is_started_later_and_later() -> None:
    attempts = Attempts()
    delays = []
    for _ in range(9):
        attempts = attempts.after(ran=0.5)
        delays.append(attempts.delay)
    assert delays == [1, 2, 4, 8, 16, 32, LONGEST_DELAY, LONGEST_DELAY, LONGEST_DELAY]
    assert attempts.after(ran=WELL_SECONDS).delay == 1


BAD: dict[str, tuple[str, dict[str, Any], str, bool]] = {
    "no_import": ("import time\n1 / 0\n", {}, "no_import.py, line 2: ZeroDivisionError: division by zero", False),
    "no_secret": (
        GOOD,
        {"secrets": '{"KEY": {"env": "NO_SUCH_VARIABLE"}}'},
        "set the variable NO_SUCH_VARIABLE",
        False,
    ),
    "sleeps": (
        "import time\ndef process(text: str) -> str:\n    print('begun')\n    time.sleep(60)\n",
        {"timeout_ms": 300},
        "a call has taken longer than timeoutMs, 300 ms",
        True,
    ),
    "spins": (
        "def process(text: str) -> str:\n    return str(sum(range(10**12)))\n",  # no other thread runs meanwhile
        {"timeout_ms": 300},
        "a call has taken longer than timeoutMs",
        True,
    ),
    "leaks": (
        "import time\nkept = []\ndef process(text: str) -> str:\n"
        "    kept.append(b'x' * (200 << 20))\n    time.sleep(60)\n",
        {"ram": 100 << 20},
        "resources.ram is 100 MiB",
        True,
    ),
    "exits": ("import os\ndef process(text: str) -> str:\n    os._exit(3)\n", {}, "with exit code 3", True),
    "crashes": (
        "import ctypes\ndef process(text: str) -> str:\n    ctypes.string_at(0)\n",
        {},
        "the process was ended by SIGSEGV",
        True,
    ),
    "quits": ("import sys\ndef process(text: str) -> str:\n    sys.exit('no more')\n", {}, "SystemExit: no more", True),
}


NOISY = """
def process(text: str) -> str:
    print("x" * 5_000_000)
    print("last")
    return text
"""


def test_each_way_to_fail_is_told_and_every_other_function_goes_on(machine: Machine) -> None:
    for name, (code, flags, _, _) in BAD.items():
        machine.wants(name, code, **flags)
    machine.wants("good", GOOD)
    machine.wants("noisy", NOISY)
    machine.wants("raises", "def process(text: str) -> str:\n    raise ValueError('never')\n", max_message_retries=0)
    called = [name for name, (_, _, _, is_called) in BAD.items() if is_called]
    machine.begun("good", "noisy", "raises", *called)
    machine.broker.produce("in", ["a", "b"])
    for name, (_, _, told, is_called) in BAD.items():
        status = machine.failed(name)
        assert told in status.error, name
        assert status.at == (("in", 0, 0) if is_called else None), name
        assert status.restarts >= 1
        assert abs(status.since_ms / 1000 - time.time()) < 60
        assert status.running or status.next_start_ms is None or status.next_start_ms / 1000 > status.since_ms / 1000
    wait_until(lambda: values(machine.broker, "out-good") == ["A", "B"])
    wait_until(lambda: values(machine.broker, "out-noisy") == ["a", "b"])
    wait_until(lambda: machine.status("noisy").stderr[-1] == "last")
    assert max(map(len, machine.status("noisy").stderr)) < 1_000
    wait_until(lambda: machine.broker.committed("public/default/raises") == {("in", 0): 2})
    assert "ValueError: never" in "\n".join(machine.status("raises").stderr)
    assert machine.status("raises").error == ""
    assert machine.status("sleeps").stderr == ["begun"]
    assert "Fatal Python error: Segmentation fault" in "\n".join(machine.status("crashes").stderr)


def test_the_record_of_a_call_that_hangs_and_the_last_words_and_the_next_start_of_one_that_ended_are_told(
    machine: Machine, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    hangs = (
        f"import os, time\ndef process(text: str):\n    while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
    )
    machine.wants("hangs", hangs)
    ended = tmp_path / "ended"
    machine.wants(
        "ends",
        f"""
        import os, pathlib
        def process(text: str) -> str:
            if not pathlib.Path({str(ended)!r}).exists():
                pathlib.Path({str(ended)!r}).touch()
                print("my last words")
                os._exit(3)
            return text
        """,
    )
    machine.begun("hangs", "ends")
    machine.broker.produce("in", ["a"])
    wait_until(lambda: machine.status("hangs").at == ("in", 0, 0), "the record of the call")
    assert (machine.status("hangs").running, machine.status("hangs").error) == (True, "")
    machine.failed("ends")
    wait_until(lambda: machine.status("ends").next_start_ms is not None, "the next start")
    wait_until(lambda: values(machine.broker, "out-ends") == ["a"], "the second start")
    assert "my last words" in machine.status("ends").stderr
    go_on.touch()
    wait_until(lambda: machine.status("hangs").at is None, "the end of the call")


@pytest.mark.parametrize("guarantee", ["ATLEAST_ONCE", "EFFECTIVELY_ONCE"])
def test_what_comes_before_a_record_that_kills_is_done(machine: Machine, guarantee: str) -> None:
    code = """
        import os
        def process(text: str) -> str:
            if text == "kill":
                os._exit(3)
            return text.upper()
        """
    machine.wants("killed", code, processing_guarantees=guarantee)
    machine.begun("killed")
    machine.broker.produce("in", ["a", "b", "kill", "c"])
    wait_until(lambda: machine.status("killed").restarts >= 2, "two ends")
    assert machine.status("killed").at == ("in", 0, 2)
    assert machine.broker.committed("public/default/killed") == {("in", 0): 2}
    assert values(machine.broker, "out-killed") == ["A", "B"]


def test_a_function_that_forks_itself_writes_once(machine: Machine) -> None:
    code = "import os\ndef process(text: str) -> str:\n    os.fork()\n    return text\n"
    machine.wants("forks", code)
    machine.begun("forks")
    machine.broker.produce("in", ["a"])
    wait_until(lambda: machine.broker.committed("public/default/forks") == {("in", 0): 1})
    machine.broker.produce("in", ["b"])
    wait_until(lambda: machine.broker.committed("public/default/forks") == {("in", 0): 2})
    assert values(machine.broker, "out-forks") == ["a", "b"]


def test_an_instance_is_ended_with_all_that_it_has_started(machine: Machine) -> None:
    machine.wants(
        "starts",
        """
        import subprocess
        def process(text: str) -> str:
            return str(subprocess.Popen(["sleep", "1000"]).pid)
        """,
    )
    machine.begun("starts")
    machine.broker.produce("in", ["a"])
    wait_until(lambda: values(machine.broker, "out-starts") != [])
    pid = int(values(machine.broker, "out-starts")[0])
    assert is_alive(pid)
    machine.processes.want({})
    wait_until(lambda: not is_alive(pid))


def test_an_instance_that_differs_replaces_the_one_before(machine: Machine) -> None:
    machine.wants("changes", "def process(text: str) -> str:\n    return text + '1'\n")
    machine.begun("changes")
    machine.broker.produce("in", ["a"])
    wait_until(lambda: values(machine.broker, "out-changes") == ["a1"])
    machine.wants("changes", "def process(text: str) -> str:\n    return text + '2'\n", number=2)
    assert "error" not in machine.processes.ask(("public/default/changes", 0), {"ask": "stats"}, 20), "it has begun"
    machine.broker.produce("in", ["b"])
    wait_until(lambda: values(machine.broker, "out-changes") == ["a1", "b2"])
    assert machine.status("changes").restarts == 0
    machine.processes.want({})
    assert machine.processes.status() == {}


def test_an_instance_that_was_replaced_elsewhere_says_so_and_waits(machine: Machine) -> None:
    machine.wants("twice", GOOD)
    machine.begun("twice")
    other = Processes(connection({"bootstrap.servers": machine.broker.bootstrap}, "test").settings)
    try:
        other.want(machine.wanted)
        wait_until(lambda: other.status()["public/default/twice", 0].running)
        machine.broker.produce("in", ["a"])
        status = machine.failed("twice")
        assert "another one has begun" in status.error
        assert not status.running
        wait_until(lambda: "A" in values(machine.broker, "out-twice"))
    finally:
        other.close()


def test_the_processes_of_a_worker_that_is_killed_end(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "pid.py").write_text("import os\ndef process(text: str) -> str:\n    return str(os.getpid())\n")
    (tmp_path / "worker_of_test.py").write_text(
        textwrap.dedent(f"""
        import time
        from kop.client.properties import connection
        from kop.functions.function import CodePlace
        from kop.functions.process import Processes, WantedInstance
        from kop.functions.config_reading import from_flags

        if __name__ == "__main__":
            spec, _ = from_flags({{"py": "pid.py", "classname": "pid", "inputs": "in", "output": "out"}})
            processes = Processes(connection({{"bootstrap.servers": {machine.broker.bootstrap!r}}}, "test").settings)
            place = CodePlace({str(tmp_path / "pid.py")!r})
            processes.want({{(spec.fqfn, 0): WantedInstance(spec, place, (("in", 0),), 1, 1)}})
            time.sleep(1000)
        """)
    )
    worker = subprocess.Popen([sys.executable, str(tmp_path / "worker_of_test.py")])
    try:
        machine.begun("pid")
        machine.broker.produce("in", ["a"])
        wait_until(lambda: values(machine.broker, "out") != [])
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    pid = int(values(machine.broker, "out")[0])
    wait_until(lambda: not is_alive(pid))


def is_alive(pid: int) -> bool:
    """Return if a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_answers_what_it_is_asked(machine: Machine) -> None:
    code = "def process(text: str, context) -> str:\n    return f'{text} {context.get_function_version()}'\n"
    machine.wants("good", code)
    name = "public/default/good", 0
    question = {"ask": "trigger", "value": "YQ==", "key": None, "topic": "in", "partition": 0}
    assert machine.processes.ask(name, question, 20)["output"] == "YSAx"  # "a 1"
    machine.wants("good", code.replace("{text}", "b"), number=2)
    assert machine.processes.ask(name, question, 20)["output"] == "YiAx"  # by the new one
    elsewhere = machine.processes.ask(name, question | {"partition": 7}, 20)
    assert (elsewhere["status"], "partition 7 of in" in elsewhere["error"]) == (503, True)

    def counts() -> tuple[int, int, object]:
        stats = machine.status("good").stats or {"received": 0, "processed": 0, "at": None}
        return stats["received"], stats["processed"], stats["at"]

    wait_until(lambda: counts() == (1, 1, None), "the count of what was done")
    assert machine.status("good").running


def test_what_is_asked_of_nobody_is_answered(machine: Machine) -> None:
    ask: Callable[..., dict[str, Any]] = machine.processes.ask
    assert ask(("a/b/c", 0), {"ask": "trigger"}, 1) == {
        "error": "instance 0 of a/b/c does not run here",
        "status": 503,
    }
    machine.wants("good", GOOD)
    machine.begun("good")
    assert "nobody answers 'weather'" in ask(("public/default/good", 0), {"ask": "weather"}, 5)["error"]
