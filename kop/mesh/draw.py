"""A mesh as a picture, in SVG: from left to right, readable without colour, on light and dark pages.

Owns: shapes, sizes of texts, where lines go.
Must not know: files, servers; rates and lags are given.

A component is drawn first, by itself, and is one node of the whole picture. Lines bend between columns alone, and pass
a column at a height of their own, so no line runs through a text. The lines of a component end at ports of its frame.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, get_args
from xml.sax.saxutils import escape

from kop.mesh.graph import Graph, reachable
from kop.mesh.layers import Arrow, Bend, Layers, Node, layer_numbers, layered, middles, put_in_order
from kop.mesh.plan import Component, MeshPlan
from kop.mesh.spec import FunctionPart, Mesh, Outline, Part

Shape: TypeAlias = Literal["function", "source", "sink", "query", "topic", "private"]
Tip: TypeAlias = Literal["", "end", "start"]
"""The end of a line that has a tip."""
Edge: TypeAlias = tuple[str, str]
"""A topic and a part that reads it."""

_GAP: Final = 18.0
"""Between nodes of a column."""
_BETWEEN: Final = 48.0
"""Between columns."""
_LINE: Final = 18.0
_THIN: Final = 8.0
"""The height of a line that passes a column, and of a port."""
_TOP: Final = 34.0
"""For the name of a component, in its frame."""
_MARGIN: Final = 20.0
_LONGEST: Final = 24
"""Characters of a line of a name."""
_WIDE: Final = frozenset("mwMWQ@%&—…←→")
_NARROW: Final = frozenset("iljftr.,:;'|!()[]- /")


@dataclass(frozen=True)
class Flow:
    """The messages that go along an edge."""

    rate: float | None = None
    """Messages a second."""
    lag: int | None = None
    """Messages that wait."""


@dataclass(frozen=True)
class Box:
    """A node of the picture. `x` and `y` are its left upper corner."""

    shape: Shape
    name: str
    lines: tuple[str, ...]
    """The name, broken."""
    details: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Frame:
    """The frame of a component."""

    component: str
    label: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Line:
    """A part of an edge: points between which it bends in turn: straight, bent, straight ..."""

    points: tuple[tuple[float, float], ...]
    arrow: Tip
    is_dashed: bool
    told: str


@dataclass
class Picture:
    """Everything that is drawn."""

    boxes: list[Box] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    width: float = 0
    height: float = 0


def draw(mesh: Mesh, plan: MeshPlan, flows: Mapping[Edge, Flow] | None = None, *, title: str = "") -> str:
    """Return a mesh as the text of an SVG. `flows` has the traffic of its edges now, which is told in the box of the
    part that reads; an edge without traffic has no such text. `title` is for those who cannot see the picture, by
    default the mesh's full name.
    """
    picture = picture_of(mesh, plan, flows)
    return _svg(picture, title or f"The mesh {mesh.full_name}", _told(mesh, plan))


def picture_of(mesh: Mesh, plan: MeshPlan, flows: Mapping[Edge, Flow] | None = None) -> Picture:
    """Return the boxes, frames and lines of the picture of a mesh with their places, and its size, in SVG's pixels."""
    return _Layout(mesh, plan, flows or {}).picture()


# -- texts


def text_width(text: str, size: float) -> float:
    """Return an estimate of the largest width that a text may have in usual fonts without serifs, in the unit of
    `size`, which is the size of the font.
    """
    return size * sum(_em(char) for char in text)


def _em(char: str) -> float:
    if unicodedata.east_asian_width(char) in "WF":
        return 1.05
    if char in _WIDE or (char.isupper() and char not in "IJ"):
        return 0.92 if char in _WIDE else 0.74
    return 0.38 if char in _NARROW else 0.62


