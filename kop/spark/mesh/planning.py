"""The plan of a batch: which partitions there are, whether there is something to do, and who of the tasks has what.

Owns: these questions to the servers. Must not know: Spark, functions.
"""

from __future__ import annotations

from typing import Final

from kop import clock
from kop.client.offsets import LATEST, Offsets, TopicPartition
from kop.client.read_client import Fetched, FetchSettings, ReadClient
from kop.client.write_client import WriteClient
from kop.functions.reading import READ_COMMITTED
from kop.functions.spec import Guarantee
from kop.spark.mesh.component import Work
from kop.spark.mesh.share import Share

WAIT_MS: Final = 500
"""The milliseconds to wait for records before it is said that there are none."""
LOOK_SECONDS: Final = 30.0
"""The seconds between two looks for partitions that came later."""


class Planner:
    """Plans the batches of one component. For one thread."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._reader = ReadClient(work.settings, int(work.patience * 1000))
        try:
            self._writer = WriteClient(work.settings, work.patience)
        except BaseException:
            self._reader.close()
            raise
        self._places: list[TopicPartition] = []
        self._looked = float("-inf")
        self._planned: tuple[Offsets, Offsets] | None = None
        """The positions and the ends of partitions when a batch was planned that calls each message once."""

    def close(self) -> None:
        """Close the connections to the servers."""
        self._reader.close()
        self._writer.close()

    def places(self) -> list[TopicPartition]:
        """Return the input partitions, sorted, as the server told them up to 30 s ago. Partitions that a topic did not
        have yet when the component was cut are left out.
        """
        now = clock.monotonic()
        if not self._places or now >= self._looked + LOOK_SECONDS:
            topics = self._reader.topics(set(self._work.component.inputs))
            counts = self._work.counts
            self._places = sorted(
                (name, number)
                for name, topic in topics.items()
                for number in topic.leaders
                if number < counts.get(name, len(topic.leaders))
            )
            self._looked = now
        return self._places

    def positions(self) -> Offsets:
        """Return the offset up to which each partition is done: the lowest that the groups of the functions which read
        it have committed. A partition is left out if no group has committed one, or only one that an open transaction
        holds.
        """
        positions: Offsets = {}
        places = self.places()
        for step in self._work.component.steps:
            own = [place for place in places if place[0] in step.inputs]
            if not own:
                continue
            for place, (offset, _) in self._writer.committed(step.spec.group, own, may_be_open=own).items():
                positions[place] = min(offset, positions.get(place, offset))
        return positions

    def has_work(self, wait_ms: int = WAIT_MS) -> bool:
        """Return if a batch is to be planned: some partition has records behind the offset up to which it is done, for
        which the server waits up to `wait_ms`, or that offset is not known. With `once` and MANUAL also False while
        nothing was written or acknowledged since a batch was planned: its records were all called.
        """
        positions = self.positions()
        places = self.places()
        if any(place not in positions for place in places):
            return True  # one that came later, or whose offset is being committed
        if not places:
            return False
        if self._planned is not None and self._planned == (positions, self._ends()):
            return False  # all was called, and nobody has acknowledged more
        fetch = FetchSettings(isolation=READ_COMMITTED, partition_bytes=1, max_bytes=1, wait_ms=wait_ms)
        answers = self._reader.fetch_many(positions, fetch)
        return any(not isinstance(answer, Fetched) or answer.records for answer in answers.values())

    def lag(self) -> int:
        """Return the number of offsets of all partitions together that are behind what their groups have committed."""
        return self.left({})

    def left(self, reached: Offsets) -> int:
        """Return the number of offsets of all partitions together that are behind what their groups have committed and
        behind `reached`: the offset, by partition, up to which tasks have called functions, acknowledged or not.
        """
        positions = self.positions()
        ends = self._ends().items()
        return sum(max(0, end - max(positions.get(place, 0), reached.get(place, 0))) for place, end in ends)

    def _ends(self) -> Offsets:
        return self._reader.list_offsets(dict.fromkeys(self.places(), LATEST), READ_COMMITTED)

    def shares(self) -> list[Share]:
        """Return the partitions of each task of a batch, and where it ends in each: at the present ends if batches have
        no length in seconds, else nowhere. There is one task if the component is whole, else up to `tasks` of its work;
        each has at least one partition, and no two have the same. With `once` and MANUAL, `has_work` compares with this
        plan.
        """
        places = self.places()
        count = 1 if self._work.component.is_whole else max(1, min(self._work.tasks, len(places)))
        ends: Offsets | None = None
        if self._work.batch_seconds is None:
            ends = self._ends()
            if self._work.once and self._work.component.guarantee is Guarantee.MANUAL:
                self._planned = self.positions(), ends
        shares = []
        for number in range(count):
            own = tuple(places[number::count])
            if own:
                shares.append(Share(number, own, None if ends is None else {place: ends[place] for place in own}))
        return shares
