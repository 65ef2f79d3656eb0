"""`kop functions localrun` as a user runs it."""

from __future__ import annotations

import signal
import socket
import subprocess
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.cli_support import Invoke, Kop
from cli.preloaded import Preloaded
from support.waiting import SECONDS, wait_until

from kop.cli.functions_flags import FLAGS
from kop.functions import config_fields
from kop.security.settings import STANDARD_AUTHORIZER
from kop.testing import Broker


@pytest.fixture
def topics() -> tuple[str, str]:
    """Names of an input and an output that nobody else has."""
    name = uuid.uuid4().hex
    return f"in-{name}", f"out-{name}"


class Started:
    """A `kop functions localrun` that runs."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.said = ""

    def until(self, text: str) -> None:
        """Read what it says until a line has a text."""
        assert self.process.stderr is not None
        while text not in self.said:
            line = self.process.stderr.readline().decode()
            assert line, f"it ended without {text!r}: {self.said}"
            self.said += line

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=SECONDS)
        self.said += rest.decode()
        return self.process.returncode


Start = Callable[..., Started]


@pytest.fixture
def start(kop: Kop, tmp_path: Path) -> Iterator[Start]:
    started: list[Started] = []

    def run(*arguments: str) -> Started:
        made = Started(kop.start("functions", "localrun", *arguments))
        started.append(made)
        return made

    yield run
    for left in started:
        if left.process.poll() is None:
            left.process.kill()
        left.process.communicate(timeout=SECONDS)


def write(folder: Path, text: str, name: str = "shout.py") -> str:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_ctrl_c_finishes_commits_and_exits_with_0(
    kop: Kop, start: Start, topics: tuple[str, str], tmp_path: Path
) -> None:
    given, out = topics
    file = write(tmp_path, "def process(text: str) -> str:\n    return text.upper()\n")
    function = start("--py", file, "--classname", "shout", "--name", given, "--inputs", given, "--output", out)
    function.until("Ctrl-C ends it")
    assert f"made the topic {given}\n" in function.said
    assert f"made the topic {out}\n" in function.said
    kop.ok("produce", given, given=b"one\ntwo\n")
    assert kop.ok("consume", out, "--from-beginning", "-n", "2") == "ONE\nTWO\n"
    assert function.end() == 0, function.said
    assert "2 messages done" in function.said
    assert "Traceback" not in function.said
    described = kop.ok("groups", "describe", f"public/default/{given}", "--json")
    assert '"lag": 0' in described


def test_a_killed_process_loses_nothing(kop: Kop, start: Start, topics: tuple[str, str], tmp_path: Path) -> None:
    given, out = topics
    file = write(tmp_path, "def process(text: str) -> str:\n    return text.upper()\n")
    flags = ["--py", file, "--classname", "shout", "--name", given, "--inputs", given, "--output", out]
    flags += ["--processing-guarantees", "EFFECTIVELY_ONCE"]
    function = start(*flags)
    function.until("Ctrl-C ends it")
    texts = [f"a{number}" for number in range(20_000)]
    kop.ok("produce", given, given="\n".join(texts).encode())
    function.end(signal.SIGKILL)
    function = start(*flags)
    function.until("Ctrl-C ends it")
    got = kop.ok("consume", out, "--from-beginning", "--read-committed", "-n", "20000").split()
    assert got == [text.upper() for text in texts]
    assert function.end(signal.SIGTERM) == 0, function.said


def test_a_changed_file_starts_the_function_anew(
    kop: Kop, start: Start, topics: tuple[str, str], tmp_path: Path
) -> None:
    given, out = topics
    file = write(tmp_path, "def process(text: str) -> str:\n    return text.upper()\n")
    flags = ("--py", file, "--classname", "shout", "--name", given, "--inputs", given, "--output", out, "--reload")
    function = start(*flags)
    function.until("Ctrl-C ends it")
    kop.ok("produce", given, given=b"one\n")
    assert kop.ok("consume", out, "--from-beginning", "-n", "1") == "ONE\n"
    write(tmp_path, "def process(text: str) -> str\n")
    function.until("SyntaxError")
    write(tmp_path, "def process(text: str) -> str:\n    return text[::-1]\n")
    function.said = ""
    function.until("Ctrl-C ends it")
    kop.ok("produce", given, given=b"two\n")
    assert kop.ok("consume", out, "--from-beginning", "-n", "2") == "ONE\nowt\n"
    assert function.end() == 0, function.said


@pytest.mark.parametrize(
    ("text", "flags", "code", "said"),
    [
        ("def process(text: str)\n", (), 1, "SyntaxError"),
        ("def process(text: object, a, b, c): pass\n", (), 1, "shout"),
        ("def process(text: str): pass\n", ("--user-config", "{"), 2, "--user-config"),
        ("def process(text: str): pass\n", ("--processing-guarantees", "ONCE"), 2, "--processing-guarantees"),
        ("def process(text: str): pass\n", ("--client-config", "CONFIG"), 2, "security.protocol"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    kop: Kop, tmp_path: Path, text: str, flags: tuple[str, ...], code: int, said: str
) -> None:
    file = write(tmp_path, text)
    config = write(tmp_path, "security.protocol=none\n", "client.properties")
    given = [config if flag == "CONFIG" else flag for flag in flags]
    outcome = kop("functions", "localrun", "--py", file, "--classname", "shout", "--inputs", "never-made", *given)
    assert (outcome.code, said in outcome.err) == (code, True), outcome
    assert "never-made" not in kop.ok("topics", "list")


def test_the_flags_are_those_of_a_definition(invoke: Invoke) -> None:
    assert {flag.removeprefix("--") for flag in FLAGS} == config_fields.FLAGS.keys()
    shown = invoke("functions", "localrun", "--help").output
    assert "--function-config-file" in shown
    assert "--client-config" in shown


def test_a_file_has_the_definition_and_flags_win(
    kop: Kop,
    start: Start,
    topics: tuple[str, str],
    tmp_path: Path,
) -> None:
    given, out = topics
    file = write(tmp_path, "def process(text: str) -> str:\n    return text.upper()\n")
    config = write(
        tmp_path,
        f"className: shout\npy: {file}\ninputs: [{given}]\noutput: other\nname: {given}\nparallelism: 3\n",
        "f.yaml",
    )
    function = start("--function-config-file", config, "--output", out)
    function.until("Ctrl-C ends it")
    assert "parallelism is 3; here one instance has all partitions" in function.said
    kop.ok("produce", given, given=b"one\n")
    assert kop.ok("consume", out, "--from-beginning", "-n", "1") == "ONE\n"
    assert function.end() == 0


def test_ctrl_c_ends_at_once_what_is_about_to_connect(kop: Kop, tmp_path: Path) -> None:
    file = write(tmp_path, "def process(text: str) -> str:\n    return text\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        config = write(tmp_path, f"bootstrap.servers={address}\n", "client.properties")
        flags = ("--py", file, "--classname", "shout", "--inputs", "a", "--client-config", config)
        function = Started(kop.start("functions", "localrun", *flags))
        function.until(f"connecting to {address} by PLAINTEXT")
        silent.accept()[0].close()  # the look if a server is there
        silent.accept()[0].close()  # the first connection of the client, which makes others for a minute
        began = time.monotonic()
        assert function.end() == 1
        assert time.monotonic() - began < 20
    assert "kop: interrupted" in function.said


PROPERTIES = """\
bootstrap.servers={bootstrap}
security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-256
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password="secret";
"""


def test_the_rights_that_the_documentation_names_are_enough(preloaded: Preloaded, tmp_path: Path) -> None:
    """Effectively once, with state."""
    text = (Path(__file__).parents[2] / "docs/functions.md").read_text()
    rights = [line.split()[1:] for line in text.splitlines() if line.startswith("kop acls add User:me ")]
    assert len(rights) == 4
    store = f"sqlite:{tmp_path / 'kop.db'}"
    for user in ("admin", "me"):
        flags = ("--store", store, "--password-file", "-", "-m", "SCRAM-SHA-256")
        Kop("127.0.0.1:1", preloaded).ok("users", "create", user, *flags, given=b"secret")
    listeners = "SASL_PLAINTEXT://127.0.0.1:0"
    with Broker(
        store=store, listeners=listeners, authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:admin"
    ) as broker:
        made = {
            user: write(tmp_path, PROPERTIES.format(bootstrap=broker.bootstrap, user=user), user)
            for user in ("admin", "me")
        }
        for topic in ("lines", "loud"):
            broker.create_topic(topic)
        kop = Kop(broker.bootstrap, preloaded)
        for right in rights:
            kop.ok(*right, "--client-config", made["admin"])
        code = "def process(text: str, context) -> str:\n    context.incr_counter('n', 1)\n    return text.upper()\n"
        described = ("--py", write(tmp_path, code), "--classname", "shout", "--inputs", "lines", "--output", "loud")
        once = ("--processing-guarantees", "EFFECTIVELY_ONCE", "--client-config", made["me"])
        function = Started(kop.start("functions", "localrun", *described, *once))
        function.until("Ctrl-C ends it")
        broker.produce("lines", ["a"])
        wait_until(lambda: [each.value for each in broker.records("loud", isolation_level="read_committed")] == [b"A"])
        assert function.end() == 0, function.said
        assert broker.committed("public/default/shout") == {("lines", 0): 1}
    assert "1 message done" in function.said


def test_a_call_that_hangs_ends_the_command(start: Start, topics: tuple[str, str], kop: Kop, tmp_path: Path) -> None:
    given, logged = topics
    file = write(tmp_path, "import time\ndef process(text: str) -> None:\n    print('slow')\n    time.sleep(100)\n")
    flags = ("--py", file, "--classname", "shout", "--name", given, "--inputs", given, "--timeout-ms", "300")
    function = start(*flags, "--log-topic", logged)
    function.until("Ctrl-C ends it")
    kop.ok("produce", given, given=b"a")
    function.until(f"has to be ended at {given}-0 offset 0: a call has taken longer than timeoutMs, 300 ms")
    assert function.process.wait(SECONDS) == 1
    # What the command says for itself is not the function's.
    first, told = kop.ok("consume", logged, "--until-end").splitlines()
    assert (first, "has to be ended at" in told) == ("slow", True)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ["--inputs", "acme/shop/a"],
            "--inputs: 0: acme/shop/a is a topic of acme/shop, and this",
        ),
        (["--inputs", "a", "--topic-namespace", "acme"], "--topic-namespace: acme must be TENANT/NAMESPACE"),
    ],
)
def test_topics_of_other_namespaces_are_refused(kop: Kop, tmp_path: Path, flags: list[str], told: str) -> None:
    file = write(tmp_path, "def process(text: str) -> None: pass\n")
    assert told in kop("functions", "localrun", "--py", file, "--classname", "shout", *flags).err
