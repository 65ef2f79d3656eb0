"""What clients take in Kafka's windows, and for how long they are held: by a table of times."""

from __future__ import annotations

import asyncio
import math
import random
import tracemalloc

import pytest

from kop import clock
from kop.security.quotas import DEFAULT, Entity, QuotaKind, Quotas
from kop.security.throttling import Bucket, ClientQuotas, Meter, Rate, Throttling, TimedWork

KB = 1000


class Clients:
    """Clients of a broker at a time that a test sets."""

    def __init__(self, *quotas: tuple[Entity, QuotaKind, float], most: int = 1000) -> None:
        self.quotas = Quotas()
        for entity, kind, value in quotas:
            self.quotas.put(entity, kind, value)
        self.now = 1000.0
        self.throttling = Throttling(self.quotas, lambda: self.now, most)

    def of(self, user: str = "u", client_id: str | None = "c") -> ClientQuotas | None:
        return self.throttling.of(f"User:{user}", client_id)

    def meter(self, user: str = "u", client_id: str | None = "c", produced: int = 0) -> Meter:
        quotas = self.of(user, client_id)
        assert quotas is not None
        return Meter(self.throttling, quotas, produced, None)

    def produce(self, size: int, user: str = "u", client_id: str | None = "c") -> float:
        return self.meter(user, client_id, size).answered()


def test_ten_seconds_worth_may_come_at_once() -> None:
    rate = Rate()
    rate.record(300 * KB, 50.0)
    assert rate.delay(100 * KB, 50.0) == 0
    assert rate.room(100 * KB, 50.0) == 700 * KB
    rate.record(700 * KB, 50.5)
    assert rate.delay(100 * KB, 50.5) == 0
    rate.record(200 * KB, 50.5)
    assert rate.delay(100 * KB, 50.5) == pytest.approx(1.5)  # (O - T) / T * W, with a window of 10.5 s
    assert rate.room(100 * KB, 50.5) == 0
    assert rate.delay(100 * KB, 51.4) == pytest.approx(1.6), "a window that ends is counted as a full one"
    assert rate.delay(100 * KB, 60.9) == pytest.approx(1.1)
    assert rate.delay(100 * KB, 61.0) == pytest.approx(0), "the first window is eleven seconds old"


def test_a_rate_is_that_of_the_last_eleven_seconds() -> None:
    chance = random.Random(3)
    rate, taken, now = Rate(), list[tuple[float, int]](), 0.0
    for _ in range(500):
        now += chance.expovariate(2)
        size = chance.randrange(1000)
        rate.record(size, now)
        taken.append((now, size))
        least = sum(size for at, size in taken if now - at < 10)
        most = sum(size for at, size in taken if now - at < 12)
        observed = 1e6 * 11 - rate.room(1e6, now)  # the window is between 10 and 11 seconds
        assert least <= observed <= most + 1e6 * 1.0 + 1


def test_a_bucket_holds_eleven_seconds_worth() -> None:
    bucket = Bucket()
    assert bucket.delay(1.0, 5.0) == 0
    bucket.record(24, 1.0, 5.0)
    assert bucket.delay(1.0, 5.0) == 13
    assert bucket.delay(1.0, 5.035) == pytest.approx(12.965)
    assert bucket.delay(1.0, 18.0) == 0
    bucket.record(1, 1.0, 18.0)
    assert bucket.delay(1.0, 18.0) == 1
    bucket.record(11, 1.0, 100.0)
    assert bucket.delay(1.0, 100.0) == 0


def test_who_has_no_quota_is_not_counted() -> None:
    clients = Clients((Entity("u"), QuotaKind.PRODUCED, 10.0))
    assert clients.of("other") is None
    clients.quotas.put(Entity(DEFAULT), QuotaKind.REQUESTS, 10.0)
    assert clients.of("other") is not None
    clients.quotas.put(Entity(DEFAULT), QuotaKind.REQUESTS, None)
    assert clients.of("other") is None


def test_those_of_a_user_share_and_those_of_a_client_id_do_not() -> None:
    clients = Clients(
        (Entity("u"), QuotaKind.PRODUCED, 100.0),
        (Entity(DEFAULT), QuotaKind.PRODUCED, 100.0),
        (Entity(None, DEFAULT), QuotaKind.CONSUMED, 100.0),
    )
    assert clients.produce(1000, client_id="a") == 0
    assert clients.produce(100, client_id="b") == 1
    assert clients.produce(1000, user="v") == 0, "each user has the default for itself"
    assert clients.meter(client_id="a").consume(5000)
    assert clients.meter(client_id="b").consume(5000)
    assert not clients.meter("w", client_id="b").consume(5000), "whoever has the client id"