def broken(name: str, longest: int = _LONGEST) -> tuple[str, ...]:
    """Return a name in at most three lines of at most `longest` characters, broken behind punctuation if that is
    possible. Of a name that needs more lines the middle is left out: the third line is … and the name's last
    characters.
    """
    lines: list[str] = []
    rest = name
    while rest:
        if len(rest) <= longest:
            lines.append(rest)
            break
        cut = max(rest.rfind(mark, 8, longest) for mark in "-_./: ") + 1
        cut = cut if cut > 0 else longest
        lines.append(rest[:cut])
        rest = rest[cut:]
    if len(lines) > 3:
        lines = [*lines[:2], "…" + name[-(longest - 1) :]]
    return tuple(lines) or ("",)


def _number(value: float) -> str:
    """Return a number as people read it: in k from 10,000 on, in M from 10 million on, and with one decimal below 10 if
    it is not whole.
    """
    if value >= 10_000_000:
        return f"{value / 1_000_000:,.0f}M"
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


# -- layout


@dataclass
class _Block:
    """A component, drawn by itself: its upper left corner is 0, 0."""

    component: Component
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    ports: dict[Node, tuple[float, float]] = field(default_factory=dict)
    width: float = 0
    height: float = 0


class _Layout:
    def __init__(self, mesh: Mesh, plan: MeshPlan, flows: Mapping[Edge, Flow]) -> None:
        self._mesh = mesh
        self._plan = plan
        self._flows = flows
        self._graph = Graph(mesh.parts)
        self._home: dict[Node, str] = {}
        """Node within a component to the component."""
        for component in plan.components:
            inner = [topic for topic in component.calls if topic not in component.inputs]
            self._home |= {("part", name): component.name for name in component.names}
            self._home |= {("topic", topic): component.name for topic in inner}
        self._sizes: dict[Node, Box] = {}
        for topic in self._graph.topics:
            self._sizes["topic", topic] = self._topic_box(topic)
        for part in mesh.parts:
            self._sizes["part", part.name] = self._part_box(part)
        self._edges = self._all_edges()

    def _all_edges(self) -> list[tuple[Node, Node, bool, str]]:
        """Return each edge of the mesh: the node at its start, the node at its end, True if it is a side output such as
        a log, and the edge in words.
        """
        graph = self._graph
        why = {(cut.topic, cut.function): cut.reason for cut in self._plan.cuts}
        edges: list[tuple[Node, Node, bool, str]] = []
        for topic in graph.topics:
            edges += [
                (("part", name), ("topic", topic), False, f"{name} writes {topic}") for name in graph.writers[topic]
            ]
            for name in graph.readers[topic]:
                cut = f": {why[topic, name]}" if (topic, name) in why else ""
                edges.append((("topic", topic), ("part", name), False, f"{name} reads {topic}{cut}"))
            for name in graph.side_writers.get(topic, ()):
                edges.append((("part", name), ("topic", topic), True, f"{name} writes messages aside to {topic}"))
        return edges

    def _part_box(self, part: Part | Outline) -> Box:
        details: list[str] = []
        if isinstance(part, FunctionPart):
            details += [part.holds_order] if part.holds_order else []
        elif part.kind == "query":
            details.append("SQL")
        else:
            details.append(str(getattr(part, "format", "")))
        for topic in self._graph.inputs[part.name]:
            told = self._flow((topic, part.name))
            if told:
                details.append(f"{broken(topic)[-1] if len(broken(topic)) == 1 else '…' + topic[-16:]}: {told}")
        return _sized(part.kind, part.name, details)

    def _topic_box(self, topic: str) -> Box:
        component = next((each for each in self._plan.components if topic in each.unwritten), None)
        details = ["private"] if component is not None else []
        if topic in self._mesh.external_writers:
            details.append("others write it")
        return _sized("topic" if component is None else "private", topic, details)

    def _flow(self, edge: Edge) -> str:
        flow = self._flows.get(edge)
        if flow is None:
            return ""
        rate = [] if flow.rate is None else [f"{_number(flow.rate)}/s"]
        lag = [] if flow.lag is None else [f"lag {_number(flow.lag)}"]
        return ", ".join(rate + lag)

    def picture(self) -> Picture:
        """Return everything in its place. Components are laid out alone, the whole is laid out by that, and then both
        again, with the ports of components ordered by the heights of what they are linked to outside.
        """
        blocks = {component.name: self._block(component, {}) for component in self._plan.components}
        layers, at, _ = self._outer(blocks)
        wanted = {name: self._port_heights(name, blocks, layers, at) for name in blocks}
        blocks = {component.name: self._block(component, wanted[component.name]) for component in self._plan.components}
        return self._whole(blocks, *self._outer(blocks))

    # -- one component

    def _block(self, component: Component, wanted: Mapping[Node, float]) -> _Block:
        """Return a component laid out by itself. `wanted` has heights for its ports, the ends of edges that cross its
        border, which are ordered by those; if it is empty, they are put into any order with few crossings.
        """
        name = component.name
        nodes: list[Node] = [node for node in self._sizes if self._home.get(node) == name]
        arrows: dict[Arrow, tuple[Tip, bool, str]] = {}
        ports_in: dict[Node, None] = {}
        ports_out: dict[Node, None] = {}
        for start, end, aside, told in self._edges:
            inside = self._home.get(start) == name, self._home.get(end) == name
            if inside == (True, True):
                arrows[start, end] = "end", aside, told
            elif self._is_back(start, end, aside) and any(inside):
                ports_in["in", end] = None
                arrows[("in", end), start] = "", aside, told
            elif inside == (False, True):
                ports_in["in", start] = None
                arrows[("in", start), end] = "end", aside, told
            elif inside == (True, False):
                ports_out["out", start, aside] = None
                arrows[start, ("out", start, aside)] = "", aside, told
        all_nodes = [*ports_in, *nodes, *ports_out]
        first = dict.fromkeys(nodes, 1) | dict.fromkeys(ports_in, 0)
        numbers = layer_numbers(all_nodes, arrows, first)
        last = max([numbers[node] for node in nodes]) + 1
        numbers |= dict.fromkeys(ports_out, last) | dict.fromkeys(ports_in, 0)
        layers = layered(all_nodes, list(arrows), numbers)
        fixed: set[int] = set()
        if wanted:
            layers.rows[0].sort(key=lambda node: wanted.get(node, 0))
            if ports_out:
                layers.rows[last] = [n for n in layers.rows[last] if isinstance(n, Bend)] + sorted(
                    ports_out, key=lambda node: wanted.get(node, 0)
                )
            fixed = {0, last}
        put_in_order(layers, fixed)
        heights = {
            node: self._sizes[node].height if node in self._sizes else _THIN for row in layers.rows for node in row
        }
        at = middles(layers, heights, _GAP)
        columns = _columns(layers, {node: self._sizes[node].width for node in nodes})
        top = min(at[node] - heights[node] / 2 for node in at)
        bottom = max(at[node] + heights[node] / 2 for node in at)
        label = text_width(_label(component), 12) + 32
        right = columns[-1][1] if ports_out else columns[last - 1][1] + _BETWEEN / 2
        block = _Block(component, width=max(right, label), height=bottom - top + _TOP + 16)
        down = _TOP - top
        for node in nodes:
            left, width = columns[numbers[node]][0], columns[numbers[node]][1] - columns[numbers[node]][0]
            block.boxes.append(_placed(self._sizes[node], left + width / 2, at[node] + down))
        block.ports = {node: (0.0, at[node] + down) for node in ports_in}
        block.ports |= {node: (block.width, at[node] + down) for node in ports_out}
        boxes = dict(zip(nodes, block.boxes, strict=True))
        for chain, (arrow, (mark, aside, told)) in zip(layers.chains, arrows.items(), strict=True):
            points: list[tuple[float, float]] = []
            for node in chain:
                if node in boxes:
                    box = boxes[node]
                    column = columns[numbers[node]]
                    sides = (box.x, column[0]) if node == arrow[1] else (box.x + box.width, column[1])
                    both = [(sides[1], box.y + box.height / 2), (sides[0], box.y + box.height / 2)]
                    points += both if node == arrow[1] else list(reversed(both))
                elif isinstance(node, Bend):
                    points += [(columns[node.layer][0], at[node] + down), (columns[node.layer][1], at[node] + down)]
                else:
                    points += [block.ports[node]] * 2
            block.lines.append(Line(tuple(points), mark, aside, told))
        return block

    def _is_back(self, start: Node, end: Node, aside: bool) -> bool:
        """Return if an edge is drawn from its end to its start, because it would lead to the left: a side output to a
        topic whose messages lead to the writer.
        """
        return aside and self._item(start) in reachable([self._item(end)], self._after())

    def _after(self) -> dict[Node, list[Node]]:
        after: dict[Node, list[Node]] = {self._item(node): [] for node in self._sizes}
        for start, end, aside, _ in self._edges:
            if not aside and self._item(start) != self._item(end):
                after[self._item(start)].append(self._item(end))
        return after

    def _item(self, node: Node) -> Node:
        """Return the item of the whole picture that has a node: ("block", COMPONENT) for a node within a component,
        else the node itself.
        """
        return ("block", self._home[node]) if node in self._home else node

    # -- the whole

    def _arrows(self) -> dict[tuple[Node, Node, Node | None, Node | None], tuple[Tip, bool, str]]:
        """Return the arrows between items of the whole picture. The key of an arrow has the items at its start and end
        and the ports there, each None if the item is no component or the arrow ends at its border; the value says which
        end has a tip ("start", "end", or "" for none), if it is a side output, and the edge in words. Of edges with one
        key the first is kept.
        """
        arrows: dict[tuple[Node, Node, Node | None, Node | None], tuple[Tip, bool, str]] = {}
        for start, end, aside, told in self._edges:
            first, second = self._item(start), self._item(end)
            if first == second:
                continue
            if self._is_back(start, end, aside):
                port = ("in", end) if first != start else None
                arrows.setdefault((second, first, None, port), ("start", aside, told))
                continue
            out = ("out", start, aside) if first != start else None
            into = ("in", start) if second != end else None
            arrows.setdefault((first, second, out, into), ("" if into else "end", aside, told))
        return arrows

    def _outer(self, blocks: Mapping[str, _Block]) -> tuple[Layers, dict[Node, float], list[tuple[float, float]]]:
        """Return the items of the whole picture in layers, the heights of their middles, and the left and right side of
        each column.
        """
        items = list(dict.fromkeys(self._item(node) for node in self._sizes))
        arrows = self._arrows()
        pairs = [(first, second) for first, second, _, _ in arrows]
        below: dict[tuple[int, int], float] = {}
        for number, (first, second, out, into) in enumerate(arrows):
            for end, item, port in ((0, first, out), (1, second, into)):
                if port is not None:
                    block = blocks[item[1]]  # type: ignore[index]
                    below[number, end] = block.ports[port][1] - block.height / 2
        layers = layered(items, pairs, layer_numbers(items, pairs, {}), below)
        put_in_order(layers)
        heights = {node: self._height(node, blocks) for row in layers.rows for node in row}
        at = middles(layers, heights, _GAP + 8)
        top = min((at[node] - heights[node] / 2 for node in at), default=0)
        at = {node: middle - top for node, middle in at.items()}
        columns = _columns(layers, {item: self._width(item, blocks) for item in items})
        return layers, at, columns

    def _height(self, item: Node, blocks: Mapping[str, _Block]) -> float:
        if isinstance(item, Bend):
            return _THIN
        return self._sizes[item].height if item in self._sizes else blocks[item[1]].height  # type: ignore[index]

    def _width(self, item: Node, blocks: Mapping[str, _Block]) -> float:
        return self._sizes[item].width if item in self._sizes else blocks[item[1]].width  # type: ignore[index]

    def _port_heights(
        self, name: str, blocks: Mapping[str, _Block], layers: Layers, at: Mapping[Node, float]
    ) -> dict[Node, float]:
        """Return, by port of the component `name`, the mean height of the ends outside that are linked to it."""
        near: dict[Node, list[float]] = {}
        for chain, (first, second, out, into) in zip(layers.chains, self._arrows(), strict=True):
            for item, port, beside, other, far in (
                (first, out, chain[1], second, into),
                (second, into, chain[-2], first, out),
            ):
                if item == ("block", name) and port is not None:
                    height = at[beside]
                    if beside == other and far is not None:
                        block = blocks[other[1]]  # type: ignore[index]
                        height += block.ports[far][1] - block.height / 2
                    near.setdefault(port, []).append(height)
        return {port: sum(heights) / len(heights) for port, heights in near.items()}

    def _whole(
        self,
        blocks: Mapping[str, _Block],
        layers: Layers,
        at: Mapping[Node, float],
        columns: Sequence[tuple[float, float]],
    ) -> Picture:
        picture = Picture()
        corners: dict[Node, tuple[float, float]] = {}
        column_of: dict[Node, tuple[float, float]] = {}
        for row, column in zip(layers.rows, columns, strict=True):
            for item in row:
                column_of[item] = column
                if isinstance(item, Bend):
                    continue
                width, height = self._width(item, blocks), self._height(item, blocks)
                x, y = (column[0] + column[1] - width) / 2 + _MARGIN, at[item] - height / 2 + _MARGIN
                corners[item] = (x, y)
                if item in self._sizes:
                    picture.boxes.append(_placed(self._sizes[item], x + width / 2, y + height / 2))
                    continue
                block = blocks[item[1]]  # type: ignore[index]
                picture.frames.append(Frame(block.component.name, _label(block.component), x, y, width, height))
                picture.boxes += [_moved(box, x, y) for box in block.boxes]
                picture.lines += [
                    Line(tuple((px + x, py + y) for px, py in line.points), line.arrow, line.is_dashed, line.told)
                    for line in block.lines
                ]
        for chain, ((first, _, out, into), (mark, aside, told)) in zip(
            layers.chains, self._arrows().items(), strict=True
        ):
            points: list[tuple[float, float]] = []
            for item in chain:
                column = column_of[item]
                if isinstance(item, Bend):
                    height = at[item] + _MARGIN
                    points += [(column[0] + _MARGIN, height), (column[1] + _MARGIN, height)]
                    continue
                is_start = item == first
                port = out if is_start else into
                x, y = corners[item]
                height = y + (self._height(item, blocks) / 2 if port is None else blocks[item[1]].ports[port][1])  # type: ignore[index]
                edge = x + self._width(item, blocks) if is_start else x
                side = (column[1] if is_start else column[0]) + _MARGIN
                points += [(edge, height), (side, height)] if is_start else [(side, height), (edge, height)]
            picture.lines.append(Line(tuple(points), mark, aside, told))
        picture.width = (columns[-1][1] if columns else 0) + 2 * _MARGIN
        picture.height = max((at[n] + self._height(n, blocks) / 2 for n in at), default=0) + 2 * _MARGIN
        return picture


