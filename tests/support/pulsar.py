"""A real Pulsar for the tests that need one: the one that `KOP_TEST_PULSAR` names, or one started for the run.

A pytest plugin (`tests/conftest.py` names it). Tests take the fixture `pulsar`: two URLs and a namespace of their own
that keeps everything. A test that stops or breaks its broker, or needs other settings, takes `own_broker`.

Every test that asks for `pulsar_urls` or `pulsar_home`, itself or through another fixture, gets the mark `pulsar`:
`-m pulsar` and `-m "not pulsar"` select by it. A fixture that asks for it only at run time puts the mark on its
parameters.

    KOP_TEST_PULSAR=pulsar://HOST:PORT,http://HOST:PORT   use this one
    KOP_TEST_PULSAR=off                                   leave these tests out
    KOP_REQUIRE_PULSAR=1                                  fail where they would be left out

Else the first process of the run that has such a test starts `conformance/pulsar_server.sh` behind the scenes, all
xdist workers use that one, and the process that started the run stops it. Without Java or Maven the tests are skipped,
and the last lines of the run say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from kop.pulsar_client.admin import FOREVER
from kop.pulsar_client.errors import PulsarError
from support.pulsar_admin import PulsarAdmin

SCRIPT = Path(__file__).parents[2] / "conformance" / "pulsar_server.sh"
START_TIMEOUT = 900
"""Seconds, the first download of 245 MB included."""
DELETE_SECONDS = 60
"""How long a test waits until what it made is gone, which is a part of its own time limit."""
POLICY_SECONDS = 8
"""How long a new namespace may take to load its topic policies."""
_RUN = "KOP_TEST_PULSAR_RUN"
"""Variable with the folder that all processes of a run share."""
_LEFT_OUT = "needs a Pulsar: "


class Urls(NamedTuple):
    """Where a Pulsar answers."""

    service_url: str
    admin_url: str

    @classmethod
    def parse(cls, text: str) -> Urls:
        """Read `pulsar://HOST:PORT,http://HOST:PORT`."""
        service, comma, admin = text.strip().partition(",")
        if not comma or not service.startswith("pulsar") or not admin.startswith("http"):
            raise ValueError(f"must be pulsar://HOST:PORT,http://HOST:PORT, got {text!r}")
        return cls(service, admin)


@dataclass(frozen=True)
class Pulsar:
    """A broker and a namespace of our own on it, with infinite retention."""

    service_url: str
    admin_url: str
    namespace: str

    def topic(self, name: str = "t") -> str:
        """The full name of a topic that nobody has used."""
        return f"persistent://{self.namespace}/{name}-{secrets.token_hex(4)}"


class OwnBroker:
    """A broker of one test, in its folder, to stop, kill and start again. It keeps its data and its ports."""

    def __init__(self, directory: Path, *, index: bool = True, settings: str = "", token: str = "") -> None:
        """`token`: a superuser's, where the settings turn authentication on."""
        directory.mkdir(parents=True, exist_ok=True)
        extra = directory / "extra.conf"
        extra.write_text(settings)
        self._environ = {"DIR": str(directory), "KEEP": "1", "INDEX": str(int(index)), "EXTRA_CONF": str(extra)}
        self._environ["TOKEN"] = token
        self.directory = directory
        self.urls = Urls("", "")

    def index(self, given: bool) -> None:
        """Whether it gives entries an index from its next start on."""
        self._environ["INDEX"] = str(int(given))

    def start(self) -> Urls:
        """Start it and wait until it is healthy."""
        self.urls = Urls.parse(self._script("start"))
        return self.urls

    def stop(self) -> None:
        """Stop it in an orderly way."""
        self._script("stop")

    def kill(self) -> None:
        """Stop it by SIGKILL."""
        self._script("kill")

    @property
    def pid(self) -> int:
        """Of the JVM; for SIGSTOP and SIGCONT."""
        return int((self.directory / "pid").read_text())

    def _script(self, what: str) -> str:
        environ = _environ() | self._environ
        # To files: the node would keep a pipe open.
        with (self.directory / "out").open("w+") as out, (self.directory / "err").open("w+") as err:
            done = subprocess.run([SCRIPT, what], env=environ, stdout=out, stderr=err, check=False)
            out.seek(0)
            err.seek(0)
            if done.returncode:
                raise RuntimeError(f"{SCRIPT.name} {what}: {err.read()[-4000:]}")
            return out.read()


@contextlib.contextmanager
def fresh_namespace(urls: Urls) -> Iterator[Pulsar]:
    """A namespace `public/test-<random>` that keeps everything; gone afterwards with all that is in it."""
    for _ in range(3):
        pulsar = Pulsar(*urls, f"public/test-{secrets.token_hex(4)}")
        if asyncio.run(_create(pulsar)):
            break
    try:
        yield pulsar
    finally:
        # Pulsar may never answer for a namespace whose topic policies it did not load: that one stays.
        with contextlib.suppress(TimeoutError):
            asyncio.run(asyncio.wait_for(_delete(pulsar), DELETE_SECONDS))


