"""A mesh as its definition says now, for a driver of it, which may lead the workers, too.

Owns: this driver's view of the topics of workers; code as the definition names it.
Must not know: Spark, who of several drivers has the mesh, how it runs.
"""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kop import clock
from kop.client.errors import ClientError
from kop.functions.definitions import MeshDefinition
from kop.functions.packages import Package
from kop.functions.topic_requests import TopicRequests, new_registry
from kop.functions.topics import TopicNames
from kop.mesh.definition import defined_mesh, wanted_mesh
from kop.mesh.nodes import MeshError
from kop.mesh.server_facts import OtherWriters, other_writers
from kop.mesh.spec import Mesh

SEEN_SECONDS: Final = 30.0
"""The seconds to wait until a change that the leader has answered is seen here."""
LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True)
class DefinedMesh:
    """A mesh that is to run."""

    mesh: Mesh
    packages: Mapping[str, Package]
    """The code of each function, by its full name."""


class FollowedMesh:
    """The wanted definition of one mesh. `settings` are kafka-python's; `file` is where its file is, if it is here."""

    def __init__(
        self, settings: Mapping[str, Any], patience: float, name: str, topic_names: TopicNames, file: str = ""
    ) -> None:
        self.name = name
        self._settings = dict(settings)
        self._patience = patience
        self._topic_names = topic_names
        self._file = file
        self._closing = threading.Lock()
        self._is_closed = False
        self._versions: tuple[tuple[str, int], ...] = ()
        """The versions of the definitions from which `_others` was made."""
        self._others = OtherWriters()
        self._folder = tempfile.TemporaryDirectory(prefix="kop-packages-")
        self._registry = new_registry(settings, self._folder.name, topic_names, patience)

    def start(self) -> None:
        """Begin to follow the topics of workers, and to be ready to lead the workers; returns once the topics are read
        to their ends. ClientError if they cannot be made or read, or the server has no transactions.
        """
        self._registry.start()

    def close(self) -> None:
        """Lead the workers no more, stop following the topics, and remove the unpacked code. A second call waits until
        the first one is done, and does nothing itself.
        """
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._registry.close()
                self._folder.cleanup()

    @property
    def definition(self) -> MeshDefinition | None:
        """The definition of the mesh as this process has read it so far; None if there is no such mesh."""
        return self._registry.metadata.meshes.get(self.name)

    def other_writers(self) -> OtherWriters:
        """Return who else writes topics, of all functions and other meshes of the server, as they are defined now.
        Returns the same object as before until a definition changes.
        """
        metadata = self._registry.metadata
        meshes, functions = dict(metadata.meshes), dict(metadata.definitions)
        versions = tuple((name, each.version) for each_of in (meshes, functions) for name, each in each_of.items())
        if versions != self._versions:
            self._versions, self._others = versions, other_writers(self.name, meshes, functions)
        return self._others

    def other_groups(self) -> set[str]:
        """Return the consumer groups of all functions and other meshes of the server that are not of this mesh."""
        metadata = self._registry.metadata
        meshes = dict(metadata.meshes)
        here = meshes.pop(self.name, None)
        own = () if here is None else here.functions
        groups = {made.spec.group for fqfn, made in dict(metadata.definitions).items() if fqfn not in own}
        return groups.union(*(mesh.others for mesh in meshes.values()))

    def ensure(self, mesh: Mesh, text: str, seen: int | None) -> None:
        """Let the leader of the workers define the mesh as `mesh`, whose file has the text `text`, and mark it as
        started; returns once `definition` shows that. `seen` is the revision of the mesh when its user decided that;
        None if there was none: what others have changed since stays.

        ClientError if the leader refuses it, somebody else has sent another definition since, or it is not seen here
        within 30 s.
        """
        by = f"kop mesh run on {socket.gethostname()}"
        with TopicRequests(self._settings, self._patience, self._topic_names, by, may_lead=False) as requests:
            answer = requests.ensure(self.name, *wanted_mesh(mesh, text), seen)
        if not answer.won or answer.revision is None:
            raise ClientError(f"{self.name} is not defined as the file says: {answer.reason}")
        end = clock.monotonic() + SEEN_SECONDS
        while (there := self.definition) is None or there.revision < answer.revision:
            if clock.monotonic() > end:
                raise ClientError(f"revision {answer.revision} of {self.name} is not seen within {SEEN_SECONDS:g} s")
            threading.Event().wait(LOOK_SECONDS)

    def defined(self, definition: MeshDefinition) -> DefinedMesh | None:
        """Return the mesh of a definition with the code of its functions; None if this process has not read all of the
        code yet. ClientError if this version of kop cannot run the definition.
        """
        packages: dict[str, Package] = {}
        metadata = self._registry.metadata
        for fqfn in definition.functions:
            function = metadata.definitions.get(fqfn)
            package = function and metadata.packages.package(function.package, function.package_name)
            if not package:
                return None
            packages[fqfn] = package
        try:
            return DefinedMesh(defined_mesh(definition, self._file), packages)
        except MeshError as error:
            raise ClientError(str(error)) from None
