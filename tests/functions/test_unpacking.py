"""Packages that are being unpacked while others run."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.waiting import wait_until

from kop.functions.function import CodePlace
from kop.functions.packages import PackageError
from kop.functions.unpacking import Unpacking

QUICK, SLOW, WRONG, FULL = ("1", "quick.py"), ("2", "slow.zip"), ("3", "wrong.zip"), ("4", "full.whl")


class Packages:
    """What a test unpacks."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.changes = 0
        self.unpacked: list[str] = []
        self.unpacking = Unpacking(self.unpack, self.note)

    def note(self) -> None:
        self.changes += 1

    def unpack(self, digest: str, name: str) -> CodePlace:
        self.unpacked.append(name)
        if name == "slow.zip":
            assert self.go_on.wait(20)
        if name == "wrong.zip":
            raise PackageError("it has not Pulsar's layout")
        if name == "full.whl":
            raise OSError(28, "No space left on device")
        return CodePlace(name)


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    monkeypatch.setattr("kop.functions.unpacking.WAIT_SECONDS", 0.05)
    made = Packages()
    yield made
    made.go_on.set()
    made.unpacking.close()


def test_a_package_that_takes_long_holds_up_no_other(packages: Packages) -> None:
    packages.unpacking.want([QUICK, SLOW])
    wait_until(lambda: packages.unpacking.place(QUICK) == CodePlace("quick.py"))
    assert packages.unpacking.place(SLOW) is None
    packages.go_on.set()
    wait_until(lambda: packages.changes == 2)
    packages.unpacking.want([QUICK, SLOW])
    assert packages.unpacking.place(SLOW) == CodePlace("slow.zip")
    assert sorted(packages.unpacked) == ["quick.py", "slow.zip"], "each once"
    assert packages.unpacking.next_try() is None


def test_what_is_not_wanted_any_more_is_forgotten(packages: Packages) -> None:
    for codes in ([QUICK], [], [QUICK]):
        packages.unpacking.want(codes)
    wait_until(lambda: packages.unpacked == ["quick.py", "quick.py"])


def test_a_package_that_cannot_be_unpacked_is_tried_again(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    packages.unpacking.want([WRONG, FULL])
    wait_until(lambda: packages.changes == 2)
    with pytest.raises(PackageError, match="layout"):
        packages.unpacking.place(WRONG)
    with pytest.raises(PackageError, match=r"full\.whl cannot be unpacked: .*No space left"):
        packages.unpacking.place(FULL)
    packages.unpacking.want([WRONG, FULL])
    assert len(packages.unpacked) == 2, "not at once"
    assert 50 < (packages.unpacking.next_try() or 0) <= 60
    monkeypatch.setattr("kop.functions.unpacking.RETRY_SECONDS", 0.0)
    packages.unpacking.want([])
    for _ in range(2):
        packages.unpacking.want([WRONG])
        wait_until(lambda: packages.unpacking.next_try() == 0)
    assert len(packages.unpacked) == 4