def test_a_client_id_that_is_none_is_an_empty_one() -> None:
    clients = Clients((Entity(None, DEFAULT), QuotaKind.PRODUCED, 100.0))
    assert clients.produce(1100, client_id=None) == 1
    assert clients.produce(0, client_id="") == 0
    assert clients.produce(10, client_id="") == pytest.approx(1.1)


def test_a_fetch_gets_what_its_quota_leaves_and_what_is_held_back_does_not_count() -> None:
    clients = Clients((Entity("u"), QuotaKind.CONSUMED, 100.0))
    assert clients.meter().room() == 1000
    assert clients.meter().consume(900)
    assert clients.meter().room() == 100
    meter = clients.meter()
    assert meter.consume(300), "a batch may be larger than what is left"
    assert meter.answered() == 0
    for _ in range(3):
        meter = clients.meter()
        assert meter.room() == 0
        assert not meter.consume(500)
        assert meter.answered() == pytest.approx(2)
        assert meter.kind is QuotaKind.CONSUMED
    clients.now += 2
    assert clients.meter().room() == 0, "as in Kafka, it is held until the window has passed"
    clients.now += 9
    assert clients.meter().room() == 1000
    meter = clients.meter()
    assert meter.consume(0)
    assert meter.answered() == 0


def test_a_client_of_another_quota_fetches_as_it_likes() -> None:
    meter = Clients((Entity("u"), QuotaKind.PRODUCED, 100.0)).meter()
    assert meter.room() is None
    assert meter.consume(10**9)
    assert meter.answered() == 0


def test_the_time_of_requests_holds_for_a_second_at_most() -> None:
    clients = Clients((Entity("u"), QuotaKind.REQUESTS, 1.0))
    meter = clients.meter()
    meter.seconds = 0.1
    assert meter.answered() == 0, "a hundredth of ten seconds"
    meter = clients.meter()
    meter.seconds = 0.005
    assert meter.answered() == pytest.approx(0.5)
    assert meter.kind is QuotaKind.REQUESTS
    meter = clients.meter()
    meter.seconds = 5.0
    assert meter.answered() == 1.0
    meter = clients.meter()
    assert meter.room() == 0
    assert not meter.consume(1)
    assert meter.answered() == 1.0


def test_a_fetch_that_gave_records_is_held_for_its_time_with_the_next_one() -> None:
    clients = Clients((Entity("u"), QuotaKind.REQUESTS, 1.0))
    meter = clients.meter()
    meter.seconds = 0.01
    assert meter.consume(10)
    meter.seconds = 0.5
    assert meter.answered() == 0
    assert clients.meter().room() == 0


def test_mutations_are_refused_once_there_were_too_many_or_held_behind() -> None:
    clients = Clients((Entity("u"), QuotaKind.MUTATIONS, 1.0))
    meter = clients.meter()
    assert meter.mutate(24, strict=True), "what was left is enough for any number"
    assert not meter.mutate(1, strict=True)
    assert meter.answered() == 13
    meter = clients.meter()
    assert meter.mutate(1, strict=False)
    assert (meter.answered(), meter.kind) == (14, QuotaKind.MUTATIONS)
    assert clients.meter().answered() == 0, "other requests are not held"


def test_connections_of_an_address() -> None:
    clients = Clients((Entity(ip="10.0.0.1"), QuotaKind.CONNECTIONS, 2.0))
    assert [clients.throttling.connected("10.0.0.1") for _ in range(20)] == [0.0] * 20
    assert clients.throttling.connected("10.0.0.1") == 0.5
    assert clients.throttling.connected("10.0.0.1") == 0.5, "what is refused does not count"
    assert clients.throttling.connected("10.0.0.2") == 0
    clients.now += 11
    assert clients.throttling.connected("10.0.0.1") == 0


