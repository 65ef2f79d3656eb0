"""Who may not do something is told so with the codes that Apache Kafka 4.3.1 gave, and nothing is done or told.

conformance/vectors/authorization.json has Kafka's answers (conformance/authorization/record.py). Each request is sent
with all of its rights, with none, and with each one missing.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from handlers.authorized_gateway import Place, changed, is_allowed, place
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import ALL_EXAMPLES
from support.gateway import run

from conformance.authorization.world import Closed
from kop.errors import ErrorCode
from kop.handlers import access, registry

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "conformance" / "vectors" / "authorization.json").read_text()
)


JOIN_GROUP, DELETE_TOPICS, DESCRIBE_CLUSTER = 11, 20, 60


class Difference(NamedTuple):
    """An answer that is not Kafka's, on purpose."""

    api: str
    request: str
    """The name of the request; "" for all of the API."""
    reason: str
    ours: Callable[[dict[str, Any]], dict[str, Any]]
    """Makes our codes of Kafka's."""


def _instead(kafkas: int, ours: int, place: str = ".*") -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(codes: dict[str, Any]) -> dict[str, Any]:
        return {at: ours if code == kafkas and re.fullmatch(place, at) else code for at, code in codes.items()}

    return change


def _made_at_once(codes: dict[str, Any]) -> dict[str, Any]:
    """A topic that is not there yet is there: with a partition, and an id in versions that have it."""
    ours = {}
    for at, code in codes.items():
        topic = at.partition(".")[0]
        if codes.get(f"{topic}.error_code") != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            ours[at] = code
            continue
        made = topic if "error_code" not in codes else topic.replace("]", " another id]")
        ours[at.replace(topic, made)] = 0 if at.endswith("error_code") else code
        ours[f"{made}.partitions[0].error_code"] = 0
    return ours


OF_TOKENS = {38, 39, 40, 41}
"""Nobody is served by these whose requests are recorded, since nobody has logged in: test_delegation_token_apis.py."""
DIFFERENCES = (
    Difference("Metadata", "create", "a topic is made before the answer is given, not behind it", _made_at_once),
    Difference(
        "AlterConfigs",
        "",
        "the defaults of all brokers can be replaced; Kafka takes IncrementalAlterConfigs alone for them",
        _instead(ErrorCode.INVALID_CONFIG, 0, r"responses\[4\]\.error_code"),
    ),
)


def name_of(vector: Mapping[str, Any]) -> str:
    return f"{vector['api']} {vector['version']} {vector['request']}"


