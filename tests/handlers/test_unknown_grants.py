"""While it is not known what was granted nothing is done and nothing is told, with errors that clients try again."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from handlers.authorized_gateway import Place, place
from handlers.test_authorization import VECTORS
from support.gateway import run
from support.grants import Known

from conformance.authorization.world import Closed
from kop.errors import ErrorCode
from kop.handlers.configs import Resource
from kop.security.grants import GrantsAuthorizer
from kop.security.rights import CLUSTER_NAME, ResourceType
from kop.storage.base import NamespaceGrants

CLUSTER = ResourceType.CLUSTER

FINAL = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
AGAIN = {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
NEWEST = {(vector["api"], vector["request"]): vector for vector in VECTORS}


def decide_by(at: Place, grants: Known) -> None:
    gw = at.serving.gateway
    gw.access.authorizer = GrantsAuthorizer(grants, [], gw.topics.is_internal)


def test_each_recorded_request_is_to_be_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            decide_by(at, Known())
            before = await at.state()
            again: set[str] = set()
            closed, final = [], []
            for request, vector in NEWEST.items():
                conn = await at.connect()
                try:
                    frame = at.world.filled(bytes.fromhex(vector["frame"]))
                    conn.send(frame)
                    if not vector["answered"]:
                        await conn.call(18, 0)
                        continue
                    answer = at.world.described(vector["key"], vector["version"], frame, await conn.receive())
                except Closed:
                    closed.append(request)
                    continue
                finally:
                    conn.close()
                codes = {code for code in answer["codes"].values() if isinstance(code, int)}
                if codes & FINAL:
                    final.append(request)
                if codes & AGAIN:
                    again.add(vector["api"])
            assert await at.state() == before
            # A list has no place for an error, and a batch without an answer none at all.
            assert set(closed) == {("Produce", "acks 0"), ("Metadata", "all"), ("DescribeTopicPartitions", "all")}
            assert final == [("Fetch", "replica")]  # it asks for a right to the cluster
            apis = at.serving.gateway.apis
            of_grants = {
                vector["api"]
                for vector in NEWEST.values()
                if any(
                    need.operation is not None and need.resource is not CLUSTER for need in apis[vector["key"]].needs
                )
            }
            assert again == of_grants

    run(main())


class ReadOnRequest(Known):
    """Grants of namespaces that are known once a request has named them."""

    async def read(self, namespaces: Collection[str]) -> None:
        """Make them known."""
        self.namespaces = {
            **self.namespaces,
            **{name: NamespaceGrants(roles={"ANONYMOUS": frozenset({"consume"})}) for name in namespaces},
        }


def test_a_request_waits_for_the_grants_of_a_namespace_that_it_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            decide_by(at, ReadOnRequest(app=NamespaceGrants()))
            conn = await at.connect()
            answer = await conn.call(10, 4, key_type=0, coordinator_keys=["others/app/g", "g"])
            codes = [row.error_code for row in answer.coordinators]
            assert codes == [ErrorCode.NONE, ErrorCode.GROUP_AUTHORIZATION_FAILED]
            asked = [{"name": name, "topic_id": None} for name in ("others/new/t", "t")]
            seen = await conn.call(3, 12, topics=asked, allow_auto_topic_creation=False)
            codes = [row.error_code for row in seen.topics]
            assert codes == [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
            conn.close()

    run(main())


@pytest.mark.parametrize(
    ("key", "version", "fields", "rows"),
    [
        (32, 4, {"configuration_keys": None}, "results"),
        (33, 2, {"configs": []}, "responses"),
        (44, 1, {"configs": []}, "responses"),
    ],
)
def test_the_name_of_a_broker_says_nothing_of_a_namespace(
    tmp_path: Path, key: int, version: int, fields: dict[str, Any], rows: str
) -> None:
    name = "a/b/kafka-cluster"  # that of the cluster in the rights of clients of the namespace a/b

    async def main() -> None:
        async with place(tmp_path) as at:
            decide_by(at, Known())
            conn = await at.connect()
            answer = await conn.call(
                key, version, resources=[{"resource_type": Resource.BROKER, "resource_name": name, **fields}]
            )
            [row] = getattr(answer, rows)
            assert (row.error_code, row.resource_name) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, name)
            assert at.internal_errors() == 0
            conn.close()

    run(main())


def test_the_refusal_of_a_namespace_as_a_whole_is_final(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            decide_by(at, Known())
            code = at.serving.gateway.access.refusal(CLUSTER, f"team/app/{CLUSTER_NAME}")
            assert code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    run(main())
