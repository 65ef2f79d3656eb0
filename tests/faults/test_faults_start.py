"""A gateway that starts while Pulsar is troubled: it waits for what passes and says so, and ends for what does not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from faults.fault_kit import gateway
from support.child import free_port
from support.commits import commit
from support.gateway import FAST, run
from support.pulsar import Pulsar
from support.rest_proxy import RestProxy, rest_proxy
from support.waiting import until

from kop.address import Address
from kop.app import Serving, start
from kop.config import Config
from kop.errors import ErrorCode, KopError
from kop.groups.offsets import Commit


def settings(fresh: Pulsar, admin_url: str) -> Config:
    ours = {
        "store": fresh.service_url,
        "kop.pulsar.admin.url": admin_url,
        "kop.pulsar.namespace": fresh.namespace,
        "kop.pulsar.metadata.namespace": f"{fresh.namespace}-start",
        "offsets.topic.num.partitions": "4",
        "http": "127.0.0.1:0",
    }
    return Config.load(overrides=FAST | ours, environ={})


@asynccontextmanager
async def started(fresh: Pulsar, proxy: RestProxy) -> AsyncIterator[Serving]:
    async with AsyncExitStack() as stack:
        yield await start(settings(fresh, proxy.url), stack)


async def ready(serving: Serving) -> tuple[int, str]:
    url = f"http://127.0.0.1:{serving.http_port}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("status", [500, 503, 429, -1])
def test_each_request_of_the_start_may_fail_once_but_the_first(
    fresh: Pulsar, status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are not tried again by the REST client here: each first failure reaches the start."""
    monkeypatch.setattr("kop.pulsar_client.rest.ATTEMPTS", 1)
    seen: set[tuple[str, str]] = set()

    def fault(method: str, path: str) -> int:
        new = (method, path) not in seen
        first = not seen
        seen.add((method, path))
        return status if new and not (first and status < 0) else 0

    async def main() -> None:
        async with rest_proxy(fresh.admin_url) as proxy:
            proxy.fault = fault
            async with started(fresh, proxy) as serving:
                await until(lambda: serving.gateway.groups.waiting_for is None)
                assert len(proxy.failed) > 8
                assert (await ready(serving))[0] == 200

    monkeypatch.setattr("kop.coordination.ownership.FIRST_PAUSE_SECONDS", 0.05)
    run(main())
    assert "; trying again" in caplog.text


def test_one_partition_of_the_offsets_topic_that_cannot_be_had_keeps_the_rest_from_nothing(
    fresh: Pulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kop.pulsar_client.rest.ATTEMPTS", 1)
    monkeypatch.setattr("kop.coordination.ownership.FIRST_PAUSE_SECONDS", 0.1)

    async def main() -> None:
        async with rest_proxy(fresh.admin_url) as proxy:
            proxy.fault = lambda method, path: 503 if "__offsets-partition-2/" in path else 0
            async with started(fresh, proxy) as serving:
                groups, engine = serving.gateway.groups, serving.gateway.engine
                topic = await engine.topics.create("t", 1, {})
                of = {groups.state_log.partition_of(name): name for name in map(str, range(100))}
                await until(lambda: not any(groups.refusal_of(of[index]) for index in (0, 1, 3)))
                for index in (0, 1, 3):
                    assert await commit(groups, of[index], [Commit("t", topic.topic_id, 0, 1)]) == ErrorCode.NONE
                assert groups.refusal_of(of[2])
                status, text = await ready(serving)
                assert status == 200
                first, second, _ = text.split("\n")
                assert first == "ready"
                assert second.startswith("1 of 4 partitions of __offsets are not served: 2: ")
                proxy.fault = lambda method, path: 0
                await until(lambda: not groups.refusal_of(of[2]))
                assert await commit(groups, of[2], [Commit("t", topic.topic_id, 0, 1)]) == ErrorCode.NONE

                async def all_is_served() -> bool:
                    return await ready(serving) == (200, "ready\n")

                await until(all_is_served)

    run(main())


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_that_a_setting_has_to_change_ends_the_start_at_once(fresh: Pulsar, status: int) -> None:
    async def main() -> None:
        async with rest_proxy(fresh.admin_url) as proxy:
            proxy.fault = lambda method, path: status
            with pytest.raises(KopError, match=r"kop\.pulsar\.(auth|namespace)|tenants update"):
                async with started(fresh, proxy):
                    pass
            assert len(proxy.failed) <= 2, "it was not asked again"

    run(main())


def test_while_the_start_waits_the_page_says_for_what(fresh: Pulsar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kop.pulsar_client.rest.ATTEMPTS", 1)

    async def main() -> None:
        async with rest_proxy(fresh.admin_url) as proxy, AsyncExitStack() as stack:
            proxy.fault = lambda method, path: 503 if path.endswith("/__kop/partitions") else 0
            port = free_port()
            config = settings(fresh, proxy.url).model_copy(update={"http": Address("127.0.0.1", port)})
            starting = asyncio.create_task(start(config, stack))
            url = f"http://127.0.0.1:{port}"

            async def page(name: str) -> tuple[int, str]:
                async with aiohttp.ClientSession() as session:
                    try:
                        async with session.get(f"{url}/{name}") as answer:
                            return answer.status, await answer.text()
                    except aiohttp.ClientError:
                        return 0, ""

            async def said() -> bool:
                status, text = await page("readyz")
                return status == 503 and "cannot read the gateway's own topic" in text

            await until(said)
            assert await page("healthz") == (200, "ok\n")
            proxy.fault = lambda method, path: 0
            await starting

            async def all_is_served() -> bool:
                return await page("readyz") == (200, "ready\n")

            await until(all_is_served)

    run(main())


def test_a_gateway_that_is_told_to_stop_while_it_waits_for_pulsar_stops(fresh: Pulsar, tmp_path: Path) -> None:
    async def main() -> None:
        async with rest_proxy(fresh.admin_url) as proxy:
            proxy.fault = lambda method, path: 503
            child = gateway(tmp_path, Pulsar(fresh.service_url, proxy.url, fresh.namespace))
            try:
                await asyncio.to_thread(child.start, wait=False)
                await until(lambda: "cannot look for the namespace over REST" in child.log)
                child.signal(signal.SIGTERM)
                assert await asyncio.to_thread(child.wait, 30) == 0, child.log
                assert "stopped while it was starting" in child.log
                assert "Traceback" not in child.log
            finally:
                child.kill()

    run(main())
