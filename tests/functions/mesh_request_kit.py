"""Requests for a mesh, as tests send them."""

from __future__ import annotations

from typing import Any

from kop.functions.definitions import WantedFunction, WantedMesh

MESH = "public/default/m"
SHOUT = "public/default/shout"
SINK = "public/default/archive"


def wanted(*names: str, package: str = "sha-1", text: str = "name: m", **config: Any) -> WantedMesh:
    functions = {
        f"public/default/{name}": WantedFunction(
            config={"name": name, "className": "f", "py": "f.py", "inputs": ["in"], **config},
            package=package,
            package_name="f.py",
        )
        for name in names
    }
    return WantedMesh(text=text, functions=functions, others=(SINK,))