def _label(component: Component) -> str:
    return f"{component.name}, {component.guarantee.value}" if len(component.names) > 1 else component.guarantee.value


def _sized(shape: Shape, name: str, details: Sequence[str]) -> Box:
    """Return a box at 0, 0 that is large enough for its texts."""
    lines = broken(name)
    text = max([text_width(line, 15.2) for line in lines] + [text_width(line, 12) for line in details])
    more = {"function": 28, "topic": 40, "private": 40, "source": 54, "sink": 40, "query": 60}[shape]
    height = _LINE * len(lines) + 15 * len(details) + (34 if shape == "sink" else 18)
    return Box(shape, name, lines, tuple(details), 0, 0, max(text, 48) + more, height)


def _placed(box: Box, middle: float, height: float) -> Box:
    return _moved(box, middle - box.width / 2, height - box.height / 2)


def _moved(box: Box, x: float, y: float) -> Box:
    return replace(box, x=box.x + x, y=box.y + y)


def _columns(layers: Layers, widths: Mapping[Node, float]) -> list[tuple[float, float]]:
    """Return the left and right side of each column. A column is as wide as its widest node in `widths`; there is more
    room behind it if more than three lines bend there.
    """
    columns: list[tuple[float, float]] = []
    x = 0.0
    for number, row in enumerate(layers.rows):
        width = max((widths.get(node, 0.0) for node in row), default=0.0)
        columns.append((x, x + width))
        links = len(layers.links[number]) if number < len(layers.links) else 0
        x += width + _BETWEEN * (0.6 if width == 0 else 1) + min(4.0 * max(links - 3, 0), 60)
    return columns


