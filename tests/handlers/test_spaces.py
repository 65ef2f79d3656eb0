"""Clients of a space of names are answered as if nobody else was there: nothing that they are told is of another space,
or has a name that is not theirs.

The requests are the recorded ones of conformance/vectors/authorization.json: with all rights a client is answered in a
space what Apache Kafka answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from handlers.authorized_gateway import Place, changed
from handlers.test_authorization import VECTORS, expected, name_of, shown
from support.gateway import run
from support.side_by_side import GROUP, TOPIC, TRANSACTIONAL_ID, side_by_side
from support.spaces import FIRST, SECOND, bootstrap, spaces

from conformance.authorization.world import Closed, Connection, World

_OF_RIGHTS = {27, 29, 30, 31, 35, 43, 46, 48, 49, 50, 51, 55}
"""APIs about brokers, users and their rights, which are not about names alone."""


async def _answer(serving: Any, world: World, vector: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    conn = await Connection.open(*serving.listeners[1])
    try:
        frame = world.filled(bytes.fromhex(vector["frame"]))
        conn.send(frame)
        if not vector["answered"]:
            await conn.call(18, 0)
            return {"codes": {}, "told": []}, b""
        answer = await conn.receive()
        return world.described(vector["key"], vector["version"], frame, answer), answer
    except Closed:
        return {"codes": {}, "closed": True}, b""
    finally:
        conn.close()


async def _differing(path: Path, vectors: list[dict[str, Any]]) -> list[str]:
    wrong = []
    left = list(vectors)
    while left:
        async with spaces(path, store="memory:") as serving:
            worlds = [World() for _ in serving.listeners]
            for listener, world in zip(serving.listeners, worlds, strict=True):
                conn = await Connection.open(*listener)
                await world.make(conn)
                conn.close()
            at = Place(serving, worlds[1])
            before = await at.state()
            while left:
                vector = left.pop(0)
                case = next(case for case in vector["cases"] if not case["refused"])
                answer, raw = await _answer(serving, worlds[1], vector)
                wanted = expected(vector, case)
                for each in (answer, wanted):
                    each["codes"] = {at: code for at, code in each["codes"].items() if not at.endswith("_operations")}
                if answer != wanted:
                    wrong.append(f"{name_of(vector)}: {shown(answer, wanted)}")
                marks = [space.prefix.encode() for space in (FIRST, SECOND)]
                marks += [topic_id.bytes for topic_id in worlds[2].topic_ids.values()]
                wrong += [f"{name_of(vector)}: told {mark!r}" for mark in marks if mark in raw]
                after = await at.state()
                if done := changed(before, after):
                    wrong += [f"{name_of(vector)}: done {key}" for key in done if not _is_of_first(key)]
                    break
    return wrong


def _is_of_first(place: tuple[str, ...]) -> bool:
    return any(FIRST.prefix in part for part in place) or place[1] in {"__offsets", "__transactions"}


def test_recorded_requests_are_answered_in_a_space_as_by_kafka_and_nothing_of_another_is_told(tmp_path: Path) -> None:
    wrong = run(_differing(tmp_path, [vector for vector in VECTORS if vector["key"] not in _OF_RIGHTS]))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
def test_clients_of_two_spaces_with_equal_names_see_nothing_of_one_another(store: str, tmp_path: Path) -> None:
    async def main() -> None:
        more = {"store": store} if store == "memory:" else {}
        async with spaces(tmp_path, **more) as serving:
            await side_by_side(bootstrap(serving, 1), bootstrap(serving, 2))
            gw = serving.gateway
            own = {topic.name for topic in gw.engine.topics.all() if not topic.internal}
            assert own == {space.inward(TOPIC) for space in (FIRST, SECOND)}
            assert {group.group_id for group in gw.groups.list()} == {space.inward(GROUP) for space in (FIRST, SECOND)}
            of_both = {space.inward(TRANSACTIONAL_ID) for space in (FIRST, SECOND)}
            assert {name for name, _ in gw.transactions.all()} == of_both
            assert all(topic.internal for topic in gw.topics.listed())

    run(main())