def test_a_limit_that_changes_holds_at_once_over_what_was_taken_before() -> None:
    clients = Clients((Entity("u"), QuotaKind.PRODUCED, 1000.0))
    assert clients.produce(5000) == 0
    clients.quotas.put(Entity("u"), QuotaKind.PRODUCED, 100.0)
    assert clients.produce(0) == 0, "what produces nothing is not held"
    assert clients.produce(100) == 41
    clients.quotas.put(Entity("u"), QuotaKind.PRODUCED, 1000.0)
    assert clients.produce(100) == 0


def test_the_metrics_say_how_long_who_was_held_by_the_kind_of_quota() -> None:
    clients = Clients((Entity("u"), QuotaKind.PRODUCED, 100.0))
    clients.produce(1200)
    clients.produce(100)
    samples = {
        (sample.name, sample.labels["quota"]): sample.value
        for metric in clients.throttling.collect()
        for sample in metric.samples
    }
    assert samples["kop_quota_throttled_total", "producer_byte_rate"] == 2
    assert samples["kop_quota_throttle_seconds_total", "producer_byte_rate"] == pytest.approx(5)
    assert samples["kop_quota_throttled_total", "consumer_byte_rate"] == 0


def test_client_ids_without_end_do_not_grow_memory() -> None:
    by_client, by_address = (
        (Entity(None, DEFAULT), QuotaKind.PRODUCED, 100.0),
        (Entity(ip=""), QuotaKind.CONNECTIONS, 1.0),
    )
    clients = Clients(by_client, by_address, most=20)
    for number in range(100):
        clients.of(client_id=f"{number}")
        clients.throttling.connected(f"host {number}")
    assert clients.throttling.counted == 40
    long = "x" * 30_000
    assert clients.produce(1100, client_id=long) == 1
    assert clients.produce(1100, client_id=long) == 12


def test_client_ids_without_end_do_not_wipe_out_what_users_took() -> None:
    clients = Clients(
        *((Entity("u"), kind, 100.0) for kind in (QuotaKind.PRODUCED, QuotaKind.MUTATIONS)),
        *((Entity(None, DEFAULT), kind, 100.0) for kind in (QuotaKind.PRODUCED, QuotaKind.MUTATIONS)),
        most=20,
    )
    assert clients.produce(2000) == 10
    clients.meter().mutate(2000, strict=True)
    for number in range(100):
        clients.of("other", f"{number}")
    assert clients.produce(1) > 10
    assert not clients.meter().mutate(1, strict=True)


def test_long_client_ids_are_not_kept() -> None:
    clients = Clients((Entity("u"), QuotaKind.PRODUCED, 100.0))
    tracemalloc.start()
    try:
        for number in range(500):
            clients.of(client_id=f"{number}" + "x" * 30_000)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [QuotaKind.PRODUCED, QuotaKind.CONSUMED, QuotaKind.MUTATIONS])
def test_the_least_quota_holds_as_long_as_an_answer_can_say(kind: QuotaKind) -> None:
    clients = Clients((Entity("u"), kind, math.ulp(0.0)))
    for _ in range(2):
        meter = clients.meter(produced=1)
        if kind is QuotaKind.CONSUMED:
            meter.consume(1)
        elif kind is QuotaKind.MUTATIONS:
            meter.mutate(1, strict=False)
        delay = meter.answered()
    assert math.ceil(1000 * delay) == 2**31 - 1


def test_the_steps_of_a_coroutine_count_and_its_waits_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    meter = Clients((Entity("u"), QuotaKind.REQUESTS, 1.0)).meter()

    async def works(gate: asyncio.Event) -> None:
        now[0] += 1
        await gate.wait()
        now[0] += 2
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            now[0] += 4

    async def main() -> None:
        gate = asyncio.Event()
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(TimedWork(works(gate), meter))
        await asyncio.sleep(0)
        assert meter.seconds == 1
        now[0] += 100
        gate.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert meter.seconds == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert meter.seconds == 7
        unbegun = TimedWork(works(gate), meter)
        unbegun.close()

        async def gives() -> int:
            return 5

        assert await TimedWork(gives(), meter) == 5

    asyncio.run(main())


def test_ten_thousand_quotas_are_read_at_once() -> None:
    quotas = Quotas()
    many = {(Entity(f"user {number}"), QuotaKind.PRODUCED): 1.0 for number in range(10_000)}
    quotas.replace(many)
    quotas.replace({(Entity(ip="10.0.0.1"), QuotaKind.CONNECTIONS): 1.0})
    assert (len(quotas), quotas.of_clients) == (1, False)
