"""Questions to other workers: the status of their instances, state and triggers.

Owns: the requests for it, their time limits, and what is said of a worker that does not answer.
Must not know: which worker has which instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from kop.functions.definitions import WorkerInfo

STATUS_SECONDS: Final = 5.0
MARGIN_SECONDS: Final = 2.0
"""The seconds that the way to an instance may take beyond the time that the instance has."""


class OtherWorkerError(Exception):
    """A worker that does not answer, or says no."""


class OtherWorkers:
    """A client of other workers, on the event loop that it is made on. `token` is that of all workers."""

    def __init__(self, token: str | None) -> None:
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def status(self, worker: WorkerInfo, fqfn: str) -> dict[int, dict[str, Any]]:
        """Return the InstanceStatus, as JSON, of the instances of a function that a worker has, by number.
        OtherWorkerError if it does not answer within 5 s, or says no.
        """
        answer = await self._send("GET", worker, f"/internal/status/{quote(fqfn)}", STATUS_SECONDS)
        return {int(number): status for number, status in answer.items()}

    async def ask(
        self, worker: WorkerInfo, fqfn: str, instance: int, question: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        """Ask an instance that a worker has, and return the answer. OtherWorkerError if the worker does not answer
        within `seconds` and 2 more, or says no.
        """
        path = f"/internal/ask/{quote(fqfn)}/{instance}"
        return await self._send("POST", worker, path, seconds + MARGIN_SECONDS, question)

    async def _send(
        self, method: str, worker: WorkerInfo, path: str, seconds: float, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers)
        url = f"http://{worker.address}{path}"
        where = f"the worker {worker.worker_id} at {worker.address}"
        limit = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._session.request(method, url, json=body, timeout=limit) as response:
                answer: dict[str, Any] = await response.json()
                if response.status >= 400:
                    raise OtherWorkerError(f"{where} says: {answer.get('reason', response.status)}")
                return answer
        except TimeoutError:
            raise OtherWorkerError(f"{where} does not answer within {seconds:g} s") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise OtherWorkerError(f"{where} does not answer: {error}") from None