# -- SVG


_STYLE: Final = """
    .page { fill: #ffffff }
    .box { fill: #ffffff; stroke: #44546a; stroke-width: 1.5 }
    .function { fill: #e8f1fb; stroke: #1f5fa8; stroke-width: 2 }
    .topic, .private { fill: #f5f7f9 }
    .private { stroke-dasharray: 4 3 }
    .frame { fill: none; stroke: #8a97a8; stroke-dasharray: 7 5 }
    text { fill: #1c2530 }
    .small { font-size: 12px; fill: #4a5666 }
    .name { font-weight: 600 }
    .line { fill: none; stroke: #44546a; stroke-width: 1.5 }
    .aside { stroke-dasharray: 4 3 }
    .tip { fill: #44546a }
    @media (prefers-color-scheme: dark) {
      .page { fill: #10151c }
      .box { fill: #1d2530; stroke: #a9b6c6 }
      .function { fill: #17304d; stroke: #7db4ee }
      .topic, .private { fill: #171d26 }
      .frame { stroke: #6b7888 }
      text { fill: #e8edf3 }
      .small { fill: #b3bfcc }
      .line { stroke: #a9b6c6 }
      .tip { fill: #a9b6c6 }
    }
  """
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
_MEANINGS: Final[dict[Shape, str]] = {shape: shape for shape in get_args(Shape)} | {
    "private": "topic that is not written"
}


