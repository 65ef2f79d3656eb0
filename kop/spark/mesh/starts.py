"""The offsets at which the functions of a mesh begin to read when it starts; they have to be set before anything runs.

Owns: what becomes of offsets if functions are called together that read a topic before, or the other way round.
Must not know: Spark, how components are made.

A function that was called within a component and now reads the topic begins at its end: all that is in it was done in
the transactions that wrote it. One that has read the topic and is now to be called has to be done with it first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kop.client.offsets import EARLIEST, LATEST, Offsets, TopicPartition
from kop.client.read_client import ReadClient
from kop.client.write_client import WriteClient
from kop.functions.reading import READ_COMMITTED
from kop.functions.spec import FunctionSpec
from kop.spark.mesh.component import TaskComponent


class Starts:
    """The offsets of a mesh that is about to start. `before` has the topics that each function was called with, by its
    full name, when it ran last.
    """

    def __init__(self, reader: ReadClient, writer: WriteClient, before: Mapping[str, Any]) -> None:
        self._reader = reader
        self._writer = writer
        self._before = before

    def not_drained(self, components: Sequence[TaskComponent]) -> dict[str, tuple[str, int]]:
        """Return the functions that have not done all records of a topic which they read so far, and would now be
        handed by functions of their component: by the name in the mesh, the topic and the number of records left. Of
        several such topics one is told.
        """
        late = {}
        for step in (step for component in components for step in component.steps):
            for topic in step.inner_inputs:
                if topic in self._before.get(step.spec.fqfn, ()):
                    continue
                places = self._places([topic])
                ends = self._reader.list_offsets(dict.fromkeys(places, LATEST), READ_COMMITTED)
                committed, others = self._begins(step.spec, places)
                begins = {**committed, **others}
                left = sum(max(0, ends[place] - begins[place]) for place in places)
                if left:
                    late[step.spec.name] = (topic, left)
        return late

    def commit(self, components: Sequence[TaskComponent]) -> None:
        """Commit the offsets at which functions begin, to their groups. A topic that a function reads now and was
        called with before begins at its end. Of other inputs the partitions without a committed offset begin at their
        first record, or at the end if the definition says Latest and the group has committed nowhere in those inputs.

        Functions with windows are left out: they begin by themselves. Raises the error of the first offset that the
        server refuses.
        """
        for step in (step for component in components for step in component.steps):
            spec = step.spec
            if spec.window is not None:
                continue  # its instance begins by itself, at a window
            called = set(self._before.get(spec.fqfn, ())).intersection(step.inputs)
            if called:
                self._commit(
                    spec, self._reader.list_offsets(dict.fromkeys(self._places(called), LATEST), READ_COMMITTED)
                )
            places = self._places([topic for topic in step.inputs if topic not in called])
            _, others = self._begins(spec, places)
            self._commit(spec, others)

    def _places(self, topics: Any) -> list[TopicPartition]:
        there = self._reader.topics(set(topics)) if topics else {}
        return [(name, number) for name, topic in there.items() for number in topic.leaders]

    def _begins(self, spec: FunctionSpec, places: Sequence[TopicPartition]) -> tuple[Offsets, Offsets]:
        """Return the offsets that a function's group has committed in some of these partitions, and those at which it
        begins in the others: the first ones, or the ends if the group has committed in none of the partitions and the
        definition says Latest.
        """
        if not places:
            return {}, {}
        known = self._writer.committed(spec.group, places)
        latest = not known and spec.subscription_position == "Latest"
        missing = {place: LATEST if latest else EARLIEST for place in places if place not in known}
        others = self._reader.list_offsets(missing, READ_COMMITTED) if missing else {}
        return {place: offset for place, (offset, _) in known.items()}, others

    def _commit(self, spec: FunctionSpec, offsets: Offsets) -> None:
        if offsets:
            for error in self._writer.commit(spec.group, offsets).values():
                raise error
