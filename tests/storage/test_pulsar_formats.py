"""What a partition's log sends to Pulsar: the topic's entry format, and what it refuses or warns of when compacted.

Over a Pulsar without sockets. `test_pulsar_raw.py` has the same on a real one.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from records.transcode_kit import raw_entry
from storage.batches import NOW, batch, records
from storage.fake_pulsar_client import STAMP, settle
from storage.test_pulsar_log import PRODUCERS, Play, big, pieces
from support.waiting import until

from kop.errors import ErrorCode
from kop.pulsar_client import PulsarError
from kop.records import transcode
from kop.records.batch import Codec, build, read_header, stamp_create_time
from kop.records.record import Record
from kop.records.validation import RecordsRejectedError, TimeLimits
from kop.storage.base import LogPolicy
from kop.storage.pulsar.partition import decompression

KEYLESS = "compaction/keyless_message"
RAW = "compaction/raw_batch"


def formats(play: Play) -> list[tuple[bool, int]]:
    """Of what was sent: whether raw, and how many messages."""
    views = [transcode.parse_entry(sent.metadata) for sent in play.broker.sent]
    return [(view.raw, view.num_messages) for view in views]


async def served(play: Play, offset: int) -> bytes:
    """What a consumer at the tail gets from an offset on."""
    result = play.log.read_cached(offset, 1 << 20, min_one=True)
    assert result is not None
    return b"".join(bytes(buffer) for buffer in result.buffers)


# --- raw entries


@PRODUCERS
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_a_raw_entry_is_the_batch_as_it_came(producer: int, codec: Codec) -> None:
    play = Play(producer, LogPolicy(raw_entries=True))
    play.append(codec=codec)
    await settle()
    (sent,) = play.broker.sent
    came = bytes(batch(("x", "y"), producer=producer, sequence=0, codec=codec))
    assert sent.payload == came
    assert formats(play) == [(True, 2)]
    await play.run("SR T")
    assert play.outcomes == [3]
    assert (await served(play, 3))[12:] == came[12:]
    assert play.counts == {}
    await play.log.close()


@PRODUCERS
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("claimed", [-1, NOW, NOW + 10**9])
async def test_the_largest_timestamp_is_that_of_the_records(
    producer: int, raw: bool, codec: Codec, claimed: int
) -> None:
    """Kafka computes it: producers of others leave it unset."""
    play = Play(producer, LogPolicy(raw_entries=raw))
    honest = batch(("x", "y", "z"), timestamp=[NOW, NOW + 50, NOW + 20], producer=producer, sequence=0, codec=codec)
    lying = bytearray(honest)
    stamp_create_time(lying, claimed)
    appended = play.log.append(lying, read_header(lying), now_ms=0)
    await settle()
    (sent,) = play.broker.sent
    if raw:
        assert sent.payload == honest
    await play.run("SR T")
    assert appended.result().base_offset == 3
    assert (await served(play, 3))[16:] == honest[16:]
    assert [view.last_timestamp for view in play.log.producers()] == [NOW + 50] * (producer >= 0)
    await play.log.close()


@PRODUCERS
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_timestamps_are_judged_by_the_records(producer: int, raw: bool, codec: Codec) -> None:
    limits = TimeLimits(1000, 2000)
    play = Play(producer, LogPolicy(raw_entries=raw, time_limits=limits))
    now = int(time.time() * 1000)
    outcomes: list[Any] = []
    for times in ([now, now + 60_000], [now, now - 60_000], [now, now + 60_000] * 3_000):
        data = batch(["v"] * len(times), timestamp=times, producer=producer, sequence=0, codec=codec)
        stamp_create_time(data, now)
        appended = play.log.append(data, read_header(data), now_ms=now)
        await settle()
        outcomes.append(appended.exception())
    assert not play.broker.sent
    assert [error.code for error in outcomes] == [ErrorCode.INVALID_TIMESTAMP] * 3
    assert [[index for index, _ in error.records] for error in outcomes[:2]] == [[1], [1]]
    assert not isinstance(outcomes[2], RecordsRejectedError), "of a long batch none is named"
    play.log.policy = replace(play.log.policy, log_append_time=True)
    play.append(timestamp=1)
    play.log.policy = replace(play.log.policy, log_append_time=False)
    play.append(timestamp=now)
    await settle()
    assert len(play.broker.sent) == 2
    await play.log.close()


async def test_both_formats_follow_each_other_in_one_log() -> None:
    play = Play(41)
    await play.run("aSR")
    play.log.policy = raw_policy(True)
    play.engine.raw_marked = True
    await play.run("aSR F aSRT")
    play.log.policy = raw_policy(False)
    await play.run("aSR T")
    assert [raw for raw, _ in formats(play)] == [False, True, True, False]
    assert play.outcomes == [3, 5, 10, 12]
    read_back = records([await served(play, 3)])
    assert [record.offset for record in read_back] == list(range(3, 14))
    await play.log.close()


def raw_policy(raw: bool) -> LogPolicy:
    return LogPolicy(raw_entries=raw)


async def test_raw_entries_wait_until_the_topic_says_that_it_has_them() -> None:
    play = Play(41)
    await play.run("aSR")
    play.log.policy = raw_policy(True)
    await play.run("aSR")
    assert formats(play) == [(False, 2), (False, 2)]
    await play.log.close()


@pytest.mark.usefixtures("tail_in_time")
async def test_raw_entries_on_log_append_time_get_the_brokers_time() -> None:
    play = Play(-1, LogPolicy(raw_entries=True, log_append_time=True))
    await play.run("aSR")
    assert play.outcomes == [None], "the tail tells the time"
    await play.run("T")
    assert play.futures[0].result().log_append_time == STAMP
    assert [(record.offset, record.timestamp) for record in records([await served(play, 3)])] == [
        (3, STAMP),
        (4, STAMP),
    ]
    await play.log.close()


@PRODUCERS
async def test_a_raw_entry_is_never_split_but_refused(producer: int) -> None:
    """MESSAGE_TOO_LARGE: what Kafka says, and what producers split a batch at. The next one goes on."""
    play = Play(producer, LogPolicy(raw_entries=True))
    pieces(play.log)
    play.append(values=big())
    await settle()
    assert play.outcomes == [ErrorCode.MESSAGE_TOO_LARGE]
    assert play.broker.sent == []
    play.append(sequence=0, values=big()[:2])
    await settle()
    await play.run("SR aSR")
    assert play.outcomes[1:] == [3, 5]
    await play.log.close()


async def test_a_raw_retry_joins_the_pending_batch_or_is_looked_for() -> None:
    play = Play(41, LogPolicy(raw_entries=True))
    play.append(0)
    play.append(0)
    await settle()
    await play.run("SR")
    play.append(0)
    await settle()
    assert play.outcomes == [3, 3, 3]
    assert len(play.broker.sent) == 1
    play.broker.producers[0].on_lost(PulsarError("ProducerFenced", "so says the test"))
    play.broker.open_names.clear()
    await settle()
    play.append(0)
    await until(lambda: play.outcomes[3] is not None)
    assert play.outcomes[3] == 3
    assert formats(play) == [(True, 2)], "this broker has seen it stored: it is not sent again"
    await play.log.close()


async def test_a_raw_retry_of_what_another_broker_stored_is_confirmed() -> None:
    play = Play(41, LogPolicy(raw_entries=True))
    play.broker.foreign(2, "pid-41", 0)
    play.broker.sequences["pid-41"] = 1
    play.append(0)
    await settle()
    assert formats(play) == [(True, 2)]
    await play.run("D")
    await until(lambda: play.outcomes[0] is not None)
    assert play.outcomes == [3]
    await play.log.close()


async def test_a_batch_that_is_stored_in_part_goes_on_in_pieces() -> None:
    """As one entry it would be dropped whole, for Pulsar knows its first records."""
    play = Play(41)
    pieces(play.log)
    play.append(0, values=big(), codec=Codec.ZSTD)
    await settle()
    cut = formats(play)
    assert len(cut) > 1
    await play.run("SRX")
    assert play.outcomes == [ErrorCode.REQUEST_TIMED_OUT]
    play.log.policy = raw_policy(True)
    play.append(0, values=big(), codec=Codec.ZSTD)
    await settle()
    assert formats(play)[len(cut) :] == cut
    play.append(8)
    await settle()
    assert formats(play)[-1] == (True, 2)
    await play.log.close()


# --- compacted topics


async def test_null_keys_are_refused_by_their_index() -> None:
    play = Play(41, LogPolicy(compact=True, delete=False))
    data = build(
        [Record(index, NOW, key, b"v") for index, key in enumerate((b"k", None, b"", None))],
        producer_id=41, producer_epoch=0, base_sequence=0,
    )  # fmt: skip
    refused = play.log.append(data, read_header(data), now_ms=0)
    await settle()
    error = refused.exception()
    assert isinstance(error, RecordsRejectedError)
    assert error.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.records] == [1, 3]
    assert play.broker.sent == []
    play.append(0, keys=["a", "b"])
    await settle()
    await play.run("SR")
    assert play.outcomes == [3]
    await play.log.close()


async def test_null_keys_are_taken_where_nothing_is_compacted() -> None:
    play = Play(41)
    await play.run("aSR")
    assert play.outcomes == [3]
    await play.log.close()


async def test_a_batch_that_grows_too_far_is_refused() -> None:
    play = Play(-1, LogPolicy(max_uncompressed_bytes=1000))
    play.append(values=("v" * 2000,), codec=Codec.ZSTD)
    await settle()
    assert play.outcomes == [ErrorCode.INVALID_RECORD]
    assert play.broker.sent == []
    await play.run("aSR")
    assert play.outcomes[1] == 3
    await play.log.close()


@PRODUCERS
@pytest.mark.parametrize("raw", [False, True])
async def test_the_loop_has_its_turn_between_batches_that_are_decompressed(
    producer: int, raw: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decompression, "MOST_AT_ONCE", 5000)
    play = Play(producer, LogPolicy(raw_entries=raw))
    await play.run("aSR")
    values = [str(size % 10) * size for size in (2000, 2001, 2002, 9003, 2004, 2005)]
    for value in values:
        play.append(values=(value,), codec=Codec.ZSTD)
    play.append(values=("plain",))
    sent = [len(play.broker.sent)]
    while sent[-1] < 8:
        await asyncio.sleep(0)
        sent.append(len(play.broker.sent))
    assert [count for count, before in zip(sent, [1, *sent], strict=False) if count > before] == [4, 5, 8]
    await play.run("SR" * 7)
    assert play.outcomes == [3, 5, 6, 7, 8, 9, 10, 11]
    await play.log.close()


async def test_what_waits_for_the_loops_turn_fails_with_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompression, "MOST_AT_ONCE", 1)
    play = Play(41)
    await play.run("aSR")
    for _ in range(3):
        play.append(codec=Codec.ZSTD)
    assert len(play.broker.sent) == 2
    play.broker.producers[-1].on_lost(PulsarError("ConnectionLost", "so says the test"))
    await settle()
    assert play.outcomes[2:] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert len(play.broker.sent) == 2
    await play.log.close()


@pytest.mark.parametrize("compact", [False, True])
async def test_native_messages_without_a_key_at_the_tail_are_counted_where_they_will_vanish(compact: bool) -> None:
    play = Play(-1, LogPolicy(compact=compact))
    play.append(keys=["a", "b"])
    await settle()
    await play.run("SR F F T")
    assert play.log.high_watermark == 11
    assert play.counts == ({KEYLESS: 2} if compact else {})
    await play.log.close()


@pytest.mark.parametrize("compact", [False, True])
async def test_raw_entries_at_the_tail_are_counted_where_compaction_fails_on_them(compact: bool) -> None:
    play = Play(-1, LogPolicy(compact=compact))
    play.append(keys=["a", "b"])
    await settle()
    data = batch(["x", "y"], keys=["a", "b"])
    entry = raw_entry(data, read_header(data), producer_name="kop", sequence_base=0, publish_time=1, max_size=1 << 20)
    await play.run("SR")
    play.broker.put(entry.metadata, entry.payload, 2, 2)
    await play.run("T")
    assert play.log.high_watermark == 7
    assert play.counts == ({RAW: 1} if compact else {})
    await play.log.close()
