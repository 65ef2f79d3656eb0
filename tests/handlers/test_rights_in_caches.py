"""What is kept for one client, who may have it, is given to nobody else, and not to him once he may no longer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from handlers.authorized_gateway import NATIVE, Client, Rights, place
from support.direct_engine import DirectStore
from support.gateway import gateway, log_of, run

from conformance.authorization.world import HIDDEN, SEEN
from kop.errors import ErrorCode
from kop.handlers.api import ConnectionInfo
from kop.server.request import RequestPipeline

FETCH, METADATA = 1, 3
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.skipif(NATIVE is None, reason="kop._native was not built: nothing goes this way")
@pytest.mark.parametrize("by_id", [False, True], ids=["name", "id"])
def test_a_compiled_produce_is_of_those_who_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_id: bool) -> None:
    store = DirectStore(random.Random(1))
    store.hands_over = 0
    monkeypatch.setattr("kop.storage.memory.engine.open_engine", store.open)

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            gw = serving.gateway
            made = await gw.engine.topics.create("t", 1, {"retention.ms": "-1"})
            topic = made.topic_id if by_id else "t"
            pipeline = RequestPipeline(gw)
            alice, bob, far = (
                Client(pipeline, *of) for of in (("User:alice",), ("User:bob",), ("User:alice", "192.0.2.2"))
            )

            async def stored(client: Client) -> None:
                before, end = client.directly, log_of(serving).high_watermark
                while client.directly < before + 2:
                    assert await client.produce(topic) == ErrorCode.NONE
                    end += 1
                assert log_of(serving).high_watermark == end

            async def refused(client: Client) -> None:
                before, end = client.directly, log_of(serving).high_watermark
                assert [await client.produce(topic) for _ in range(3)] == [REFUSED] * 3
                assert client.directly == before
                assert log_of(serving).high_watermark == end

            await stored(bob)  # without an authorizer
            gw.access.authorizer = rights = Rights(["WRITE TOPIC t"])
            rights.others = {"User:bob": Rights(), "192.0.2.2": Rights()}
            await refused(bob)
            await stored(alice)
            await refused(bob)
            await refused(far)
            of_two = [gw.direct_produce.take_of(ConnectionInfo(host, "", 0)) for host in ("192.0.2.3", "192.0.2.4")]
            assert of_two[0] == of_two[1], "nothing is kept for a client that has no writer, and may be a stranger"
            rights.give([])
            await refused(alice)
            rights.give(["WRITE TOPIC t"])
            await stored(alice)
            gw.access.authorizer = None
            await stored(bob)

    run(main())


def test_a_session_asks_for_rights_in_each_fetch_and_is_its_clients_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            names = {topic_id: name for name, topic_id in at.world.topic_ids.items()}
            pipeline = RequestPipeline(at.serving.gateway)
            client, other = Client(pipeline, "User:ANONYMOUS"), Client(pipeline, "User:bob")
            at.rights.others = {"User:bob": Rights(["READ TOPIC topic-seen", "READ TOPIC topic-hidden"])}

            async def fetch(client: Client, session: int, epoch: int) -> tuple[Any, dict[str, tuple[int, bool]]]:
                partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20}
                topics = [{"topic_id": topic_id, "partitions": [partition]} for topic_id in names]
                answer = await client.call(
                    *(FETCH, 13),
                    max_wait_ms=0,
                    min_bytes=0,
                    max_bytes=2**20,
                    session_id=session,
                    session_epoch=epoch,
                    topics=[] if epoch else topics,
                    forgotten_topics_data=[],
                )
                rows = {
                    names[topic.topic_id]: (partition.error_code, bool(partition.records))
                    for topic in answer.responses
                    for partition in topic.partitions
                }
                return answer, rows

            at.rights.give(["READ TOPIC topic-seen", "READ TOPIC topic-hidden"])
            answer, rows = await fetch(client, 0, 0)
            session = answer.session_id
            assert rows == {SEEN: (0, True), HIDDEN: (0, True)}
            at.rights.give(["READ TOPIC topic-seen"])
            _, rows = await fetch(client, session, 1)
            assert rows == {SEEN: (0, True), HIDDEN: (REFUSED, False)}
            stolen, rows = await fetch(other, session, 2)
            assert (stolen.error_code, rows) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, {})
            at.rights.give(["READ TOPIC topic-hidden"])
            _, rows = await fetch(client, session, 2)
            assert rows == {SEEN: (REFUSED, False), HIDDEN: (0, True)}

    run(main())


def test_a_kept_answer_to_metadata_is_for_those_who_may_see_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            pipeline = RequestPipeline(at.serving.gateway)
            alice, bob = Client(pipeline, "User:alice"), Client(pipeline, "User:bob")
            at.rights.others = {"User:bob": Rights(["DESCRIBE TOPIC topic-seen"])}
            at.rights.give(["DESCRIBE TOPIC topic-seen", "DESCRIBE TOPIC topic-hidden"])

            async def seen(client: Client) -> tuple[dict[str, int], set[str]]:
                asked = [{"name": name, "topic_id": None} for name in (SEEN, HIDDEN)]
                named = await client.call(METADATA, 12, topics=asked, allow_auto_topic_creation=False)
                every = await client.call(METADATA, 12, topics=None, allow_auto_topic_creation=False)
                return {topic.name: topic.error_code for topic in named.topics}, {topic.name for topic in every.topics}

            everything = {SEEN: 0, HIDDEN: 0}, {SEEN, HIDDEN}
            a_part = {SEEN: 0, HIDDEN: REFUSED}, {SEEN}
            for _ in range(2):
                assert await seen(alice) == everything
                assert await seen(bob) == a_part
            at.rights.give(["DESCRIBE TOPIC topic-seen"])
            assert await seen(alice) == a_part
            at.rights.give([])
            assert await seen(alice) == ({SEEN: REFUSED, HIDDEN: REFUSED}, set())
            at.serving.gateway.access.authorizer = None
            names = await seen(alice)
            assert names[0] == {SEEN: 0, HIDDEN: 0}
            assert {SEEN, HIDDEN} <= names[1]

    run(main())
