"""Batches that compiled code holds: until their receipts, and through all that is unusual, as if it had never had them.

The producers are real ones over a Pulsar without sockets (`wired_pulsar.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from storage.batches import LIMIT, batch
from storage.wired_pulsar import OutcomeNote, WiredPlay, turns

from kop.compiled import missing
from kop.pulsar_client import attachment
from kop.records.batch import read_header
from kop.records.compression import Codec
from kop.storage.pulsar.partition import appends
from kop.storage.pulsar.partition import producer as producer_module

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no compiled code is used: {missing()}")

WRONG = "offsets_told_wrong"


class NoWait:
    """A `Backoff` without waits."""

    def next(self) -> float:
        return 0.0

    def reset(self) -> None:
        pass


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code may begin again at once, and a producer comes back at once."""
    monkeypatch.setattr(producer_module, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(attachment, "Backoff", NoWait)


# --- the same steps with compiled code and without it


class Twins:
    """Two logs that are given the same steps, compiled code in the first of them alone."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.direct, self.ordinary = WiredPlay(), WiredPlay(direct=False)
        self.plays = (self.direct, self.ordinary)
        self.epochs = {41: 0, 42: 0}
        self.sequences = {41: 0, 42: 0}
        self.history: dict[int, list[bytearray]] = {-1: [], 41: [], 42: []}
        self.taken = 0
        """Batches that compiled code took."""

    def submit(self, data: bytearray) -> None:
        offered = self.dice.random() < 0.9
        before = self.direct.direct_bytes
        for play in self.plays:
            play.submit(data, offered=offered)
        self.taken += self.direct.direct_bytes > before

    def append(self) -> None:
        """The next batch of a client."""
        dice = self.dice
        producer = dice.choice([-1, 41, 41, 41, 42])
        codec = dice.choice([0, 0, 0, 0, 0, int(Codec.LZ4), int(Codec.ZSTD), int(Codec.GZIP), int(Codec.SNAPPY)])
        values = [f"{dice.random()}"] * dice.randint(1, 4)
        if producer < 0:
            data = batch(values, codec=codec)
        else:
            first = self.sequences[producer]
            data = batch(values, producer=producer, epoch=self.epochs[producer], sequence=first, codec=codec)
            self.sequences[producer] = first + len(values)
        self.history[producer].append(data)
        self.submit(data)

    def again(self) -> None:
        """A batch that was submitted before: one of the last, mostly."""
        sent = self.history[self.dice.choice([41, 41, 42])]
        if sent:
            self.submit(sent[-min(len(sent), self.dice.randint(1, 9))])

    def misfit(self) -> None:
        """A batch that is ahead of its producer, or of another epoch."""
        producer = self.dice.choice([41, 42])
        epoch, sequence = self.epochs[producer], self.sequences[producer]
        epoch, sequence = self.dice.choice([(epoch, sequence + 7), (epoch - 1, sequence), (epoch + 1, sequence + 1)])
        if epoch >= 0:
            self.submit(batch(["out of order"], producer=producer, epoch=epoch, sequence=sequence))

    def new_epoch(self) -> None:
        producer = self.dice.choice([41, 42])
        self.epochs[producer] += 1
        self.sequences[producer] = 0

    def each(self, do: Callable[[WiredPlay], object]) -> None:
        for play in self.plays:
            do(play)

    def store(self) -> None:
        count = self.dice.randint(1, 6)
        self.each(lambda play: [play.broker.store() for _ in range(min(count, len(play.broker.unseen)))])

    def refuse(self) -> None:
        code = self.dice.choice(["NotAllowedError", "PersistenceError"])
        self.each(lambda play: play.broker.unseen and play.broker.refuse_next(code))

    def tell(self) -> None:
        self.each(lambda play: play.broker.untold and play.broker.answer(play.broker.untold[:1]))

    def tell_together(self) -> None:
        most = self.dice.randint(1, 9)
        self.each(lambda play: play.broker.tell_together(most))

    def tail(self) -> None:
        if self.dice.random() < 0.6:
            self.each(lambda play: play.broker.tail.deliver())
            return
        count = self.dice.randint(1, 3)

        def deliver(play: WiredPlay) -> None:
            entries = play.broker.entries
            for _ in range(count):
                reader = play.broker.tail
                if not reader.closed and reader.next < len(entries):
                    reader.next += 1
                    reader.on_entry(entries[reader.next - 1])

        self.each(deliver)

    def lose(self) -> None:
        self.each(lambda play: play.broker.lose())

    def come_back(self) -> None:
        self.each(lambda play: play.broker.reachable.set())

    def close_idle(self) -> None:
        if all(play.broker.reachable.is_set() for play in self.plays):
            self.each(lambda play: play.log.close_idle(play.log.loop.time() + 60, 10))

    def look(self) -> None:
        views = [play.log.producers() for play in self.plays]
        assert views[0] == views[1]

    async def step(self) -> str:
        steps: Sequence[tuple[int, Callable[[], object]]] = (
            (40, self.append),
            (6, self.again),
            (2, self.misfit),
            (1, self.new_epoch),
            (24, self.store),
            (12, self.tell),
            (12, self.tell_together),
            (7, self.tail),
            (1, lambda: self.each(lambda play: play.broker.foreign())),
            (1, lambda: self.each(lambda play: play.broker.new_ledger())),
            (1, lambda: self.each(lambda play: play.broker.gap(4))),
            (1, self.refuse),
            (1, self.lose),
            (4, self.come_back),
            (1, self.close_idle),
            (1, self.look),
        )
        (step,) = self.dice.choices([step for _, step in steps], [weight for weight, _ in steps])
        step()
        if self.dice.random() < 0.7:
            await turns(6)
        return getattr(step, "__name__", "an entry")

    async def finish(self) -> None:
        """Let everything happen that has to, until all batches are answered."""
        self.come_back()
        end = asyncio.get_running_loop().time() + 20
        while any(None in play.outcomes for play in self.plays):
            await turns(6)
            for play in self.plays:
                while play.broker.unseen:
                    play.broker.store()
                play.broker.tell_together()
                play.broker.tail.deliver()
            await turns(6)
            assert asyncio.get_running_loop().time() < end, [play.outcomes for play in self.plays]
            if any(None in play.outcomes for play in self.plays):
                await asyncio.sleep(0.001)  # what is waited for is asked of Pulsar, or searched
        for play in self.plays:
            play.broker.tail.deliver()

    async def close(self) -> None:
        for play in self.plays:
            await play.log.close()
            assert play.engine.queued_bytes == play.direct_bytes == 0


def check_offsets(play: WiredPlay) -> int:
    """Check what clients were told, and what they read from memory, by what is stored. Returns the bytes in memory."""
    ends: dict[int, int] = {}
    for entry in play.broker.entries:
        assert entry.index is not None
        ends[entry.index + 1 - entry.num_messages] = entry.index + 1
    assert {told for told in play.outcomes if type(told) is int} <= ends.keys()
    assert play.log.high_watermark == max(ends.values())
    offset = play.log.tail.cached.start
    size = 0
    while offset < play.log.high_watermark:
        result = play.log.read_cached(offset, LIMIT, min_one=True)
        if result is None or not result.buffers:  # what lies in a gap is not known yet
            break
        for data in result.buffers:
            header = read_header(data)
            assert header.base_offset == offset
            if header.base_offset in ends:
                assert ends[offset] == header.next_offset
            else:
                assert header.record_count == 0
            offset = header.next_offset
        size += result.size
    return size


@pytest.mark.parametrize("part", range(4))
async def test_whatever_happens_clients_and_the_topic_get_what_they_get_without_compiled_code(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "ASK_AGAIN_AFTER", ())
    taken = size = 0
    for seed in range(part * 75, part * 75 + 75):
        monkeypatch.setattr(appends, "LATE_TAIL_SECONDS", 0.01 * (seed % 2))
        twins = Twins(seed)
        await asyncio.gather(*(play.log.attach() for play in twins.plays))
        steps: list[str] = []
        try:
            for _ in range(60):
                steps.append(await twins.step())
            await twins.finish()
            assert twins.direct.outcomes == twins.ordinary.outcomes
            assert twins.direct.stored() == twins.ordinary.stored()
            for play in twins.plays:
                size += check_offsets(play)
                assert play.engine.faults.counts.get(WRONG, 0) == 0
            await twins.close()
        except BaseException:
            print(f"seed {seed}: {steps}")  # noqa: T201
            raise
        taken += twins.taken
    assert taken > 75 * 5
    assert size > 75 * 1000
