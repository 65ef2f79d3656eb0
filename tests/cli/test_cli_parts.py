"""The small parts under the commands: codecs against independent ones, times, tables."""

from __future__ import annotations

import random
import warnings
from datetime import UTC, datetime
from types import SimpleNamespace

import click
import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kop.cli import codecs, common, consume
from kop.cli.times import parse_datetime, parse_duration

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # its way to read its schemas
    from kafka import TopicPartition, codec
    from kafka.errors import RebalanceInProgressError
    from kafka.structs import OffsetAndMetadata

payloads = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda seed, size: random.Random(seed).randbytes(size), st.integers(0, 99), st.integers(0, 200_000)),
    st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=9), st.integers(0, 30_000)),
)


@given(payloads)
def test_lz4_is_a_frame_of_independent_blocks(payload: bytes) -> None:
    """Kafka's Java client refuses linked blocks."""
    encoded = codecs.lz4_encode(payload)
    assert lz4.frame.decompress(encoded) == payload
    assert lz4.frame.get_frame_info(encoded)["block_linked"] is False
    assert codecs.lz4_decode(encoded) == payload
    assert codecs.lz4_decode(lz4.frame.compress(payload)) == payload


@given(payloads)
def test_zstd_agrees_with_zstandard(payload: bytes) -> None:
    assert zstandard.ZstdDecompressor().decompress(codecs.zstd_encode(payload), max_output_size=1 << 20) == payload
    assert codecs.zstd_decode(zstandard.ZstdCompressor().compress(payload)) == payload


@given(payloads)
def test_snappy_given_to_kafka_python_agrees_with_python_snappy(payload: bytes) -> None:
    before = codec.snappy, codec.lz4, codec.zstd
    try:
        codecs.install()
        if payload:  # kafka-python does not read back its own empty stream; a batch is never empty
            assert codec.snappy_decode(codec.snappy_encode(payload)) == payload
        assert (
            codec.snappy.compress(payload) == bytes(snappy.compress(payload))
            or snappy.decompress(codec.snappy.compress(payload)) == payload
        )
        assert codec.snappy.decompress(snappy.compress(payload)) == payload
    finally:
        codec.snappy, codec.lz4, codec.zstd = before


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:30", datetime(2026, 1, 31, 12, 30, tzinfo=UTC)),
        ("2026-01-31T12:30:15.250Z", datetime(2026, 1, 31, 12, 30, 15, 250_000, tzinfo=UTC)),
        ("2026-01-31T12:30:15+02:00", datetime(2026, 1, 31, 10, 30, 15, tzinfo=UTC)),
        (" 1970-01-01T00:00:00.001 ", datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)),
    ],
)
def test_datetime_is_utc_where_it_names_no_zone(text: str, moment: datetime) -> None:
    assert parse_datetime(text) == round(moment.timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "12:30"])
def test_datetime_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no time such as 2026-01-31T12:00:00Z"):
        parse_datetime(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT1S", 1),
        ("PT0.5S", 0.5),
        ("PT1H30M", 5400),
        ("P7D", 604_800),
        ("P1DT2H3M4S", 93_784),
        ("P2W", 1_209_600),
        ("pt5m", 300),
    ],
)
def test_duration_counts_back_from_now(text: str, seconds: float) -> None:
    assert parse_duration(text, now_ms=10**12) == 10**12 - seconds * 1000


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "PT1", "P1H", "PT1D", "-PT1S", "PT1H "[:-1] + "x", "P1DT"])
def test_duration_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration such as PT1H30M or P7D"):
        parse_duration(text)


def test_table_in_a_pipe_is_plain_and_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    common.print_table(["NAME", ">COUNT", "NOTE"], [("a", 1, "x"), ("longer name " * 10, 1234, None)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "NAME".ljust(120) + "  COUNT  NOTE"
    assert lines[1] == "a".ljust(120) + "      1  x"
    assert lines[2].endswith("   1234  -")


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 60 columns."""
    monkeypatch.setattr(common, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")


@pytest.mark.usefixtures("narrow")
def test_rows_that_are_wider_than_the_terminal_become_blocks_with_whole_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = "[bold]" + "x" * 60
    common.print_table(["NAME", ">COUNT"], [(long, 123456), ("b", 7)])
    assert click.unstyle(capsys.readouterr().out).splitlines() == [
        f"NAME   {long}",
        "COUNT  123456",
        "",
        "NAME   b",
        "COUNT  7",
    ]


@pytest.mark.usefixtures("narrow")
def test_rows_that_fit_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    common.print_table(["NAME", ">COUNT"], [("x" * 50, 12345678)])
    assert [len(line) for line in click.unstyle(capsys.readouterr().out).splitlines()] == [60, 60]


def test_what_would_move_the_cursor_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    common.print_table(["NAME"], [("a\x1b[2Jb\nc",)])
    assert capsys.readouterr().out == "NAME\na\\x1b[2Jb\\nc\n"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, None),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_500_000, "1.4 MiB"),
        (3 << 30, "3.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_size(count: int, text: str) -> None:
    assert common.size(count) == text


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[Error 40] InvalidConfigurationError: no\n such", "INVALID_CONFIG: no such"),
        ("[Error -1] UnknownError", "UNKNOWN_SERVER_ERROR: Unexpected error."),
        ("[Error 9999] X: y", "error 9999: y"),
        ("words", "words"),
    ],
)
def test_admin_errors_get_kafkas_names(text: str, line: str) -> None:
    assert common.named(text).startswith(line.removesuffix("Unexpected error."))


class RebalancingConsumer:
    """A consumer whose group rebalances until it was polled a few times."""

    def __init__(self, polls: int) -> None:
        self.left = polls
        self.committed: dict[TopicPartition, int] = {}

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition("t", 0)}

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[object]]:
        self.left -= 1
        return {}

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], timeout_ms: float | None) -> None:
        if self.left > 0:
            raise RebalanceInProgressError("the group rebalances")
        self.committed |= {key: position.offset for key, position in offsets.items()}


@pytest.mark.parametrize(("seconds", "committed"), [(100.0, {TopicPartition("t", 0): 8}), (-1.0, {})])
def test_the_last_commit_of_consume_waits_for_a_rebalance_to_end(
    seconds: float,
    committed: dict[TopicPartition, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(consume, "REBALANCE_SECONDS", seconds)
    consumer = RebalancingConsumer(3)
    printed = consume.Printed(consumer, commits=True)
    printed.add(SimpleNamespace(topic="t", partition=0, offset=7))
    assert not printed.commit()
    printed.finish()
    assert consumer.committed == committed
    assert ("will be read again" in capsys.readouterr().err) == (not committed)
