"""The amounts that clients take, in windows of a second, and the seconds for which those are held who took too much.

Owns: what is counted for whom, Kafka's windows and delays. A window is a second, and eleven of them count, with the one
that runs; so about ten seconds' worth may come at once.
Must not know: connections, what an answer looks like. The time is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from prometheus_client.core import Metric

from kop import clock
from kop.metrics import counter_family
from kop.security.quotas import QuotaKind, Quotas, Share
from kop.security.tenants import HOME, Space

WINDOWS: Final = 11
LONGEST_OF_REQUESTS: Final = 1.0
"""The most seconds that a request is held for the time it took, and a new connection before it is closed."""
MOST_COUNTED: Final = 10_000
"""Those whose counts are kept, for each kind of quota. Client ids come from clients, so there is no end of them."""
LONGEST_HELD: Final = (2**31 - 1) / 1000
"""The most seconds that a client is held: an answer cannot say more."""
_LONGEST_KEY: Final = 255
"""Characters of a client id by which it is counted."""
_T = TypeVar("_T")
_K = TypeVar("_K")
_C = TypeVar("_C")


class Rate:
    """The amount that somebody took in the last seconds."""

    __slots__ = ("_total", "_windows")

    def __init__(self) -> None:
        self._windows: deque[list[float]] = deque()
        """The beginning of each window in which something was taken, and how much."""
        self._total = 0.0

    def record(self, amount: float, now: float) -> None:
        """Count an amount that was used at `now`, in seconds of the clock that all calls have in common."""
        self._forget(now)
        windows = self._windows
        if windows and now < windows[-1][0] + 1:
            windows[-1][1] += amount
        else:
            windows.append([now, amount])
        self._total += amount

    def delay(self, limit: float, now: float, more: float = 0.0) -> float:
        """Return the seconds from `now` after which the rate is within the limit (an amount a second) again; 0 if it
        is. `more` is an amount to be used besides, which is not counted.
        """
        self._forget(now)
        return max(0.0, (self._total + more) / limit - self._seconds(now))

    def room(self, limit: float, now: float) -> float:
        """Return the amount that may be used at `now` (in seconds) so that the rate stays within the limit, an amount a
        second.
        """
        self._forget(now)
        return max(0.0, limit * self._seconds(now) - self._total)

    def _seconds(self, now: float) -> float:
        """Return the seconds over which the rate is taken; windows that have not begun yet count in full."""
        seconds = now - self._windows[0][0] if self._windows else 0.0
        return seconds + max(0, WINDOWS - 1 - int(seconds))

    def _forget(self, now: float) -> None:
        windows = self._windows
        while windows and now - windows[0][0] >= WINDOWS:
            self._total -= windows.popleft()[1]
            if not windows:
                self._total = 0.0


class Bucket:
    """The amount that somebody took of something that flows back at the quota's rate: Kafka's TokenBucket."""

    __slots__ = ("_at", "_taken")

    def __init__(self) -> None:
        self._taken = 0.0
        self._at = 0.0

    def record(self, amount: float, limit: float, now: float) -> None:
        """Count an amount that was used at `now` (in seconds); `limit` a second have flowed back since the last one."""
        self._taken = self._left(limit, now) + amount
        self._at = now

    def delay(self, limit: float, now: float) -> float:
        """Return the seconds from `now` after which something may be used again; 0 if it may be now. `limit` is what
        flows back in a second; eleven seconds' worth may be taken in advance.
        """
        return max(0.0, self._left(limit, now) / limit - WINDOWS)

    def _left(self, limit: float, now: float) -> float:
        return max(0.0, self._taken - limit * (now - self._at))


class _Counted(NamedTuple):
    rate: Rate
    limit: float


class _Mutations(NamedTuple):
    bucket: Bucket
    limit: float


class ClientQuotas(NamedTuple):
    """The quotas that hold for a client, each with what counts against it; None if there is none of a kind."""

    produced: _Counted | None
    consumed: _Counted | None
    requests: _Counted | None
    mutations: _Mutations | None


_NOTHING: Final = ClientQuotas(None, None, None, None)


class Meter:
    """The quota use of one request, and the seconds for which its client is held for it."""

    __slots__ = ("_begun", "_counted", "_gave", "_owner", "_produced", "_quotas", "delay", "kind", "place", "seconds")

    def __init__(self, owner: Throttling, quotas: ClientQuotas, produced: int, place: int | None) -> None:
        """`produced`: the bytes of the request that count as produced. `place`: the position of the throttle time in
        its answer.
        """
        self._owner = owner
        self._quotas = quotas
        self._produced = produced
        self._begun = clock.perf_counter()
        self._counted = 0.0
        """The part of `seconds` that is counted."""
        self._gave = False
        """True if an answer to Fetch has records: its client is held for the time it took with the next one."""
        self.place = place
        """The place of the throttle time in the encoded answer; None if it has none."""
        self.seconds = 0.0
        """The time of the event loop that the request took."""
        self.delay = 0.0
        """The seconds for which the client is held."""
        self.kind = QuotaKind.REQUESTS
        """The kind of the quota that it is held for."""

    def is_started(self) -> None:
        """Add the time since the meter was made, in which the request's handler was called, to the time that the
        request took.
        """
        self.seconds += clock.perf_counter() - self._begun

    def room(self) -> float | None:
        """Return the bytes that an answer to Fetch may have now; None: any number. If the client took too much before,
        return 0: it is held instead, and the seconds are noted.
        """
        now = self._owner.now()
        self._hold_for_requests(now)
        consumed = self._quotas.consumed
        if consumed is not None:
            self._hold(QuotaKind.CONSUMED, consumed.rate.delay(consumed.limit, now))
        if self.delay:
            return 0.0
        return None if consumed is None else max(1.0, consumed.rate.room(consumed.limit, now))

    def consume(self, size: int) -> bool:
        """Count the bytes of an answer to Fetch and return true; return false, without counting them, if the client
        took too much before and is held instead.
        """
        self._count_time(self._owner.now())
        if self.room() == 0:
            return False
        self._gave = True
        if self._quotas.consumed is not None and size:
            self._quotas.consumed.rate.record(size, self._owner.now())
        return True

    def mutate(self, partitions: int, *, strict: bool) -> bool:
        """Count partitions that are made or deleted, and return true; the client is held if they are too many. With
        `strict` the client is held if it made too many before: then nothing is counted, and the result is false.
        """
        mutations, now = self._quotas.mutations, self._owner.now()
        if mutations is None:
            return True
        if strict and (delay := mutations.bucket.delay(mutations.limit, now)):
            self._hold(QuotaKind.MUTATIONS, delay)
            return False
        mutations.bucket.record(partitions, mutations.limit, now)
        if not strict:
            self._hold(QuotaKind.MUTATIONS, mutations.bucket.delay(mutations.limit, now))
        return True

    def answered(self) -> float:
        """Count the request in the quotas of its client, because its answer goes out now; return the seconds for which
        the client is held. To be called once.
        """
        now = self._owner.now()
        self._count_time(now)
        if not self._gave:
            self._hold_for_requests(now)
        produced = self._quotas.produced
        if produced is not None and self._produced:
            produced.rate.record(self._produced, now)
            self._hold(QuotaKind.PRODUCED, produced.rate.delay(produced.limit, now))
        if self.delay:
            self._owner.note(self.kind, self.delay)
        return self.delay

    def _count_time(self, now: float) -> None:
        requests = self._quotas.requests
        if requests is not None:
            requests.rate.record(100 * (self.seconds - self._counted), now)
            self._counted = self.seconds

    def _hold_for_requests(self, now: float) -> None:
        requests = self._quotas.requests
        if requests is not None:
            self._hold(QuotaKind.REQUESTS, min(requests.rate.delay(requests.limit, now), LONGEST_OF_REQUESTS))

    def _hold(self, kind: QuotaKind, delay: float) -> None:
        if delay > self.delay:
            self.delay, self.kind = min(delay, LONGEST_HELD), kind


class TimedWork(Coroutine[Any, Any, _T]):
    """A coroutine that counts the time of its own steps as that of a request."""

    __slots__ = ("_meter", "_work")

    def __init__(self, work: Coroutine[Any, Any, _T], meter: Meter) -> None:
        self._work = work
        self._meter = meter

    def send(self, value: Any) -> Any:
        """Run the next step of the wrapped coroutine, and measure its time."""
        begin = clock.perf_counter()
        try:
            return self._work.send(value)
        finally:
            self._meter.seconds += clock.perf_counter() - begin

    def throw(self, *error: Any) -> Any:
        """Run the next step of the wrapped coroutine by raising an exception in it, and measure its time."""
        begin = clock.perf_counter()
        try:
            return self._work.throw(*error)
        finally:
            self._meter.seconds += clock.perf_counter() - begin

    def close(self) -> None:
        """Close the wrapped coroutine."""
        self._work.close()

    def __await__(self) -> TimedWork[_T]:
        return self

    def __iter__(self) -> TimedWork[_T]:
        return self

    def __next__(self) -> Any:
        return self.send(None)


class Throttling:
    """The amounts that all clients of this broker take, by the quotas that hold for them."""

    def __init__(self, quotas: Quotas, now: Callable[[], float], most_counted: int = MOST_COUNTED) -> None:
        """`now` gives the time in seconds."""
        self._most_counted = most_counted
        self.quotas = quotas
        self.now = now
        # Those of users, and those of client ids: the latter have no end, and must not wipe out the former.
        self._rates: tuple[dict[tuple[QuotaKind, Share], Rate], ...] = {}, {}
        self._buckets: tuple[dict[Share, Bucket], ...] = {}, {}
        self._hosts: dict[str, Rate] = {}
        self._clients: dict[tuple[str, str, Space], ClientQuotas] = {}
        self._version = 0
        """The version of the quotas by which `_clients` are."""
        self._held: dict[QuotaKind, list[float]] = {kind: [0, 0.0] for kind in QuotaKind}
        """The number of times that somebody was held, and the seconds of it, by the kind of quota."""

    def of(self, principal: str, client_id: str | None, space: Space = HOME) -> ClientQuotas | None:
        """Return the quotas that hold for a client, each with what counts against it; None if there are none."""
        clients = self._clients
        if self._version != self.quotas.version or len(clients) >= self._most_counted:
            clients.clear()
            self._version = self.quotas.version
        key = principal, client_id or "", space
        known = clients.get(key)
        if known is None:
            known = self._quotas_of(principal.partition(":")[2], client_id or "", space)
            if len(key[1]) <= _LONGEST_KEY:  # a long one would be kept whole
                clients[key] = known
        return None if known is _NOTHING else known

    def _quotas_of(self, user: str, client_id: str, space: Space) -> ClientQuotas:
        produced, consumed, requests = (
            self._counted(kind, user, client_id, space)
            for kind in (QuotaKind.PRODUCED, QuotaKind.CONSUMED, QuotaKind.REQUESTS)
        )
        mutations = None
        if (limit := self.quotas.limit(QuotaKind.MUTATIONS, user, client_id, space)) is not None:
            share = _key(limit[1])
            bucket = self._counter(self._buckets[share[1] is not None], share, Bucket)
            mutations = _Mutations(bucket, limit[0])
        holds = ClientQuotas(produced, consumed, requests, mutations)
        return _NOTHING if holds == _NOTHING else holds

    def _counted(self, kind: QuotaKind, user: str, client_id: str, space: Space) -> _Counted | None:
        limit = self.quotas.limit(kind, user, client_id, space)
        if limit is None:
            return None
        share = _key(limit[1])
        return _Counted(self._counter(self._rates[share[1] is not None], (kind, share), Rate), limit[0])

    def connected(self, host: str) -> float:
        """Count a new connection of an address and return 0; if the address opens more than its quota, return the
        seconds (one at most) after which the connection is to be closed, which does not count.
        """
        limit = self.quotas.connections(host)
        if limit is None:
            return 0.0
        rate, now = self._counter(self._hosts, host, Rate), self.now()
        delay = min(rate.delay(limit, now, more=1.0), LONGEST_OF_REQUESTS)
        if delay:
            self.note(QuotaKind.CONNECTIONS, delay)
        else:
            rate.record(1.0, now)
        return delay

    def _counter(self, counters: dict[_K, _C], key: _K, make: Callable[[], _C]) -> _C:
        """Return the counter of that key, a new one if there is none. If there are too many, the oldest one is dropped.

        A counter is moved to the end only when quotas are looked up anew, which is often enough.
        """
        counter = counters.pop(key, None)
        counters[key] = counter = make() if counter is None else counter
        if len(counters) > self._most_counted:
            del counters[next(iter(counters))]
        return counter

    @property
    def counted(self) -> int:
        """The number of counters that are kept, for clients and addresses."""
        of_clients = sum(map(len, self._rates)) + sum(map(len, self._buckets))
        return of_clients + len(self._hosts)

    def note(self, kind: QuotaKind, delay: float) -> None:
        """Count for the metrics that a client is held for `delay` seconds by a quota of that kind."""
        held = self._held[kind]
        held[0] += 1
        held[1] += delay

    def collect(self) -> Iterable[Metric]:
        """Return how often, and for how long, clients were held, by the kind of quota."""
        times = counter_family("kop_quota_throttled", "Answers and connections held by a quota.", ["quota"])
        seconds = counter_family("kop_quota_throttle_seconds", "Seconds that quotas hold clients for.", ["quota"])
        for kind, (count, held) in self._held.items():
            times.add_metric([kind.value], count)
            seconds.add_metric([kind.value], held)
        return times, seconds


def _key(share: Share) -> Share:
    user, client_id = share
    return user, None if client_id is None else client_id[:_LONGEST_KEY]
