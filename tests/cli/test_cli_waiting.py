"""What commands that wait say and do, at a terminal and in a pipe, while their server does not answer."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from cli.cli_support import environment
from support.child import free_port
from support.waiting import SECONDS

IMPATIENT = "from kop.cli import common; common.SAY_SECONDS = 0.5; from kop.cli import main; main.main()"

CONTROLLING = "import os; os.close(os.open(os.ttyname(0), os.O_RDWR)); "
"""Makes the terminal of stdin that of the session, so that Ctrl-C is a signal."""


class Server:
    """A `kop serve` of this module's own."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "kop.cli.main", "serve", "--listen", self.address, "--http", ""),
                *("--store", "memory:", "--set", "group.initial.rebalance.delay.ms=1500"),
                *("--set", "kop.memory.bytes=1048576"),
            ],
            env=environment(),
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + SECONDS
        while True:
            with contextlib.suppress(OSError):
                host, _, port = self.address.partition(":")
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            assert time.monotonic() < end
            time.sleep(0.05)  # asked again until it listens

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(SECONDS)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    try:
        yield made
    finally:
        made.close()


class Terminal:
    """A command whose stdin, stdout and stderr are a terminal."""

    def __init__(self, server: Server, *arguments: str, **variables: str) -> None:
        self._screen, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLING + IMPATIENT, *arguments],
            env=environment(KOP_BOOTSTRAP=server.address, TERM="xterm", **variables),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until the terminal shows this behind what was found before."""
        end = time.monotonic() + SECONDS
        while True:
            match = re.search(pattern, self.shown)
            if match is not None:
                self.shown = self.shown[match.end() :]
                return match
            assert time.monotonic() < end, self.shown
            assert self._read(), f"it ended: {self.shown}"

    def _read(self) -> bool:
        if select.select([self._screen], [], [], 0.1)[0]:
            try:
                data = os.read(self._screen, 4096)
            except OSError:  # Linux's way to tell the end
                return False
            self.shown += data.decode()
        return True

    def end(self) -> int:
        """Wait until the command has ended; its exit code."""
        while self._read():
            pass
        return self._process.wait(SECONDS)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(SECONDS)
        os.close(self._screen)


@contextlib.contextmanager
def terminal(server: Server, *arguments: str, **variables: str) -> Iterator[Terminal]:
    opened = Terminal(server, *arguments, **variables)
    try:
        yield opened
    finally:
        opened.close()


def test_produce_says_what_it_waits_for_and_ctrl_c_ends_it(server: Server) -> None:
    with terminal(server, "produce", "waiting") as shell:
        shell.until("type records, one a line; Ctrl-D ends")
        with server.paused():
            shell.type("one\ntwo\n")
            shell.until(rf"no answer from {server.address}; 2 records wait, for 120 s at most \(Ctrl-C ends\)")
            begin = time.monotonic()
            shell.type("\x03")
            shell.until("kop: interrupted; 0 of 2 were sent, 2 unanswered")
            assert shell.end() == 1
            assert time.monotonic() - begin < 60, "half a second on an idle machine, and not the 120 s"


def test_produce_goes_on_when_the_server_does(server: Server) -> None:
    with terminal(server, "produce", "waiting") as shell:
        shell.until("Ctrl-D ends")
        with server.paused():
            shell.type("one\n")
            shell.until("1 record waits")
        shell.type("two\n\x04")
        shell.until("2 records, ")
        assert shell.end() == 0


def test_a_bad_line_at_the_prompt_is_told_and_the_session_goes_on(server: Server) -> None:
    with terminal(server, "produce", "prompt", "--json") as shell:
        shell.until("Ctrl-D ends")
        shell.type("oops\n")
        shell.until("line 1 is no JSON")
        shell.type('{"value": "good"}\n\x04')
        shell.until("kop: 1 of 2 was sent")
        assert shell.end() == 1


def run(server: Server, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", IMPATIENT, *arguments],
        env=environment(KOP_BOOTSTRAP=server.address),
        input=given,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )


def test_the_time_of_produce_is_over(server: Server) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, "produce", "waiting", "--timeout", "1.5"],
        env=environment(KOP_BOOTSTRAP=server.address),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with server.paused():
        _, err = process.communicate(b"one\n", SECONDS)
    assert process.returncode == 1
    assert err.decode().splitlines()[-1].startswith(f"kop: no answer from {server.address}; given up after 1.5 s")


def test_a_server_that_refuses_for_now_is_named_with_its_words(server: Server) -> None:
    """Its memory is full."""
    process = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, "produce", "full"],
        env=environment(KOP_BOOTSTRAP=server.address),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        process.stdin.write(("x" * 999 + "\n") * 3000)
        process.stdin.close()
        waiting = r"KAFKA_STORAGE_ERROR: the memory .*; [\d,]+ records wait, for 120 s at most \(Ctrl-C ends\)\n"
        while not re.fullmatch(waiting, line := process.stderr.readline()):
            assert line, "it ended"
        process.send_signal(signal.SIGINT)
        last = process.stderr.readlines()[-1]
        assert re.fullmatch(r"kop: interrupted; [\d,]+ of [\d,]+ were sent, [\d,]+ unanswered\n", last)
        assert process.wait(SECONDS) == 1
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        run(server, "topics", "delete", "full")


def test_consume_says_that_its_server_does_not_answer(server: Server) -> None:
    run(server, "produce", "silent", given=b"a\n")
    with terminal(server, "consume", "silent", "-B") as shell:
        shell.until("a\r\n")
        with server.paused():
            shell.until(rf"{server.address} does not answer; waiting since \d+ s \(Ctrl-C ends\)")
            shell.type("\x03")
            shell.until("1 record")
            assert shell.end() == 0


def test_a_silence_that_is_the_servers_is_no_clean_end(server: Server) -> None:
    run(server, "produce", "silence", given=b"a\n")
    with terminal(server, "consume", "silence", "-B", "-t", "4") as shell:
        shell.until("a\r\n")
        with server.paused():
            shell.until(f"kop: {server.address} does not answer; there may be more records")
            assert shell.end() == 1


def test_the_silence_of_a_group_begins_with_its_first_partitions(server: Server) -> None:
    """The group waits 1.5 s for more members: as long nothing can come."""
    run(server, "produce", "joined", given=b"a\n")
    with terminal(server, "consume", "joined", "-B", "-g", "patient", "-t", "1") as shell:
        shell.until("joining the group patient")
        shell.until("a\r\n")
        assert shell.end() == 0


def test_colours_are_for_terminals_that_want_them(server: Server) -> None:
    name = "a-name-that-is-longer-than-the-columns-of-a-narrow-terminal-are-wide"
    run(server, "topics", "create", name)
    with terminal(server, "topics", "list", COLUMNS="60") as shell:
        shell.until("\x1b\\[1mTOPIC     \x1b\\[0m  " + name)
        shell.end()
    with terminal(server, "topics", "list", COLUMNS="80", NO_COLOR="1") as shell:
        shell.until("TOPIC +PARTITIONS\r\n")
        shell.end()
        assert "\x1b" not in shell.shown
    assert b"\x1b" not in run(server, "topics", "list").stdout


COMPLETING = {"_KOP_COMPLETE": "bash_complete", "COMP_WORDS": "kop consume com", "COMP_CWORD": "2"}


def test_names_complete_from_the_server_or_not_at_all(server: Server) -> None:
    run(server, "topics", "create", "completed")

    def complete(address: str, seconds: float = 0.8) -> tuple[str, str]:
        patience = f"from kop.cli import completion, main; completion.SECONDS = {seconds}; main.main()"
        completed = subprocess.run(
            [sys.executable, "-c", patience],
            env=environment(KOP_BOOTSTRAP=address, **COMPLETING),
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        return completed.stdout.strip(), completed.stderr

    assert complete(server.address, SECONDS) == ("plain,completed", "")
    with server.paused():
        assert complete(server.address) == ("", "")
    assert complete(f"127.0.0.1:{free_port()}") == ("", "")
