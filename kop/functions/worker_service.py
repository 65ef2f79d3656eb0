"""The interface of a worker that REST asks.

Owns: this interface.
Must not know: who offers it, and how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol, TypeAlias

from kop.functions.definitions import Assignment, Definition, InstanceName, LeaderAnswer, WorkerInfo
from kop.functions.packages import Package

Json: TypeAlias = dict[str, Any]


class Requests(Protocol):
    """The requests to the leader. `fqfn` is TENANT/NAMESPACE/NAME."""

    async def request(
        self,
        kind: str,
        fqfn: str,
        *,
        expects: int | None = None,
        config: Json | None = None,
        package: Package | None = None,
        instance: int | None = None,
        by: str,
    ) -> LeaderAnswer:
        """Ask the leader for a change of a definition, and return its answer. `kind` is the change: create, update,
        delete, start, stop or restart; `expects` is the revision that it is based on, `by` who asks.
        """

    async def rebalance(self) -> LeaderAnswer:
        """Ask the leader to deal all instances to the workers anew, and return its answer."""

    async def drain(self, worker_id: str, *, drained: bool = True) -> LeaderAnswer:
        """Ask the leader to give the instances of a worker to others; with `drained` False to let it have some again.
        Returns its answer.
        """


class Questions(Protocol):
    """The questions to instances, wherever they run."""

    async def status(self, fqfn: str, instance: int | None) -> Mapping[int, Json]:
        """Return the InstanceStatus, as JSON, of all assigned instances or of one, by number, wherever they run."""

    async def ask(self, fqfn: str, instance: int | None, question: Json) -> Json:
        """Ask an instance, and return its answer, or a field `error` with a `status`. Without a number it is the
        instance that has the partition or key asked for.
        """


class Service(Protocol):
    """The services of a worker for those who ask it. `fqfn` is TENANT/NAMESPACE/NAME."""

    @property
    def cluster(self) -> str:
        """The name of the cluster, for metrics."""

    @property
    def worker_id(self) -> str:
        """The name of this worker."""

    @property
    def requests(self) -> Requests:
        """The requests to the leader. ClientError if the worker has not started."""

    @property
    def questions(self) -> Questions:
        """The questions to instances. ClientError if the worker has not started."""

    def definition(self, fqfn: str) -> Definition | None:
        """Return the definition of a function; None if there is none."""

    def names(self, tenant: str, namespace: str) -> list[str]:
        """Return the names of the functions of a namespace."""

    def functions(self) -> Sequence[Definition]:
        """Return all definitions."""

    async def history(self, fqfn: str, limit: int) -> Sequence[Json]:
        """Return the last `limit` requests for a function and their answers, the oldest of them first."""

    async def package(self, fqfn: str) -> Package | None:
        """Return the package of a function; None if there is none."""

    async def upload(self, path: str, data: bytes) -> None:
        """Store a file in the topic of packages under a path; a file that was there is replaced. TimeoutError if it is
        not readable there in time.
        """

    async def download(self, path: str) -> bytes | None:
        """Return a file that was uploaded; None if there is none."""

    def workers(self) -> Sequence[WorkerInfo]:
        """Return the workers that live and run instances."""

    def leader(self) -> WorkerInfo | None:
        """Return who leads, a worker or the driver of a mesh; None if nobody does."""

    def assignments(self) -> Mapping[InstanceName, Assignment]:
        """Return the worker and the partitions of each instance that has some."""

    def drained(self) -> Set[str]:
        """Return the ids of the workers that are given no instances."""

    def not_ready(self) -> str | None:
        """Return why the worker cannot do its work at the moment; None if it can."""

    def local(self) -> Mapping[InstanceName, Json]:
        """Return the InstanceStatus, as JSON, of the instances of this worker. It may block for a second."""

    async def local_ask(self, fqfn: str, instance: int, question: Json) -> Json:
        """Ask an instance that runs on this worker, and return its answer, or a field `error`."""