def _svg(picture: Picture, title: str, told: str) -> str:
    legend, _ = _legend(picture)
    total, height = drawn_size(picture)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(total)} {_n(height)}" width="{_n(total)}" '
        f'height="{_n(height)}" role="img" aria-labelledby="title desc" font-family="{_FONT}" font-size="14">',
        f'<title id="title">{_text(title)}</title>',
        f'<desc id="desc">{_text(told)}</desc>',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path class="tip" d="M0 0 10 5 0 10z"/></marker></defs>',
        f'<rect class="page" width="{_n(total)}" height="{_n(height)}"/>',
    ]
    for frame in picture.frames:
        parts.append(
            f'<rect class="frame" x="{_n(frame.x)}" y="{_n(frame.y)}" width="{_n(frame.width)}" '
            f'height="{_n(frame.height)}" rx="10"/>'
        )
        parts.append(f'<text class="small" x="{_n(frame.x + 14)}" y="{_n(frame.y + 20)}">{_text(frame.label)}</text>')
    parts += [_path(line) for line in picture.lines]
    parts += [_box(box) for box in (*picture.boxes, *legend)]
    for box in legend:
        meaning = _MEANINGS[box.shape]
        parts.append(
            f'<text class="small" x="{_n(box.x + box.width + 8)}" y="{_n(box.y + box.height / 2 + 4)}">{meaning}</text>'
        )
    parts.append("</svg>\n")
    return "\n".join(parts)


