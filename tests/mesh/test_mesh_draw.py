"""The picture of a mesh: nothing lies over anything else, few lines cross, texts fit, shapes say what is what."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest
from mesh.mesh_kit import mesh_by_chance, mesh_of

from kop.mesh.draw import Box, Flow, Frame, Line, Picture, broken, draw, picture_of, text_width
from kop.mesh.file import read_mesh
from kop.mesh.layers import Node, crossings, layer_numbers, layered, put_in_order
from kop.mesh.plan import plan
from kop.mesh.spec import Mesh

TEN = (
    "check orders -> checked",
    "enrich checked -> enriched private: true",
    "route enriched -> routed",
    "alert enriched,payments -> alerts",
    "count routed -> counts stateScope: partition, parallelism: 3",
    "notify counts,alerts -> out deadLetterTopic: dead, maxMessageRetries: 2",
)
OTHERS = {
    "sources": "[{name: files, format: json, output: orders}]",
    "sinks": "[{name: lake, inputs: [checked, counts], format: parquet}, {name: grave, inputs: dead, format: text}]",
    "queries": "[{name: large, sql: select * from checked, output: large-orders}]",
}


def picture(mesh: Mesh) -> Picture:
    return picture_of(mesh, plan(mesh))


def apart(first: Box | Frame, second: Box | Frame, by: float = 4) -> bool:
    return (
        first.x + first.width + by <= second.x
        or second.x + second.width + by <= first.x
        or first.y + first.height + by <= second.y
        or second.y + second.height + by <= first.y
    )


def within(box: Box | Frame, frame: Frame) -> bool:
    return (
        frame.x < box.x
        and box.x + box.width < frame.x + frame.width
        and frame.y < box.y
        and box.y + box.height < frame.y + frame.height
    )


def points_of(line: Line) -> list[tuple[float, float]]:
    """Return points along a line: straight, bent, straight, as it is drawn."""
    points: list[tuple[float, float]] = []
    for number, ((x, y), (to_x, to_y)) in enumerate(itertools.pairwise(line.points)):
        for step in range(6):
            t = step / 5
            if number % 2 == 0:
                points.append((x + (to_x - x) * t, y + (to_y - y) * t))
            else:
                middle = (x + to_x) / 2
                bent = (1 - t) ** 3 * x + 3 * (1 - t) ** 2 * t * middle + 3 * (1 - t) * t**2 * middle + t**3 * to_x
                points.append((bent, y + (to_y - y) * (3 * t**2 - 2 * t**3)))
    return points


def check(made: Picture) -> None:
    for first, second in itertools.combinations(made.boxes, 2):
        assert apart(first, second), (first, second)
    for first_frame, second_frame in itertools.combinations(made.frames, 2):
        assert apart(first_frame, second_frame)
    for frame, box in itertools.product(made.frames, made.boxes):
        assert within(box, frame) or apart(frame, box), (frame, box)
        assert text_width(frame.label, 12) + 14 <= frame.width
    for box in made.boxes:
        assert box.x > 0
        assert box.x + box.width < made.width
        assert box.y > 0
        assert box.y + box.height < made.height
        assert all(text_width(line, 14) <= box.width - 16 for line in box.lines)
        assert all(text_width(line, 12) <= box.width - 16 for line in box.details)
        assert len(box.lines) * 18 + len(box.details) * 15 < box.height
    for line in made.lines:
        assert all(x <= to_x + 0.1 for (x, _), (to_x, _) in itertools.pairwise(line.points)), line
        points = points_of(line)
        for box in made.boxes:
            left, right, top, bottom = box.x + 1, box.x + box.width - 1, box.y + 1, box.y + box.height - 1
            assert not any(left < x < right and top < y < bottom for x, y in points), (line, box.name)


def test_the_picture_of_a_mesh_with_all_kinds_of_parts() -> None:
    mesh = mesh_of(*TEN, **OTHERS)
    made = picture(mesh)
    check(made)
    assert {box.shape for box in made.boxes} == {"function", "source", "sink", "query", "topic", "private"}
    assert {frame.label for frame in made.frames} == {"check, ATLEAST_ONCE", "count, ATLEAST_ONCE"}
    assert {line.told for line in made.lines if line.is_dashed} == {"notify writes messages aside to dead"}
    names = {box.name: box for box in made.boxes}
    for start, end in (
        ("files", "orders"),
        ("orders", "check"),
        ("check", "checked"),
        ("count", "counts"),
        ("counts", "lake"),
    ):
        assert names[start].x + names[start].width < names[end].x
    whole = next(frame for frame in made.frames if within(names["check"], frame))
    assert all(within(names[name], whole) for name in ("checked", "enrich", "enriched", "route", "alert"))
    assert not within(names["routed"], whole)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_lies_over_anything_else(seed: int) -> None:
    check(picture(mesh_by_chance(Random(seed), 8)))
    check(picture(mesh_by_chance(Random(seed + 100), 4)))


@pytest.mark.parametrize("seed", range(6))
def test_small_graphs_have_the_fewest_crossings(seed: int) -> None:
    chance = Random(seed)
    for _ in range(6):
        rows = [[f"{layer}-{n}" for n in range(chance.randint(2, 4))] for layer in range(3)]
        arrows = [
            (start, end)
            for left, right in itertools.pairwise(rows)
            for start in left
            for end in right
            if chance.random() < 0.4
        ]
        numbers: dict[Node, int] = {node: layer for layer, row in enumerate(rows) for node in row}
        nodes = [node for row in rows for node in row]
        made = layered(nodes, arrows, numbers)
        put_in_order(made)
        orders = itertools.product(*(itertools.permutations(row) for row in rows))
        least = min(crossings(order, made.links) for order in orders)
        assert crossings(made.rows, made.links) <= (
            least if math.prod(math.factorial(len(r)) for r in rows) <= 4000 else least + 1
        )


def test_a_tree_of_any_size_has_no_crossing() -> None:
    nodes = list(range(60))
    arrows = [((node - 1) // 3, node) for node in nodes[1:]]
    made = layered(nodes, arrows, layer_numbers(nodes, arrows, {}))
    for row in made.rows:
        Random(len(row)).shuffle(row)
    put_in_order(made)
    assert crossings(made.rows, made.links) == 0


def test_a_large_mesh_is_drawn_within_a_second_or_so() -> None:
    mesh = mesh_by_chance(Random(3), 80)
    assert len(picture(mesh).boxes) > 50


def test_what_goes_along_edges_is_in_the_boxes() -> None:
    mesh = mesh_of("a in,more -> t", "b t -> u", "c t,u -> v")
    flows = {
        ("in", "a"): Flow(12.34, 40),
        ("more", "a"): Flow(lag=25_000),
        ("t", "b"): Flow(3),
        ("t", "c"): Flow(0.25),
        ("u", "c"): Flow(12_345_678),
    }
    made = {box.name: box.details for box in picture_of(mesh, plan(mesh), flows).boxes}
    assert made["a"] == ("in: 12/s, lag 40", "more: lag 25k")
    assert made["b"] == ("t: 3/s",)
    assert made["c"] == ("t: 0.2/s", "u: 12M/s")
    assert (made["t"], made["u"], made["in"]) == ((), (), ())
    check(picture_of(mesh, plan(mesh), flows))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("short", ["short"]),
        ("a-name-that-is-longer-than-a-line", ["a-name-that-is-longer-", "than-a-line"]),
        ("x" * 30, ["x" * 24, "x" * 6]),
        ("n-" * 60, ["n-" * 12, "n-" * 12, "…" + ("n-" * 60)[-23:]]),
        ("", [""]),
    ],
)
def test_names_are_broken(name: str, lines: list[str]) -> None:
    assert list(broken(name)) == lines


def test_the_svg_is_whole_and_has_all_texts() -> None:
    mesh = mesh_of(
        *TEN,
        "a<b in&out -> 订单-topic-with-a-name-that-goes-on-and-on-and-on-for-ever".replace("a<b", "last"),
        **OTHERS,
    )
    text = draw(mesh, plan(mesh), {("orders", "check"): Flow(1, 2)})
    root = ElementTree.fromstring(text)
    texts = "".join(root.itertext())
    for part in mesh.parts:
        assert part.name in texts
    assert "orders: 1/s, lag 2" in texts
    assert "in&out" in texts
    assert "订单" in texts
    assert "prefers-color-scheme: dark" in text
    assert re.search(r'viewBox="0 0 [\d.]+ [\d.]+"', text)
    assert "check, ATLEAST_ONCE" in texts
    assert draw(mesh, plan(mesh)) == draw(mesh, plan(mesh))
    empty = ElementTree.fromstring(draw(Mesh(name="m"), plan(Mesh(name="m"))))
    assert empty.tag.endswith("svg")


def test_a_function_that_reads_by_a_pattern_alone_is_drawn() -> None:
    part = "{name: f, className: f, py: f.py, topicsPattern: o.*, output: t}"
    made = picture(read_mesh(f"name: m\nfunctions: [{part}]", "mesh.yaml"))
    assert [(box.shape, box.name) for box in made.boxes] == [("function", "f"), ("topic", "t")]


def test_the_picture_in_the_docs_is_the_one_of_the_example() -> None:
    root = Path(__file__).parents[2]
    file = root / "deploy/examples/mesh/mesh.yaml"
    mesh = read_mesh(file.read_text(), str(file))
    drawn = draw(mesh, plan(mesh))
    kept = (root / "docs/images/mesh.svg").read_text()
    assert kept.strip() == drawn.strip(), "kop mesh draw deploy/examples/mesh/mesh.yaml -o docs/images/mesh.svg"
