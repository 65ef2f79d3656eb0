"""The changes when a mesh becomes another one: parts, components, offsets, state.

Owns: what people have to know before they agree.
Must not know: servers, how a change is carried out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from kop.mesh.graph import reachable
from kop.mesh.plan import Component, MeshPlan
from kop.mesh.spec import FunctionPart, Mesh, Part, QueryPart


@dataclass(frozen=True)
class MeshChange:
    """A row of what changes."""

    of: Literal["mesh", "part", "component", "offsets", "state"]
    name: str
    """A part or a component; for offsets the function and the topic that it reads."""
    what: str
    is_loss: bool = False
    """True if a part, offsets or state go with it."""


def changes(old: Mesh, old_plan: MeshPlan, new: Mesh, new_plan: MeshPlan) -> tuple[MeshChange, ...]:
    """Return the changes between two meshes of one name and their plans: of the mesh, parts, components, offsets and
    state, in this order; empty if there are none. The code of functions is not compared.
    """
    return (
        *_of_mesh(old, new),
        *_of_parts(old, new),
        *_of_components(old_plan, new_plan),
        *_of_offsets(old, old_plan, new, new_plan),
        *_of_state(old, old_plan, new, new_plan),
    )


def _of_mesh(old: Mesh, new: Mesh) -> Iterator[MeshChange]:
    named = {"trigger": "trigger", "batch_seconds": "batchSeconds", "fuse": "fuse"}
    for name, written in named.items():
        yield from _step(written, getattr(old, name), getattr(new, name))
    yield from _step("externalWriters", sorted(old.external_writers), sorted(new.external_writers))
    yield from _step("kopOptions", dict(old.kop_options), dict(new.kop_options))


def _step(name: str, old: Any, new: Any) -> Iterator[MeshChange]:
    if old != new:
        yield MeshChange("mesh", name, f"{_shown(old)} -> {_shown(new)}")


def _shown(value: Any) -> str:
    """Return a value as a file has it, cut to 60 characters; `none` if it is None or empty."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or (not value and not isinstance(value, int | float)):
        return "none"
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}: {_shown(inner)}" for name, inner in value.items())
    elif isinstance(value, list | tuple):
        text = ", ".join(map(_shown, value))
    else:
        text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _of_parts(old: Mesh, new: Mesh) -> Iterator[MeshChange]:
    before, after = {part.name: part for part in old.parts}, {part.name: part for part in new.parts}
    for name, part in before.items():
        if name not in after:
            yield MeshChange("part", name, f"goes: {part.kind}", True)
    for name, part in after.items():
        other = before.get(name)
        if other is None:
            yield MeshChange("part", name, f"comes: {part.kind}")
        elif other.kind != part.kind:
            yield MeshChange("part", name, f"becomes a {part.kind}, was a {other.kind}", True)
        else:
            was, is_now = _values(other), _values(part)
            for field in dict.fromkeys((*was, *is_now)):
                if was.get(field) != is_now.get(field):
                    yield MeshChange("part", name, f"{field}: {_shown(was.get(field))} -> {_shown(is_now.get(field))}")


def _values(part: Part) -> dict[str, Any]:
    """Return the fields of a part, by the names that they have in a file; its line is left out."""
    if isinstance(part, FunctionPart):
        return {**part.config, "keepsKey": part.keeps_key, "private": part.is_private}
    written = {
        "value_format": "valueFormat",
        "key_format": "keyFormat",
        "kop_options": "kopOptions",
        "output_mode": "outputMode",
    }
    values = {written.get(f.name, f.name): getattr(part, f.name) for f in fields(part) if f.name != "line"}
    if isinstance(part, QueryPart):
        values["views"] = {
            table: {"subscribe": view.topic, **view.options, "watermark": view.watermark}
            for table, view in part.views.items()
        }
    return values


def _of_components(old: MeshPlan, new: MeshPlan) -> Iterator[MeshChange]:
    for component in new.components:
        former = [each for each in old.components if set(each.names) & set(component.names)]
        told = ", ".join(component.names)
        if not former:
            yield MeshChange("component", component.name, f"comes: {told}")
        elif len(former) > 1:
            yield MeshChange(
                "component", component.name, f"is joined of {', '.join(each.name for each in former)}: {told}"
            )
        elif component.name != former[0].name and (set(former[0].names) - set(component.names)) & set(new.of_function):
            reasons = [cut.reason for cut in component.cuts if cut not in former[0].cuts]
            why = f"; {reasons[0]}" if reasons else ""
            yield MeshChange("component", component.name, f"is cut from {former[0].name}: {told}{why}")
        elif former[0].names != component.names:
            yield MeshChange("component", component.name, f"{', '.join(former[0].names)} -> {told}")
        elif former[0].guarantee is not component.guarantee:
            yield MeshChange("component", component.name, f"{former[0].guarantee.value} -> {component.guarantee.value}")
    for component in old.components:
        if not set(component.names) & set(new.of_function):
            yield MeshChange("component", component.name, f"goes: {', '.join(component.names)}")


