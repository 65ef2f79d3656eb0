"""The options that a worker is started with, and the facts that it tells the others of itself.

Owns: options and their defaults.
Must not know: what a worker does.
"""

from __future__ import annotations

import importlib
import socket
from dataclasses import dataclass
from pathlib import Path

from kop.address import Address
from kop.client.errors import ClientError
from kop.functions.definitions import WorkerInfo, is_worker_id
from kop.functions.registry import SESSION_SECONDS
from kop.functions.scheduler import Scheduler, schedule
from kop.functions.topics import DEFAULT_NAMESPACE


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of a worker when it starts; ClientError if its id cannot be one."""

    worker_id: str
    folder: Path
    """The folder in which packages are kept."""
    host: str = "127.0.0.1"
    port: int = 6750
    advertise: Address | None = None
    """The address at which the other workers ask it, if that is another one than the one that it listens on."""
    allow_index: bool = False
    """True if dependencies that a package does not have may come from pip's index."""
    token: str | None = None
    scheduler: str = ""
    """Another scheduler, MODULE.FUNCTION."""
    topic_namespace: str = DEFAULT_NAMESPACE
    cluster: str = "kop"
    session_seconds: float = SESSION_SECONDS

    def __post_init__(self) -> None:
        if not is_worker_id(self.worker_id):
            raise ClientError(f"give the worker another id: {self.worker_id!r} may have letters, digits and -_. only")

    def announced(self, port: int) -> WorkerInfo:
        """Return the description that the worker gives the others of itself if it listens on this port: with
        `advertise`, if it is given, else with its host, or the machine's name if it listens on all addresses.
        """
        if self.advertise is not None:
            return WorkerInfo(self.worker_id, self.advertise.host, self.advertise.port or port)
        host = socket.gethostname() if self.host in {"", "0.0.0.0", "::"} else self.host
        return WorkerInfo(self.worker_id, host, port)


def default_worker_id(port: int) -> str:
    """Return the id of the worker on a port of this machine: the same one after each start."""
    host = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in socket.gethostname())
    return f"{host or 'worker'}-{port}"


def scheduler_named(name: str) -> Scheduler:
    """Return the scheduler MODULE.FUNCTION, kop's own if the name is empty; ClientError if it cannot be imported."""
    if not name:
        return schedule
    module, _, function = name.rpartition(".")
    try:
        scheduler: Scheduler = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ClientError(f"name a scheduler that can be imported, MODULE.FUNCTION: {name} cannot ({error})") from None
    return scheduler
