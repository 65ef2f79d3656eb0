"""Damaged bytes against the decoders alone: a DecodeError and nothing else, or understood, in linear time."""

from __future__ import annotations

import contextlib
import random
import time
import tracemalloc
from typing import Any
from uuid import UUID

import pytest
from fuzz.fuzz_mutations import mutate, mutate_frame
from fuzz.fuzz_seeds import Seed, corpus, filled, java
from fuzz.make_corpus import quadratic_fetch
from support.bodies import encode_body

from kop.wire import codec, fetch, produce
from kop.wire.frame import parse_header
from kop.wire.messages import REQUESTS
from kop.wire.primitives import DecodeError

TOPIC_ID = UUID("01234567-89ab-cdef-0123-456789abcdef")


def seeds(seed: int) -> tuple[random.Random, list[Seed]]:
    rng = random.Random(seed)
    return rng, java() + filled(rng, [TOPIC_ID])


def decode(seed: Seed, body: bytes) -> Any:
    """The message, or None where it is refused as it should be."""
    try:
        return codec.decode(REQUESTS[seed.key], seed.version, memoryview(body))
    except DecodeError:
        return None


def check_body(seed: Seed, body: bytes) -> bool:
    """Decode, by hand too where there is such a parser; True where it was understood."""
    message = decode(seed, body)
    if message is not None:
        again = encode_body(message)
        back = decode(seed, again)
        assert back is not None
        assert encode_body(back) == again
    if seed.key == 0:
        check_produce(seed, body, message)
    elif seed.key == 1:
        check_fetch(seed, body, message)
    return message is not None


def check_produce(seed: Seed, body: bytes, message: Any) -> None:
    try:
        call = produce.parse(memoryview(body), seed.version)
    except DecodeError:
        assert message is None
        return
    assert message is not None
    assert (call.transactional_id, call.acks, call.timeout_ms) == (
        message.transactional_id,
        message.acks,
        message.timeout_ms,
    )
    by_hand = [
        (topic.topic, [(part.partition, None if part.records is None else bytes(part.records)) for part in parts])
        for topic in call.topics
        for parts in [topic.partitions]
    ]
    compiled = [
        (
            (topic.topic_id or UUID(int=0)) if seed.version >= 13 else topic.name,
            [(part.index, part.records) for part in topic.partition_data],
        )
        for topic in message.topic_data
    ]
    assert by_hand == compiled


def check_fetch(seed: Seed, body: bytes, message: Any) -> None:
    try:
        call = fetch.parse(memoryview(body), seed.version)
    except DecodeError:
        assert message is None
        return
    if message is None:  # known tags, which only the compiled decoder looks into
        assert seed.version >= 12
        return
    assert (call.max_wait_ms, call.min_bytes, call.max_bytes) == (
        message.max_wait_ms,
        message.min_bytes,
        message.max_bytes,
    )
    compiled = [
        (
            (topic.topic_id or UUID(int=0)) if seed.version >= 13 else topic.topic,
            part.partition,
            part.fetch_offset,
            part.partition_max_bytes,
        )
        for topic in message.topics
        for part in topic.partitions
    ]
    assert [(part.topic, part.partition, part.fetch_offset, part.max_bytes) for part in call.partitions] == compiled


def check_many(seed: int, share: float) -> tuple[int, int]:
    """Damage each seed's body, now and then its whole frame; returns how many were understood and refused."""
    rng, all_seeds = seeds(seed)
    others = [seed_request.body for seed_request in all_seeds]
    understood = refused = 0
    for seed_request in all_seeds:
        if rng.random() > share:
            continue
        body = mutate(rng, seed_request.body, others)
        try:
            if check_body(seed_request, body):
                understood += 1
            else:
                refused += 1
            with contextlib.suppress(DecodeError):
                parse_header(memoryview(mutate_frame(rng, seed_request.frame())[4:]))
        except Exception as error:
            error.add_note(
                f"seed {seed}, API {seed_request.key} version {seed_request.version}, body {body[:600].hex()}"
            )
            raise
    return understood, refused


def test_what_is_not_damaged_is_understood() -> None:
    for seed in range(3):
        for seed_request in seeds(seed)[1]:
            assert check_body(seed_request, seed_request.body), seed_request


@pytest.mark.parametrize("seed", range(6))
def test_damaged_bodies_are_refused_or_understood(seed: int) -> None:
    understood, refused = check_many(seed, 0.5)
    assert understood > 30
    assert refused > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_many_damaged_bodies_are_refused_or_understood(seed: int) -> None:
    understood, refused = check_many(seed, 1)
    assert understood > 60
    assert refused > 200


@pytest.mark.parametrize("seed", [1, 2])
def test_every_way_to_cut_a_body_short_is_refused(seed: int) -> None:
    rng, all_seeds = seeds(seed)
    for seed_request in rng.sample(all_seeds, 60):
        for size in range(min(len(seed_request.body), 200)):
            with contextlib.suppress(DecodeError):
                codec.decode(REQUESTS[seed_request.key], seed_request.version, memoryview(seed_request.body)[:size])
                pytest.fail(f"{seed_request} is understood when cut to {size} bytes")


@pytest.mark.parametrize("name", sorted(corpus()))
def test_the_corpus_is_read_quickly_and_in_little_memory(name: str) -> None:
    payload = memoryview(corpus()[name])[4:]
    tracemalloc.start()
    try:
        read_whole(payload)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * 1024 * 1024 + 4 * len(payload)
    started = time.thread_time()
    read_whole(payload)
    assert time.thread_time() - started < 3


def read_whole(payload: memoryview) -> None:
    """What the server does to a frame before a handler has it."""
    with contextlib.suppress(DecodeError):
        header = parse_header(payload)
        body = payload[header.body :]
        if header.api_key in REQUESTS and 0 <= header.api_version <= REQUESTS[header.api_key].max_version:
            codec.decode(REQUESTS[header.api_key], header.api_version, body)
            if header.api_key in (0, 1):
                (produce if header.api_key == 0 else fetch).parse(body, header.api_version)


def seconds(payload: bytes, count: int = 5) -> float:
    """The least CPU time of so many readings."""
    readings = []
    for _ in range(count):
        started = time.thread_time()
        header = parse_header(memoryview(payload))
        codec.decode(REQUESTS[header.api_key], header.api_version, memoryview(payload)[header.body :])
        readings.append(time.thread_time() - started)
    return min(readings)


def test_unknown_tags_take_linear_time() -> None:
    small, large = quadratic_fetch(2000)[4:], quadratic_fetch(30_000)[4:]
    assert len(large) > 1_000_000
    took = seconds(large)
    assert took < 3
    assert took < 6 * len(large) / len(small) * max(seconds(small), 0.0005)
    for name in ("unknown_tags_1mb", "one_tag_of_1mb", "tags_in_header_1mb"):
        assert seconds(corpus()[name][4:], 1) < 3
