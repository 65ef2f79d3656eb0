"""Worker processes: started, started again, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.waiting import SECONDS, wait_until

PROGRAM = """
import signal, sys, time
from functools import partial
from pathlib import Path
from kop.server.supervisor import supervise

def work(folder, index):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (folder / f"starts-{index}").open("a") as out:
        out.write(f"{__import__('os').getpid()}\\n")
    while True:
        time.sleep(0.05)

if __name__ == "__main__":
    supervise(2, partial(work, Path(sys.argv[1])))
"""


def starts(folder: Path, index: int) -> list[int]:
    path = folder / f"starts-{index}"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_that_dies_is_started_again_and_all_end_with_the_supervisor(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path)], stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: starts(tmp_path, 0) and starts(tmp_path, 1))
        os.kill(starts(tmp_path, 1)[0], signal.SIGKILL)
        wait_until(lambda: len(starts(tmp_path, 1)) == 2)
        assert len(starts(tmp_path, 0)) == 1
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        assert "worker 1 ended with code -9" in log
        assert not alive(starts(tmp_path, 0)[0])
        assert not alive(starts(tmp_path, 1)[1])
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