def _reads(plan: MeshPlan, name: str) -> dict[str, bool]:
    """Return the topics whose messages a function gets: True if it reads the topic itself, False if another function of
    its component hands them over.
    """
    component = plan.of_function[name]
    return {topic: topic in component.inputs for topic, called in component.calls.items() if name in called}


def _of_offsets(old: Mesh, old_plan: MeshPlan, new: Mesh, new_plan: MeshPlan) -> Iterator[MeshChange]:
    before, after = {part.name: part for part in old.functions}, {part.name: part for part in new.functions}
    for name, part in after.items():
        former = before.get(name)
        was = _reads(old_plan, name) if former is not None else {}
        is_same_group = former is not None and former.spec.group == part.spec.group
        now = _reads(new_plan, name)
        for topic, reads in now.items():
            row = f"{name}, {topic}"
            start = "first record" if part.spec.subscription_position == "Earliest" else "end"
            if topic not in was:
                if reads:
                    yield MeshChange("offsets", row, f"begins at the {start} of the topic")
            elif reads and not was[topic]:
                yield MeshChange(
                    "offsets", row, "was called, and reads the topic from its end on: nothing is done twice"
                )
            elif was[topic] and not reads:
                yield MeshChange("offsets", row, "was read, and is called once its lag is done: nothing is missed")
            elif reads and not is_same_group:
                assert former is not None
                told = f"group {former.spec.group} -> {part.spec.group}: begins at the {start} of the topic"
                yield MeshChange("offsets", row, told, True)
        for topic in [topic for topic in was if topic not in now]:
            yield MeshChange("offsets", f"{name}, {topic}", "is read no more: what waits there is not done", True)
    groups = {part.spec.group for part in new.functions}
    for name, part in before.items():
        if part.spec.group not in groups:
            end = "are deleted" if name in after else "are deleted with it"
            goes = part.spec.cleanup_subscription
            what = end if goes else "stay: cleanupSubscription is false"
            yield MeshChange("offsets", name, f"those of the group {part.spec.group} {what}", goes)


def _of_state(old: Mesh, old_plan: MeshPlan, new: Mesh, new_plan: MeshPlan) -> Iterator[MeshChange]:
    before, after = {part.name: part for part in old.functions}, {part.name: part for part in new.functions}
    for name, former in before.items():
        if _keeps(former) and (name not in after or not _keeps(after[name])):
            yield MeshChange("state", name, "stays in its topic, and is used no more", True)
    for name, part in after.items():
        other = before.get(name)
        if not _keeps(part) or other is None or not _keeps(other):
            continue
        if part.spec.state_scope != other.spec.state_scope:
            told = f"stateScope {other.spec.state_scope} -> {part.spec.state_scope}"
            yield MeshChange("state", name, f"begins anew: {told} is another state", True)
        elif part.spec.state_scope == "partition":
            was, is_now = _root(old_plan.of_function[name], name), _root(new_plan.of_function[name], name)
            if was != is_now:
                told = f"was of the partitions of {', '.join(was)}, and is of those of {', '.join(is_now)}"
                yield MeshChange("state", name, f"{told}: keys have to be in the same partitions of both", True)
        if part.spec.window != other.spec.window:
            yield MeshChange("state", name, "open windows begin anew", True)


def _keeps(part: FunctionPart) -> bool:
    return part.has_state or part.spec.window is not None


def _root(component: Component, name: str) -> tuple[str, ...]:
    """Return the topics that the component reads from outside of it and whose messages reach the function `name`,
    directly or through other functions of the component; in alphabetical order.
    """
    before: dict[str, list[str]] = {each: [] for each in component.names}
    for topic, called in component.calls.items():
        for reader in called if topic not in component.inputs else ():
            before[reader] += [part.name for part in component.functions if topic in part.outputs]
    behind = reachable([name], before)
    return tuple(sorted(topic for topic in component.inputs if not behind.isdisjoint(component.calls[topic])))
