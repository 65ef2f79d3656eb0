"""A graph from left to right: which layer a node is in, the order within layers, the heights.

Owns: layers by longest path, order with few crossings, heights that keep edges straight.
Must not know: what nodes are, how they are drawn.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from zlib import crc32

from kop.mesh.graph import ordered

Node: TypeAlias = Hashable
Arrow: TypeAlias = tuple[Node, Node]
_ALL_ORDERS: Final = 4000
"""The number of possible orders up to which all of them are tried."""
_SWEEPS: Final = 12
_PASSES: Final = 20
_WORK: Final = 2_000
"""The number of links, about, that are ordered before the best order so far is taken."""


@dataclass(frozen=True)
class Bend:
    """A place of an arrow in a layer that it passes."""

    arrow: int
    layer: int


@dataclass(frozen=True)
class LayerLink:
    """A part of an arrow, from a layer to the next one, and where its ends are below the middles of their nodes."""

    start: Node
    end: Node
    start_below: float = 0
    end_below: float = 0


@dataclass
class Layers:
    """Nodes and bends in layers."""

    rows: list[list[Node]]
    """Of each layer, from top to bottom."""
    chains: list[list[Node]]
    """Of each arrow: its start, its bends, its end."""
    links: list[list[LayerLink]] = field(default_factory=list)
    """Of each layer but the last, to the next one."""


def layer_numbers(nodes: Sequence[Node], arrows: Collection[Arrow], first: Mapping[Node, int]) -> dict[Node, int]:
    """Return the number of each node's layer, from 0 at the left, by longest paths; `first` has the lowest possible
    layer of some. Arrows have no cycle.

    Nodes that nothing leads to are moved next to the first node that they lead to, unless `first` names them.
    """
    after: dict[Node, list[Node]] = {node: [] for node in nodes}
    for start, end in arrows:
        after[start].append(end)
    led_to = {end for _, end in arrows}
    numbers = {node: first.get(node, 0) for node in nodes}
    for node in ordered(after):
        for other in after[node]:
            numbers[other] = max(numbers[other], numbers[node] + 1)
    for node in nodes:
        if after[node] and node not in first and node not in led_to:
            numbers[node] = max(numbers[node], min(numbers[other] for other in after[node]) - 1)
    return numbers


def layered(
    nodes: Sequence[Node],
    arrows: Sequence[Arrow],
    numbers: Mapping[Node, int],
    below: Mapping[tuple[int, int], float] | None = None,
) -> Layers:
    """Return nodes in the layers that `numbers` has, in the given order, with bends where arrows pass a layer.

    `below` has, for the number of an arrow and its end (0: start, 1: end), how far below the middle of its node that
    end is.
    """
    count = max(numbers.values(), default=-1) + 1
    rows: list[list[Node]] = [[] for _ in range(count)]
    for node in nodes:
        rows[numbers[node]].append(node)
    chains: list[list[Node]] = []
    links: list[list[LayerLink]] = [[] for _ in range(max(count - 1, 0))]
    for arrow, (start, end) in enumerate(arrows):
        chain: list[Node] = [start]
        for layer in range(numbers[start] + 1, numbers[end]):
            bend = Bend(arrow, layer)
            rows[layer].append(bend)
            chain.append(bend)
        chain.append(end)
        chains.append(chain)
        for step, (left, right) in enumerate(itertools.pairwise(chain)):
            start_below = (below or {}).get((arrow, 0), 0) if left == start else 0
            end_below = (below or {}).get((arrow, 1), 0) if right == end else 0
            links[numbers[start] + step].append(LayerLink(left, right, start_below, end_below))
    return Layers(rows, chains, links)


def crossings(rows: Sequence[Sequence[Node]], links: Sequence[Sequence[LayerLink]]) -> int:
    """Return the number of pairs of links that cross, if nodes are in these rows from top to bottom."""
    place = {node: number for row in rows for number, node in enumerate(row)}
    return sum(_crossings(each, place) for each in links)


def _crossings(links: Sequence[LayerLink], place: Mapping[Node, int]) -> int:
    ends = sorted(((place[link.start], link.start_below), (place[link.end], link.end_below)) for link in links)
    above: list[tuple[int, float]] = []
    count = 0
    for _, end in ends:
        at = bisect_right(above, end)
        count += len(above) - at
        above.insert(at, end)
    return count


def put_in_order(layers: Layers, fixed: Collection[int] = ()) -> None:
    """Order the nodes within the layers, in place, so that few links cross: all orders are tried if there are at most
    4000, else a good one is searched.

    Layers whose numbers are in `fixed` stay as they are.
    """
    rows = layers.rows
    free = [number for number, row in enumerate(rows) if number not in fixed and len(row) > 1]
    if not free or not crossings(rows, layers.links):
        return
    if math.prod(math.factorial(min(len(rows[number]), 10)) for number in free) <= _ALL_ORDERS:
        best = min(_all_orders(rows, free), key=lambda order: crossings(order, layers.links))
    else:
        best = _by_barycentre(layers, free)
    layers.rows[:] = best


def _all_orders(rows: Sequence[list[Node]], free: Sequence[int]) -> Iterable[list[list[Node]]]:
    for orders in itertools.product(*(itertools.permutations(rows[number]) for number in free)):
        made = list(rows)
        for number, order in zip(free, orders, strict=True):
            made[number] = list(order)
        yield made


def _by_barycentre(layers: Layers, free: Sequence[int]) -> list[list[Node]]:
    """Return the order with the fewest crossings that a search meets; only layers in `free` are ordered, and `layers`
    stays as it is. The search begins at most 12 times, and goes to and fro: it orders each layer by the middle of its
    neighbours, then swaps nodes.
    """
    starts = max(1, min(12, _WORK // (sum(map(len, layers.links)) + 1)))
    best = [list(row) for row in layers.rows]
    least = crossings(best, layers.links)
    for start in range(starts):
        rows = [list(row) for row in layers.rows]
        for number in free:
            if start == 1:
                rows[number].reverse()
            elif start > 1:
                rows[number] = _mixed(rows[number], start)
        for sweep in range(_SWEEPS):
            for number in free if sweep % 2 == 0 else list(reversed(free)):
                _sort_by_middle(rows, layers.links, number, from_left=sweep % 2 == 0)
            if sweep >= _SWEEPS - 4:
                _swap(rows, layers.links, free)
            count = crossings(rows, layers.links)
            if count < least:
                best, least = [list(row) for row in rows], count
            if not least:
                return best
    return best


def _mixed(row: Sequence[Node], start: int) -> list[Node]:
    """Return a layer in another order, which depends on `start`, the number of the attempt, alone, so that a mesh has
    the same picture each time.
    """
    return [row[at] for at in sorted(range(len(row)), key=lambda at: crc32(b"%d/%d" % (start, at)))]


def _sort_by_middle(
    rows: list[list[Node]], links: Sequence[Sequence[LayerLink]], number: int, *, from_left: bool
) -> None:
    beside = number - 1 if from_left else number + 1
    if not 0 <= beside < len(rows):
        return
    ends = _ends_beside(rows, links, number, from_left=from_left)
    sums = {node: [at + _part(below) for at, below in places] for node, places in ends.items()}
    own = {node: at for at, node in enumerate(rows[number])}
    scale = len(rows[beside]) / max(len(rows[number]), 1)
    rows[number].sort(key=lambda node: sum(sums[node]) / len(sums[node]) if sums[node] else own[node] * scale)


def _part(below: float) -> float:
    return max(-0.45, min(0.45, below / 1000))


def _swap(rows: list[list[Node]], links: Sequence[Sequence[LayerLink]], free: Sequence[int]) -> None:
    """Swap neighbours within layers, in place, as long as that makes fewer links cross, at most 20 times through all
    layers. Only layers in `free` are changed.
    """
    for _ in range(_PASSES):
        improved = False
        for number in free:
            row = rows[number]
            sides = [
                {node: sorted(places) for node, places in _ends_beside(rows, links, number, from_left=side).items()}
                for side in (True, False)
            ]
            for at in range(len(row) - 1):
                above, below = row[at], row[at + 1]
                now = sum(_over(side[above], side[below]) for side in sides)
                if now and sum(_over(side[below], side[above]) for side in sides) < now:
                    row[at], row[at + 1] = below, above
                    improved = True
        if not improved:
            return


def _ends_beside(
    rows: Sequence[list[Node]], links: Sequence[Sequence[LayerLink]], number: int, *, from_left: bool
) -> dict[Node, list[tuple[int, float]]]:
    """Return, for each node of the layer `number`, the places in the layer to the left of it (`from_left`) or to the
    right at which its links end, in the order of the links.
    """
    ends: dict[Node, list[tuple[int, float]]] = {node: [] for node in rows[number]}
    beside = number - 1 if from_left else number + 1
    if 0 <= beside < len(rows):
        place = {node: at for at, node in enumerate(rows[beside])}
        for link in links[min(number, beside)]:
            if from_left:
                ends[link.end].append((place[link.start], link.start_below))
            else:
                ends[link.start].append((place[link.end], link.end_below))
    return ends


def _over(above: Sequence[tuple[int, float]], below: Sequence[tuple[int, float]]) -> int:
    """Return the number of pairs of links of two neighbours that cross. `above` and `below` are the sorted places at
    which the links of the upper and of the lower one end in another layer.
    """
    return sum(len(above) - bisect_right(above, end) for end in below)


def middles(layers: Layers, heights: Mapping[Node, float], gap: float) -> dict[Node, float]:
    """Return the height of the middle of each node, from the top downwards: near the nodes that it is linked to, with
    at least `gap` between it and its neighbours in the layer. Heights may be below 0.
    """
    at: dict[Node, float] = {}
    for row in layers.rows:
        top = 0.0
        for node in row:
            at[node] = top + heights[node] / 2
            top += heights[node] + gap
    beside: dict[Node, list[list[tuple[Node, float]]]] = {node: [[], []] for node in at}
    for links in layers.links:
        for link in links:
            beside[link.end][0].append((link.start, link.start_below - link.end_below))
            beside[link.start][1].append((link.end, link.end_below - link.start_below))
    count = len(layers.rows)
    for sweep in range(14):
        numbers = range(count) if sweep % 2 == 0 else range(count - 1, -1, -1)
        for number in numbers:
            row = layers.rows[number]
            wanted: list[float] = []
            for node in row:
                sides = [others for others in beside[node] if others]
                if len(sides) == 2 and sweep < 8:
                    sides = [sides[sweep % 2]]
                near = [at[other] + lower for others in sides for other, lower in others]
                wanted.append(sum(near) / len(near) if near else at[node])
            at |= dict(zip(row, _apart(wanted, [heights[node] for node in row], gap), strict=True))
    return at


def _apart(wanted: Sequence[float], heights: Sequence[float], gap: float) -> list[float]:
    """Return middles in this order, far enough from each other, and as near to the wanted ones as possible."""
    if not wanted:
        return []
    offsets = [0.0]
    for above, below in itertools.pairwise(heights):
        offsets.append(offsets[-1] + above / 2 + gap + below / 2)
    groups: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        total, count = want - offset, 1
        while groups and groups[-1][0] / groups[-1][1] > total / count:
            more, others = groups.pop()
            total, count = total + more, count + others
        groups.append((total, count))
    bases = [total / count for total, count in groups for _ in range(count)]
    return [base + offset for base, offset in zip(bases, offsets, strict=True)]