def expected(vector: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is to be answered: what Kafka answered, but for the differences."""
    if case.get("closed"):
        return {"closed": True}
    codes = dict(case["codes"])
    for difference in DIFFERENCES:
        if difference.api == vector["api"] and difference.request in {"", vector["request"]}:
            codes = difference.ours(codes)
    return {"codes": codes, "told": case["told"]}


async def _answer(at: Place, vector: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request, as it was written down of Kafka's."""
    conn = await at.connect()
    try:
        frame = at.world.filled(bytes.fromhex(vector["frame"]))
        conn.send(frame)
        if not vector["answered"]:
            await conn.call(18, 0)
            return {"codes": {}, "told": []}
        return at.world.described(vector["key"], vector["version"], frame, await conn.receive())
    except Closed:
        return {"closed": True}
    finally:
        conn.close()


def rights_of(vector: Mapping[str, Any]) -> set[str]:
    return {right for row in vector["rows"] for way in row for right in way}


async def _differing(path: Path, vector: Mapping[str, Any]) -> list[str]:
    wrong = []
    async with AsyncExitStack() as stack:
        at: Place | None = None
        # Those who may do less first: the world stays as it is, and need not be made again.
        for case in sorted(vector["cases"], key=lambda case: -len(case["refused"])):
            if at is None:
                await stack.aclose()
                at = await stack.enter_async_context(place(path))
                before = await at.state()
            at.rights.give(rights_of(vector) - set(case["refused"]))
            answer, wanted = await _answer(at, vector), expected(vector, case)
            if answer != wanted:
                wrong.append(f"{case['case']}: {shown(answer, wanted)}")
            after = await at.state()
            done = [" ".join(place) for place in changed(before, after)]
            if case["case"] == "nothing" and done:
                wrong.append(f"nothing allowed: done {done}")
            for what in [*done, *(f"told {each}" for each in answer.get("told", ()))]:
                if not is_allowed(at.rights, vector["key"], what):
                    wrong.append(f"{case['case']}: {what}")
            if done:
                at = None
    return wrong


def shown(answer: dict[str, Any], wanted: dict[str, Any]) -> str:
    if "codes" not in answer or "codes" not in wanted:
        return f"{answer}, Kafka's: {wanted}"
    ours, kafkas = answer["codes"], wanted["codes"]
    differing = [
        f"{at} {ours.get(at)} not {kafkas.get(at)}"
        for at in sorted(ours.keys() | kafkas.keys())
        if ours.get(at) != kafkas.get(at)
    ]
    if answer["told"] != wanted["told"]:
        differing.append(f"told {answer['told']} not {wanted['told']}")
    return "; ".join(differing)


@pytest.mark.parametrize("vector", VECTORS, ids=map(name_of, VECTORS))
def test_the_codes_are_kafkas_and_nothing_is_done_or_told(vector: dict[str, Any], tmp_path: Path) -> None:
    assert run(_differing(tmp_path, vector)) == []


RIGHTS = sorted({right for vector in VECTORS for right in rights_of(vector)})
REFUSALS = {str(int(code)) for code in access.REFUSALS.values()}
BY_NAME = {name_of(vector): vector for vector in VECTORS}
_SOME = st.sets(st.sampled_from(RIGHTS), max_size=12)
_STEPS = st.tuples(st.sampled_from(sorted(BY_NAME)), _SOME | _SOME.map(lambda some: set(RIGHTS) - some))


@settings(max_examples=300 if ALL_EXAMPLES else 30)
@given(steps=st.lists(_STEPS, max_size=12))
def test_no_request_does_or_tells_what_no_right_allows(
    steps: list[tuple[str, set[str]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def main() -> None:
        joined = False
        async with place(tmp_path_factory.mktemp("gateway")) as at:
            before = await at.state()
            for name, given_rights in steps:
                vector = BY_NAME[name]
                if vector["key"] == JOIN_GROUP:
                    if joined:
                        continue  # it might wait for the first member
                    joined = True
                at.rights.give(given_rights)
                answer = await _answer(at, vector)
                assert "closed" not in answer or not vector["answered"]
                if rights_of(vector) <= given_rights:
                    assert not REFUSALS & set(map(str, answer.get("codes", {}).values())), name
                after = await at.state()
                done = [" ".join(place) for place in changed(before, after)]
                for what in [*done, *(f"told {each}" for each in answer.get("told", ()))]:
                    assert is_allowed(at.rights, vector["key"], what), (name, what)
                before = after
            assert not at.internal_errors()

    run(main())


def test_every_api_is_recorded_in_its_oldest_and_newest_version() -> None:
    recorded: dict[int, set[int]] = {}
    for vector in VECTORS:
        recorded.setdefault(vector["key"], set()).add(vector["version"])
    served = {api.key: (api.min_version, api.max_version) for api in registry.build().values()}
    assert {key: (min(versions), max(versions)) for key, versions in recorded.items()} == {
        key: versions for key, versions in served.items() if key not in OF_TOKENS
    }
    assert len(served) == 54


def test_the_rows_of_each_api_are_those_of_the_recorded_requests() -> None:
    recorded: dict[int, set[str]] = {}
    for vector in VECTORS:
        recorded.setdefault(vector["key"], set()).update(" ".join(right.split()[:2]) for right in rights_of(vector))
    recorded[DELETE_TOPICS].remove("DESCRIBE TOPIC")  # whoever has it is told the name of an id
    recorded[DESCRIBE_CLUSTER].remove("DESCRIBE CLUSTER")  # whoever has it is told what else he may do
    declared = {
        api.key: {f"{need.operation.name} {need.resource.name}" for need in api.needs if need.operation is not None}
        for api in registry.build().values()
        if api.key not in OF_TOKENS
    }
    assert declared == recorded


DECIDE = {"access", "api", "gateway"}
"""The modules that decide, or put together what decides."""
OF_CLIENTS = dict.fromkeys(("sasl", "fetch", "delegation_tokens"), "principal")
"""What else needs to know who the client is: the login, and whose a fetch session or a token is."""


def test_no_handler_decides_by_itself() -> None:
    deciding = []
    for path in sorted((Path(__file__).parents[2] / "kop" / "handlers").glob("*.py")):
        if path.stem in DECIDE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or OF_CLIENTS.get(path.stem) == node.attr:
                continue
            of_client = node.attr == "principal" and ast.unparse(node.value).endswith("conn")
            if of_client or node.attr in {"authorizer", "super_users", "allows_any"}:
                deciding.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert deciding == []
