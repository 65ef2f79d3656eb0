"""The memory engine with faults that the test asks for: appends and reads that wait or fail, leads that end.

What a test does not ask for goes as in the memory engine, which keeps the protocol of `kop.storage.base`.

    store = FaultyStore()
    monkeypatch.setattr("kop.storage.memory.engine.open_engine", store.open)
    async with gateway(tmp_path, store="memory:") as serving:     # or without a gateway: engine = await store.open()
        log = store.log("t")
        log.hold()                      # appends wait ...
        log.release()                   # ... and go on in their order,
        log.release(ErrorCode.X)        # or fail, and the log is as if they had not been asked for
        log.pass_by()                   # those that wait wait on, others do not
        log.append_error = ErrorCode.X  # appends fail at once
        log.cold = True                 # nothing is in memory: what reads it has to call `read`
        log.gate = asyncio.Event()      # reads wait for it; `reads` counts them, `reading` those under way
        log.read_error = KopError(...)  # reads fail
        log.doubtful = True             # another broker may lead: until `verify_lead`, or for good with `no_answer`
        log.lose_lead()                 # another broker leads: whoever led is told, and may lead again at once
        log.lose_lead(keep=True)        # ... or only after `free_lead`: until then the other one writes
    engine = await store.open()         # a restart: the same records, other logs
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from kop.errors import BackendError, ErrorCode, KopError
from kop.records.batch import BatchHeader, iter_records
from kop.storage.base import AppendWaiter, Buffer, LogPolicy, ReadResult, TopicInfo
from kop.storage.memory.engine import Memory, MemoryEngine, MemoryTopics
from kop.storage.memory.log import LogMemory, MemoryLog
from kop.storage.memory.settings import MemorySettings


class FaultyLog(MemoryLog):
    """One partition."""

    def __init__(self, space: LogMemory, topic: TopicInfo, index: int, policy: LogPolicy) -> None:
        super().__init__(space, topic, index, policy)
        self.append_error: ErrorCode | None = None
        self.read_error: KopError | None = None
        self.cold = False
        self.gate: asyncio.Event | None = None
        self.doubtful = False
        self.no_answer = False
        self.appends = 0
        """Appends asked for."""
        self.reads = 0
        """Reads asked for."""
        self.reading = 0
        """Reads under way."""
        self._holding = False
        self._held: list[Callable[[ErrorCode | None], None]] = []
        self._lost: Callable[[], None] = lambda: None
        self._free = asyncio.Event()
        self._free.set()

    # --- appends

    def hold(self) -> None:
        """Let appends wait for `release`."""
        self._holding = True

    def pass_by(self) -> None:
        """Let appends that come from now on go by those that wait."""
        self._holding = False

    def release(self, error: ErrorCode | None = None) -> None:
        """Let the appends that wait go on, or fail; those that come from now on do not wait."""
        self._holding = False
        held, self._held = self._held, []
        for go_on in held:
            go_on(error)

    @property
    def waiting(self) -> int:
        """Appends that wait."""
        return len(self._held)

    def submit(
        self,
        batch: Buffer,
        header: BatchHeader,
        *,
        now_ms: int,
        waiter: AppendWaiter,
        place: int,
        from_zero: bool = False,
    ) -> None:
        self.appends += 1
        submit = super().submit

        def go_on(error: ErrorCode | None) -> None:
            error = error or self.append_error
            if error is not None:
                waiter.append_failed(place, BackendError("as the test wants", error))
            else:
                submit(batch, header, now_ms=now_ms, waiter=waiter, place=place, from_zero=from_zero)

        if self._holding:
            self._held.append(go_on)
        else:
            go_on(None)

    # --- reads

    def read_cached(  # type: ignore[override]  # the memory engine never says None
        self, offset: int, max_bytes: int, *, min_one: bool
    ) -> ReadResult | None:
        if self.cold and self.log_start_offset <= offset < self.high_watermark:
            return None
        return super().read_cached(offset, max_bytes, min_one=min_one)

    async def read(self, offset: int, max_bytes: int, *, min_one: bool, places: bool = False) -> ReadResult:
        self.reads += 1
        result = super().read_cached(offset, max_bytes, min_one=min_one)
        self.reading += 1
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.reading -= 1
        if self.read_error is not None:
            raise type(self.read_error)(self.read_error.message, self.read_error.code)
        return result

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values of all records."""
        buffers = super().read_cached(self.log_start_offset, 1 << 30, min_one=True).buffers
        return [(record.key, record.value) for data in buffers for record in iter_records(data, max_bytes=1 << 30)]

    # --- the lead

    async def lead(self, lost: Callable[[], None]) -> None:
        await self._free.wait()
        self._lost = lost

    @property
    def leads(self) -> bool:  # type: ignore[override]  # the memory engine always leads
        return not self.doubtful

    async def verify_lead(self) -> None:
        self.doubtful = self.doubtful and self.no_answer

    def lose_lead(self, *, keep: bool = False) -> None:
        """Tell whoever leads that another one does; with `keep` nobody leads again before `free_lead`."""
        if keep:
            self._free.clear()
        self._lost()

    def free_lead(self) -> None:
        """The other one leads no more."""
        self._free.set()


class FaultyTopics(MemoryTopics):
    """The table of topics; with a `namespace` of its own where the test sets one."""

    namespace: str | None = None  # type: ignore[assignment]  # the memory engine has no namespaces
    gate: asyncio.Event | None = None
    """Looks for topics wait for it."""
    finds = 0
    """Looks asked for."""
    unseen: set[str]
    """Topics that another broker has made, and that nobody has looked for."""

    def get(self, name: str) -> TopicInfo | None:
        return None if name in self.unseen else super().get(name)

    async def find(self, names: Collection[str]) -> None:
        self.finds += 1
        self.unseen -= set(names)
        if self.gate is not None:
            await self.gate.wait()


class FaultyEngine(MemoryEngine):
    """The engine."""

    topics: FaultyTopics

    def __init__(self, memory: Memory, policy: Callable[[TopicInfo], LogPolicy]) -> None:
        super().__init__(memory, policy, MemorySettings(maintain=False))
        self.topics = FaultyTopics(memory.topics_version, memory.topics, self.topic_changed)
        self.topics.unseen = set()

    def new_log(self, space: LogMemory, topic: TopicInfo, index: int, policy: LogPolicy) -> MemoryLog:
        return FaultyLog(space, topic, index, policy)


class FaultyStore:
    """What such engines keep from one to the next, and the one that is open."""

    engine: FaultyEngine

    def __init__(self) -> None:
        self.memory = Memory()

    async def open(
        self,
        *,
        policy: Callable[[TopicInfo], LogPolicy] = lambda _: LogPolicy(),
        settings: MemorySettings | None = None,
    ) -> FaultyEngine:
        """An engine on the records of the one before, which has to be closed. Called as `memory.open_engine` is."""
        self.engine = FaultyEngine(self.memory, policy)
        return self.engine

    def log(self, topic: str, partition: int = 0) -> FaultyLog:
        """The log of a partition of the open engine."""
        info = self.engine.topics.get(topic)
        assert info is not None, f"there is no topic {topic}"
        log = self.engine.log(info.topic_id, partition)
        assert type(log) is FaultyLog, f"{topic} has no partition {partition}"
        return log