def drawn_size(picture: Picture) -> tuple[float, float]:
    """Return width and height of a picture as it is drawn, with the meaning of its shapes below it."""
    return max(picture.width, _legend(picture)[1]), picture.height + 56


def _legend(picture: Picture) -> tuple[list[Box], float]:
    shapes = [shape for shape in _MEANINGS if any(box.shape == shape for box in picture.boxes)]
    boxes: list[Box] = []
    x = _MARGIN
    for shape in shapes:
        boxes.append(Box(shape, "", (), (), x, picture.height + 12, 34, 22))
        x += 34 + 8 + text_width(_MEANINGS[shape], 12) + 22
    return boxes, x


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(text: str) -> str:
    return escape("".join(char if char.isprintable() else "?" for char in text))


def _path(line: Line) -> str:
    (x, y), *others = line.points
    steps = [f"M{_n(x)} {_n(y)}"]
    for number, (to_x, to_y) in enumerate(others):
        if number % 2 == 0 or abs(to_y - y) < 0.05:
            steps.append(f"L{_n(to_x)} {_n(to_y)}")
        else:
            middle = (x + to_x) / 2
            steps.append(f"C{_n(middle)} {_n(y)} {_n(middle)} {_n(to_y)} {_n(to_x)} {_n(to_y)}")
        x, y = to_x, to_y
    marker = f' marker-{line.arrow}="url(#tip)"' if line.arrow else ""
    style = "line aside" if line.is_dashed else "line"
    return f'<path class="{style}" d="{" ".join(steps)}"{marker}><title>{_text(line.told)}</title></path>'