async def _create(pulsar: Pulsar) -> bool:
    """Make the namespace; return false if Pulsar does not load its topic policies.

    Of some thousand new namespaces Pulsar 4.0.8 leaves one so: every request for them waits for ever.
    """
    async with PulsarAdmin(pulsar.admin_url, timeout=100) as admin:
        await admin.create_namespace(pulsar.namespace)
        await admin.set_namespace_retention(pulsar.namespace, FOREVER)
        topic = f"persistent://{pulsar.namespace}/first"
        await admin.create_partitioned(topic, 1, {})
        try:
            async with asyncio.timeout(POLICY_SECONDS):
                await admin.set_retention(topic, FOREVER)
        except TimeoutError:
            logging.getLogger(__name__).warning("Pulsar does not load the policies of %s", pulsar.namespace)
            return False
        await admin.delete_partitioned(topic)
    return True


async def _delete(pulsar: Pulsar) -> None:
    """Also what a gateway named after it, such as `public/test-1234-kop`."""
    async with PulsarAdmin(pulsar.admin_url, timeout=100) as admin:
        for _ in range(3):  # a client that still closes may have made a topic again
            namespaces = [
                name
                for name in await admin.list_namespaces("public")
                if name == pulsar.namespace or name.startswith(f"{pulsar.namespace}-")
            ]
            for namespace in namespaces:
                with contextlib.suppress(PulsarError):
                    await _delete_one(admin, namespace)
            if not namespaces:
                return


async def _delete_one(admin: PulsarAdmin, namespace: str) -> None:
    for topic in await admin.list_partitioned(namespace):
        with contextlib.suppress(PulsarError):
            await admin.delete_partitioned(topic)
    # Those of Pulsar itself go last: a topic with transactions writes to one of them when it is deleted.
    for topic in sorted(await admin.list_topics(namespace), key=lambda topic: "/__" in topic):
        with contextlib.suppress(PulsarError):
            await admin.delete_plain(topic)
    await admin.delete_namespace(namespace)


# -- fixtures


@pytest.fixture(scope="session")
def pulsar_urls() -> Urls:
    """Where the run's Pulsar answers. Skips or fails where there is none."""
    if why := _missing():
        _leave_out(why)
    return _served()


@pytest.fixture(scope="session")
def pulsar_home() -> Path:
    """Return the folder of Pulsar's distribution, which has its examples and tools."""
    if why := _missing():
        _leave_out(why)
    done = subprocess.run([SCRIPT, "home"], env=_environ(), capture_output=True, text=True, check=False)
    if done.returncode:
        _leave_out(done.stderr.strip())
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def pulsar(pulsar_urls: Urls) -> Iterator[Pulsar]:
    """A Pulsar and a namespace of this process on it. `pulsar.topic()` gives each test its own topics."""
    with fresh_namespace(pulsar_urls) as namespace:
        yield namespace


@pytest.fixture
def own_broker(pulsar_urls: Urls, tmp_path: Path) -> Iterator[OwnBroker]:
    """A broker to stop and start, not started yet; its test needs a mark `timeout` of minutes. Skipped as the others.

    With other settings: `OwnBroker(tmp_path / "broker", index=False, settings="...")`, stopped by the test itself.
    """
    if not _can_start():
        _leave_out(f"the test starts a broker of its own, and {_NO_JAVA}")
    broker = OwnBroker(tmp_path / "broker")
    try:
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(broker.directory, ignore_errors=True)


# -- one broker for the run

_NO_JAVA = "there is no Java or no Maven here"


def _leave_out(why: str) -> NoReturn:
    """Skip the test, or fail it where the run has to have a Pulsar."""
    if os.environ.get("KOP_REQUIRE_PULSAR") == "1":
        pytest.fail(f"KOP_REQUIRE_PULSAR=1, but {why}", pytrace=False)
    pytest.skip(_LEFT_OUT + why)


def _named() -> str:
    return os.environ.get("KOP_TEST_PULSAR", "").strip()


def _can_start() -> bool:
    return bool(shutil.which("java") and shutil.which("mvn"))


def _missing() -> str:
    """Why there is no Pulsar; empty where there is one, or will be."""
    if _named() == "off":
        return "KOP_TEST_PULSAR=off"
    return "" if _named() or _can_start() else _NO_JAVA


def _environ() -> dict[str, str]:
    """Without the settings of somebody's own broker."""
    ours = {"DIR", "PORT", "WEB_PORT", "MEM", "KEEP", "INDEX", "EXTRA_CONF", "TOKEN"}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return kept | {"OWNER": kept.get("KOP_TEST_PULSAR_OWNER", str(os.getpid()))}


