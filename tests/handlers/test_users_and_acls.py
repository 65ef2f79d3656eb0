"""The recorded requests by a user who has logged in, whose rights are ACLs in the state topic, on each engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from handlers.authorized_gateway import changed
from handlers.guarded_gateway import SETTINGS, Guarded
from handlers.test_authorization import VECTORS, expected, name_of, rights_of, shown
from support.gateway import gateway, run

READS = {1, 2, 3, 9, 10, 15, 16, 17, 18, 23, 29, 32, 35, 36, 46, 48, 50, 55, 60, 61, 65, 66, 74, 75}
"""APIs that leave everything as it is."""


@asynccontextmanager
async def guarded(path: Path, store: str) -> AsyncIterator[Guarded]:
    settings = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
    async with gateway(path, **({"store": "memory:"} if store == "memory" else {}), **settings) as serving:
        at = Guarded(serving)
        await at.open()
        try:
            yield at
        finally:
            at.close()


def case_of(vector: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next(case for case in vector["cases"] if case["case"] == name)


def _tells_rights(vector: Mapping[str, Any]) -> bool:
    """Return true if the answer says what else its client may do, so that it has to have these rights alone."""
    return any(place.endswith("authorized_operations") for place in case_of(vector, "all")["codes"])


async def denied_and_allowed(at: Guarded, *, with_operations: bool = True) -> list[str]:
    """Send each request without any right, and those that change nothing with all of their rights.

    Without `with_operations` those are left out for each of which ACLs have to be changed.
    """
    before, wrong = await at.place.state(), []
    for vector in VECTORS:
        if not rights_of(vector):
            continue
        answer, wanted = await at.answer(vector), expected(vector, case_of(vector, "nothing"))
        if answer != wanted:
            wrong.append(f"{name_of(vector)}, denied: {shown(answer, wanted)}")
    wrong += [f"done: {place}" for place in changed(before, await at.place.state())]
    reads = [vector for vector in VECTORS if vector["key"] in READS and vector["request"] not in {"create", "replica"}]
    reads = [vector for vector in reads if with_operations or not _tells_rights(vector)]
    every = {right for vector in reads for right in rights_of(vector)}
    for vector in sorted(reads, key=_tells_rights):
        await at.give(rights_of(vector) if _tells_rights(vector) else every)
        answer, wanted = await at.answer(vector), expected(vector, case_of(vector, "all"))
        if answer != wanted:
            wrong.append(f"{name_of(vector)}, allowed: {shown(answer, wanted)}")
    return wrong


@pytest.mark.parametrize("store", ["sqlite"])
def test_each_request_of_a_user_is_answered_as_kafka_does(tmp_path: Path, store: str) -> None:
    async def main() -> None:
        async with guarded(tmp_path, store) as at:
            assert await denied_and_allowed(at) == []

    run(main())


async def _all_cases(path: Path, store: str) -> list[str]:
    """Send each request with all of its rights, with none, and with each one missing; make the world anew where that
    has changed it.
    """
    wrong: list[str] = []
    async with AsyncExitStack() as stack:
        at: Guarded | None = None
        for number, vector in enumerate(VECTORS):
            for case in sorted(vector["cases"], key=lambda case: -len(case["refused"])):
                if at is None:
                    await stack.aclose()
                    folder = path / f"{number} {case['case']}"
                    folder.mkdir()
                    at = await stack.enter_async_context(guarded(folder, store))
                await at.give(rights_of(vector) - set(case["refused"]))
                before = await at.place.state()
                answer, wanted = await at.answer(vector), expected(vector, case)
                if answer != wanted:
                    wrong.append(f"{name_of(vector)}, {case['case']}: {shown(answer, wanted)}")
                done = changed(before, await at.place.state())
                if done and case["case"] == "nothing":
                    wrong.append(f"{name_of(vector)}, denied: done {done}")
                if done:
                    at = None
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_each_request_with_some_rights_is_answered_as_kafka_does(tmp_path: Path, store: str) -> None:
    assert run(_all_cases(tmp_path, store), 1000) == []