def _box(box: Box) -> str:
    x, y, right, bottom = box.x, box.y, box.x + box.width, box.y + box.height
    middle = (y + bottom) / 2
    style = f'class="box {box.shape}"'
    tip = min(18.0, box.width / 3)
    shapes = {
        "function": f'<rect {style} x="{_n(x)}" y="{_n(y)}" width="{_n(box.width)}" height="{_n(box.height)}" rx="5"/>',
        "source": f'<path {style} d="M{_n(x)} {_n(y)}H{_n(right - tip)}L{_n(right)} {_n(middle)}L{_n(right - tip)} '
        f'{_n(bottom)}H{_n(x)}z"/>',
        "query": f'<path {style} d="M{_n(x)} {_n(middle)}L{_n(x + tip)} {_n(y)}H{_n(right - tip)}L{_n(right)} '
        f'{_n(middle)}L{_n(right - tip)} {_n(bottom)}H{_n(x + tip)}z"/>',
        "sink": _cylinder(box, style),
    }
    pill = (
        f'<rect {style} x="{_n(x)}" y="{_n(y)}" width="{_n(box.width)}" height="{_n(box.height)}" '
        f'rx="{_n(min(box.height / 2, 22))}"/>'
    )
    parts = [f"<g><title>{_text(box.name)}</title>" if box.name else "<g>", shapes.get(box.shape, pill)]
    count = len(box.lines) * _LINE + len(box.details) * 15
    at = middle - count / 2 + 13 + (6 if box.shape == "sink" else 0)
    shift = -tip / 3 if box.shape == "source" else 0
    center = (x + right) / 2 + shift
    for line in box.lines:
        parts.append(f'<text class="name" x="{_n(center)}" y="{_n(at)}" text-anchor="middle">{_text(line)}</text>')
        at += _LINE
    at -= 2
    for line in box.details:
        parts.append(f'<text class="small" x="{_n(center)}" y="{_n(at)}" text-anchor="middle">{_text(line)}</text>')
        at += 15
    return "".join([*parts, "</g>"])


def _cylinder(box: Box, style: str) -> str:
    x, y, right, bottom = box.x, box.y, box.x + box.width, box.y + box.height
    half, rise = box.width / 2, min(7.0, box.height / 4)
    body = (
        f"M{_n(x)} {_n(y + rise)}A{_n(half)} {_n(rise)} 0 0 1 {_n(right)} {_n(y + rise)}V{_n(bottom - rise)}"
        f"A{_n(half)} {_n(rise)} 0 0 1 {_n(x)} {_n(bottom - rise)}z"
    )
    lid = f"M{_n(x)} {_n(y + rise)}A{_n(half)} {_n(rise)} 0 0 0 {_n(right)} {_n(y + rise)}"
    return f'<path {style} d="{body}"/><path {style} d="{lid}" style="fill: none"/>'


def _told(mesh: Mesh, plan: MeshPlan) -> str:
    """Return the picture in words, for those who cannot see it."""
    parts = [f"{part.kind} {part.name}: {_ways(part)}" for part in mesh.parts]
    together = [", ".join(component.names) for component in plan.components if len(component.names) > 1]
    parts += [f"run as one: {names}" for names in together]
    return "; ".join(parts)


def _ways(part: Part) -> str:
    reads = f"reads {', '.join(part.inputs)}" if part.inputs else ""
    writes = f"writes {', '.join(part.outputs)}" if part.outputs else ""
    return ", ".join(filter(None, (reads, writes)))