def _start_once(run: Path) -> None:
    """Start the run's broker behind the scenes, unless another process of the run did. Its answer comes in files."""
    try:
        (run / "started").mkdir()
    except FileExistsError:
        return
    command = '"$0" start >"$1/out" 2>"$1/err"; echo $? >"$1/rc.new"; mv "$1/rc.new" "$1/rc"'
    starter = subprocess.Popen(
        ["bash", "-c", command, SCRIPT, run],
        env=_environ() | {"DIR": str(run / "broker")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    (run / "starter").write_text(str(starter.pid))
    starter.returncode = 0  # nobody waits for it in this process, and that is no ResourceWarning


@functools.cache
def _served() -> Urls:
    """Wait for the run's broker."""
    if _named():
        return Urls.parse(_named())
    run = Path(os.environ[_RUN])
    _start_once(run)
    end = time.monotonic() + START_TIMEOUT
    while not (run / "rc").exists():
        if time.monotonic() > end:
            raise RuntimeError(f"no Pulsar within {START_TIMEOUT} s: {(run / 'err').read_text()[-4000:]}")
        time.sleep(0.1)  # another process starts it
    if (run / "rc").read_text().strip() != "0":
        raise RuntimeError(
            f"Pulsar did not start; KOP_TEST_PULSAR=off leaves its tests out: {(run / 'err').read_text()[-4000:]}"
        )
    return Urls.parse((run / "out").read_text())


def needed_by(item: pytest.Item) -> bool:
    """Whether the test needs a Pulsar."""
    return item.get_closest_marker("pulsar") is not None


def folder() -> Path:
    """What all processes of the run share."""
    return Path(os.environ[_RUN])


# -- a broker that hangs


def state_of_the_broker() -> str:
    """The threads of the run's broker that do something, and the last lines of its log."""
    broker = folder() / "broker"
    if not (broker / "pid").exists():
        return "This run has started none.\n"
    command = ["jcmd", (broker / "pid").read_text().strip(), "Thread.print"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=8, check=False)
    except subprocess.TimeoutExpired:
        stacks = ["The JVM does not tell its threads within 8 s: it is stopped, or collects garbage."]
    else:
        stacks = [stack for stack in done.stdout.split("\n\n") if "\tat " in stack and not _idle(stack)] or [
            done.stderr
        ]
    return "\n\n".join([*stacks, (broker / "server.log").read_text(errors="replace")[-6000:]])


_IDLE = (
    *("ThreadPoolExecutor.getTask(", "epollWait", "EPoll.wait", "DelayedWorkQueue.take", "BlockingQueue.take"),
    *("Thread.sleep(", "ForkJoinPool.awaitWork", "reservedWait", "Net.accept", "ReferenceQueue.remove", "PendingRef"),
)


def _idle(stack: str) -> bool:
    return any(name in stack for name in _IDLE)


def broken() -> str:
    """Why the tests that come cannot pass: the run has started a broker, and it does not answer. Empty if it does."""
    if _named() or not (folder() / "rc").exists() or (folder() / "rc").read_text().strip() != "0":
        return ""
    url = Urls.parse((folder() / "out").read_text()).admin_url + "/admin/v2/brokers/health"
    for _ in range(2):
        try:
            urllib.request.urlopen(url, timeout=20).close()
            return ""
        except OSError as e:
            error = e.with_traceback(None)
    return f"the Pulsar of this run does not answer any more: {error}\n{state_of_the_broker()}"


# -- hooks


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of the run, before any worker is started."""
    if not hasattr(config, "workerinput"):
        os.environ[_RUN] = tempfile.mkdtemp(prefix="kop-pulsar-")
        os.environ["KOP_TEST_PULSAR_OWNER"] = str(os.getpid())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a Pulsar, before `-m` selects."""
    for item in items:
        if {"pulsar_urls", "pulsar_home"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("pulsar")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the broker early, while other tests run."""
    if not _missing() and not _named() and not session.config.option.collectonly and any(map(needed_by, session.items)):
        _start_once(Path(os.environ[_RUN]))


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Wait for the broker outside the test's time limit. What fails here fails in the fixture, once more."""
    if needed_by(item) and not _missing():
        with contextlib.suppress(RuntimeError, ValueError):
            _served()
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out."""
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if _LEFT_OUT in str(r.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"LEFT OUT: {len(skipped)} tests that need a Pulsar ({_missing() or _NO_JAVA}). Install Java 17 and Maven, "
            "or name a running one: KOP_TEST_PULSAR=pulsar://HOST:PORT,http://HOST:PORT",
            red=True,
            bold=True,
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the broker of the run."""
    if hasattr(config, "workerinput"):
        return
    run = Path(os.environ.pop(_RUN))
    if (run / "started").exists():
        if not (run / "rc").exists():  # it is starting still, maybe downloading
            with contextlib.suppress(OSError, ValueError):
                os.killpg(int((run / "starter").read_text()), signal.SIGTERM)
        subprocess.run(
            [SCRIPT, "stop"],
            env=_environ() | {"DIR": str(run / "broker")},
            stdout=subprocess.DEVNULL,
            check=False,
        )
    shutil.rmtree(run, ignore_errors=True)
