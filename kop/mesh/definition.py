"""A mesh as a definition of the workers' cluster: what a request for it has, and the mesh that a definition means.

Owns: these two translations; the code is read from the files that the mesh names.
Must not know: servers, who decides, how a mesh runs.
"""

from __future__ import annotations

from pathlib import Path, PurePath

from kop.functions.definitions import MeshDefinition, WantedFunction, WantedMesh
from kop.functions.packages import Package, read_package
from kop.mesh.file import read_mesh
from kop.mesh.spec import Mesh

WHERE = "mesh.yaml"
"""The file in errors of a mesh whose file is not on this machine."""


def wanted_mesh(mesh: Mesh, text: str) -> tuple[WantedMesh, list[Package]]:
    """Return a mesh as a request to define it has it, and the packages with the code of its functions, each file once.
    The files of code are read; `text` is the text of the mesh's file.

    PackageError if code cannot be read.
    """
    space = f"{mesh.tenant}/{mesh.namespace}"
    packages = {path: read_package(path) for path in dict.fromkeys(part.spec.py for part in mesh.functions)}
    wanted = WantedMesh(
        text=text,
        functions={
            part.spec.fqfn: WantedFunction(
                config={
                    **{name: value for name, value in part.config.items() if name != "fqfn"},
                    "tenant": part.spec.tenant,
                    "namespace": part.spec.namespace,
                    "name": part.name,
                    "py": PurePath(part.spec.py).name,
                },
                package=packages[part.spec.py].digest,
                package_name=PurePath(part.spec.py).name,
            )
            for part in mesh.functions
        },
        others=tuple(f"{space}/{part.name}" for part in mesh.parts if part.kind != "function"),
    )
    return wanted, list(packages.values())


def defined_mesh(definition: MeshDefinition, file: str = "") -> Mesh:
    """Return the mesh of a definition, read anew from its text. `file` is the path that the text came from: relative
    paths of code start at its folder, and errors name it; without it they start at the working directory, and errors
    name mesh.yaml. MeshError if this version of kop cannot read the text.
    """
    return read_mesh(definition.text, Path(file or WHERE), definition.topic_names)
