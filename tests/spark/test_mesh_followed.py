"""The view that the driver of a mesh has of a server: who else writes its topics."""

from __future__ import annotations

from support.waiting import wait_until

from kop.client.keyed_topic import KeyedTopic
from kop.functions.definitions import Definition
from kop.functions.metadata import DEFINITIONS
from kop.functions.packages import Package
from kop.functions.topics import HOME
from kop.mesh.file import read_mesh
from kop.mesh.spec import Mesh
from kop.spark.mesh.cutting import components_of
from kop.spark.mesh.followed_mesh import DefinedMesh, FollowedMesh
from kop.testing import Broker

MESH = """\
name: m
functions:
- {name: a, className: f, py: f.py, inputs: [in], output: t}
- {name: b, className: f, py: f.py, inputs: [t], output: u}
"""


def cut(mesh: Mesh, followed: FollowedMesh) -> list[str]:
    packages = {part.spec.fqfn: Package("f.py", b"") for part in mesh.functions}
    partitions = {"in": 1, "t": 1, "u": 1}
    others = followed.other_writers().by_topic
    return [made.name for made in components_of(DefinedMesh(mesh, packages), partitions, writers=others)]


def test_a_function_that_writes_between_two_parts_cuts_them_once_it_is_defined(kop_broker: Broker) -> None:
    mesh = read_mesh(MESH, "mesh.yaml")
    settings = {"bootstrap_servers": [kop_broker.bootstrap]}
    followed = FollowedMesh(settings, 20.0, mesh.full_name, HOME)
    topic = KeyedTopic(settings, DEFINITIONS, 20.0)
    try:
        followed.start()
        assert cut(mesh, followed) == ["a"]
        assert followed.other_writers() is followed.other_writers(), "nothing is read again unless it changes"
        config = {"name": "z", "className": "f", "py": "f.py", "inputs": ["x"], "output": "t"}
        other = Definition(fqfn="public/default/z", config=config, revision=1, version=1)
        topic.put({other.fqfn: other.to_json()})
        wait_until(lambda: "t" in followed.other_writers().by_topic, "the function to be seen", 30.0)
        assert cut(mesh, followed) == ["a", "b"]
        topic.put({other.fqfn: None})
        wait_until(lambda: cut(mesh, followed) == ["a"], "the function to be gone", 30.0)
    finally:
        topic.close()
        followed.close()
