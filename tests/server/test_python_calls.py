"""How many Python functions a request calls with nothing set: what it costs more for all, benches cannot tell."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.bodies import encode_body
from support.fake_peer import Peer, close_server, settle
from support.gateway import batch, fetch_fields, frame, gateway, produce_fields, run
from support.waiting import until

import kop
from kop import compiled
from kop.server.listener import Server
from kop.server.request import RequestPipeline
from kop.server.settings import ServerSettings
from kop.wire.messages import REQUESTS

ROOM = str(Path(kop.__file__).parent)
MOST = {"Produce": 85, "Fetch": 75, "Metadata": 36}
"""The most calls of our own functions, from the bytes of a request to those of its answer, over memory. A feature that
is off adds none: two are left for mistakes.
"""


def request(key: int, version: int, fields: dict[str, Any]) -> bytes:
    return frame(key, version, 1, encode_body(REQUESTS[key](version=version, **fields)))


async def calls_of(server: Server, data: bytes) -> int:
    """The calls for one request, once it was asked before, and while nothing else goes on."""
    peer = Peer(server)
    counted: Counter[str] = Counter()
    sums: list[int] = []

    def count(python: FrameType, event: str, _: Any) -> None:
        if event == "call" and python.f_code.co_filename.startswith(ROOM):
            counted[python.f_code.co_qualname] += 1

    for answers in range(1, 7):
        counted.clear()
        sys.setprofile(count)
        try:
            peer.send(data)
            await settle()
        finally:
            sys.setprofile(None)
        await until(lambda wanted=answers: len(peer.transport.written) >= wanted)  # type: ignore[misc]
        sums.append(counted.total())
    return min(sums)


@pytest.mark.skipif(compiled.missing() is not None, reason="without compiled code there are more calls")
def test_a_request_calls_no_more_functions_than_it_did(tmp_path: Path) -> None:
    async def main() -> dict[str, int]:
        async with gateway(tmp_path, store="memory:") as serving:
            await serving.gateway.engine.topics.create("t", 1, {"retention.ms": "-1"})
            server = Server(RequestPipeline(serving.gateway), serving.gateway.metrics, ServerSettings())
            asked = {
                "Produce": request(0, 9, produce_fields("t", batch([b"x"]), version=9)),
                "Fetch": request(1, 12, fetch_fields("t", 0, version=12)),
                "Metadata": request(3, 9, {"topics": None, "allow_auto_topic_creation": False}),
            }
            calls = {name: await calls_of(server, data) for name, data in asked.items()}
            await close_server(server)
            return calls

    calls = run(main())
    assert all(calls[name] <= MOST[name] for name in MOST), calls
