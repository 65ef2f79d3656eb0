"""A component as its tasks get it: what is read, which functions are called in which order, what is written.

Owns: this description, which travels to executors.
Must not know: how a mesh is cut into components (`kop.mesh.plan`), Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kop.client.offsets import TopicPartition
from kop.functions.packages import Package
from kop.functions.spec import FunctionSpec, Guarantee


@dataclass(frozen=True)
class Step:
    """A function of a component."""

    spec: FunctionSpec
    code: Package
    inputs: tuple[str, ...]
    """The topics that it reads and that its component reads, too."""
    inner_inputs: tuple[str, ...] = ()
    """Those that a function of the same component writes."""
    no_state: str | None = None
    """The reason that the function may have no state; None: it may."""


@dataclass(frozen=True)
class TaskComponent:
    """Functions whose records go from one to the next without being read from a topic."""

    full_name: str
    """TENANT/NAMESPACE/MESH/COMPONENT."""
    steps: tuple[Step, ...]
    """In the order of their calls."""
    guarantee: Guarantee
    inputs: tuple[str, ...]
    inner: frozenset[str] = frozenset()
    """The topics between its functions."""
    private: frozenset[str] = frozenset()
    """Those of them that are not written."""
    is_whole: bool = False
    """True if one function needs all partitions at once: it runs as an instance of its own. So does one with MANUAL,
    which may acknowledge a message of any partition.
    """

    @property
    def name(self) -> str:
        """The name of the component within its mesh."""
        return self.full_name.rpartition("/")[2]


@dataclass(frozen=True)
class Work:
    """The data that a task of a component needs beside its partitions."""

    component: TaskComponent
    settings: Mapping[str, Any]
    """kafka-python's."""
    patience: float
    hub: tuple[str, int]
    """The host and port at which the driver is told of the work of tasks, and lets them end."""
    token: str
    tasks: int
    """The number of tasks that there are at most."""
    batch_seconds: float | None
    """The seconds that a batch lasts; None: it ends where the logs ended when it was planned."""
    once: bool = False
    """True if batches end when all that there was is called, though it may not be acknowledged."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of partitions that topics had when the component was cut. Its tasks process no further ones: with them
    it may have to be cut in another way.
    """
    suspects: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Records that have ended a process: what is before them is committed first, and each of them is called alone."""
