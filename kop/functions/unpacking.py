"""Packages on their way to code that runs: unpacked beside everything else, since pip may take minutes for one.

Owns: which packages lie here, are being unpacked, or cannot be; when that is tried again.
Must not know: where packages come from, who needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, NamedTuple, TypeAlias

from kop import clock
from kop.functions.function import CodePlace
from kop.functions.packages import PackageError

WAIT_SECONDS: Final = 1.0
"""The seconds to wait for packages: most of them take milliseconds."""
RETRY_SECONDS: Final = 60.0
THREADS: Final = 2

Code: TypeAlias = tuple[str, str]
"""The digest and the name of a package."""


class _Outcome(NamedTuple):
    place: CodePlace | None
    reason: str
    retry_at: float


class Unpacking:
    """The packages that one thread asks for. `unpack` returns where one lies; `changed` is called once one is done."""

    def __init__(self, unpack: Callable[[str, str], CodePlace], changed: Callable[[], None]) -> None:
        self._unpack = unpack
        self._changed = changed
        self._attempts: dict[Code, Future[_Outcome]] = {}
        self._threads = ThreadPoolExecutor(THREADS, "kop-function-unpack")

    def close(self) -> None:
        """Begin no further package, and return at once; one that is being unpacked goes on."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def want(self, codes: Collection[Code]) -> None:
        """Unpack these packages in the background, and forget the others; one that has failed is tried again 60 s later
        at the earliest. Waits up to a second until all are done.
        """
        self._attempts = {
            code: attempt for code, attempt in self._attempts.items() if code in codes and not _is_over(attempt)
        }
        for code in set(codes) - self._attempts.keys():
            attempt = self._attempts[code] = self._threads.submit(self._try, *code)
            attempt.add_done_callback(lambda _: self._changed())
        wait(self._attempts.values(), WAIT_SECONDS)

    def place(self, code: Code) -> CodePlace | None:
        """Return the place where a package lies that `want` was given; None while it is being unpacked. PackageError if
        it cannot be unpacked.
        """
        attempt = self._attempts[code]
        if not attempt.done():
            return None
        outcome = attempt.result()
        if outcome.place is None:
            raise PackageError(outcome.reason)
        return outcome.place

    def next_try(self) -> float | None:
        """Return the seconds after which `want` has to be called to try failed packages again; None without any."""
        due = [_retry_at(attempt) for attempt in self._attempts.values()]
        times = [at for at in due if at is not None]
        return max(0.0, min(times) - clock.monotonic()) if times else None

    def _try(self, digest: str, name: str) -> _Outcome:
        try:
            return _Outcome(self._unpack(digest, name), "", 0.0)
        except PackageError as error:
            reason = str(error)
        except Exception as error:  # no room on the disk, for example
            reason = f"the package {name} cannot be unpacked: {error!r}"
        return _Outcome(None, reason, clock.monotonic() + RETRY_SECONDS)


def _retry_at(attempt: Future[_Outcome]) -> float | None:
    if not attempt.done() or attempt.cancelled() or attempt.result().place is not None:
        return None
    return attempt.result().retry_at


def _is_over(attempt: Future[_Outcome]) -> bool:
    at = _retry_at(attempt)
    return at is not None and clock.monotonic() >= at
