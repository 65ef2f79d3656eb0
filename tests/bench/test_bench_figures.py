"""The benchmark's pure parts: which rows there are, and what becomes of the figures of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.bench.figures import (
    Run,
    cpu_a_gib,
    cpu_a_record,
    cpu_a_request,
    head,
    in_words,
    line,
    median,
    number,
    p99,
    rate,
    ratio,
    report,
    write_rate,
)
from conformance.bench.rows import ROWS, SIZES, Row, chosen

MESSAGE_MAX_BYTES = 1_048_588
"""As Kafka comes."""


def test_every_row_has_a_name_of_its_own_that_begins_with_its_engine() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
    assert all(row.name.startswith(f"{row.engine}-") for row in ROWS)


def test_both_engines_are_measured_with_each_size_plain_and_idempotent() -> None:
    names = {row.name for row in ROWS}
    for engine in ("pulsar", "embedded"):
        for size in SIZES:
            assert {f"{engine}-in-{size}", f"{engine}-in-{size}-idempotent"} <= names


def test_a_batch_holds_as_many_records_as_fit_and_at_least_one() -> None:
    assert [Row("r", "produce", batch_bytes=size).records for size in SIZES.values()] == [1, 3, 15, 63, 1012]
    assert all(row.records * row.record_bytes < MESSAGE_MAX_BYTES for row in ROWS)


def test_requests_under_way_are_bounded_by_number_and_by_bytes() -> None:
    assert {name: Row("r", "produce", batch_bytes=size).in_flight for name, size in SIZES.items()} == {
        "1k": 64,
        "4k": 64,
        "16k": 64,
        "64k": 64,
        "1m": 4,
    }
    assert Row("r", "produce", most_in_flight=1).in_flight == 1


def test_rows_are_chosen_by_engine_and_by_patterns() -> None:
    assert chosen("all", []) == ROWS
    assert {row.engine for row in chosen("embedded", [])} == {"embedded"}
    assert [row.name for row in chosen("all", ["*-in-1k"])] == ["pulsar-in-1k", "embedded-in-1k"]
    assert [row.name for row in chosen("pulsar", ["*-in-1k", "*commit"])] == ["pulsar-in-1k", "pulsar-commit"]


def test_a_family_stands_for_its_rows() -> None:
    behind = chosen("embedded", ["out-behind"])
    assert behind == chosen("embedded", ["*-out-behind-*"])
    assert {(row.batch_bytes, row.partitions, row.cache_bytes) for row in behind} == {
        (size, partitions, cache)
        for size in (65_536, 1_048_576)
        for partitions in (1, 8)
        for cache in (None, 67_108_864)
    }
    assert [row.name for row in chosen("pulsar", ["out-behind"])] == [
        row.name.replace("embedded", "pulsar") for row in behind
    ]


def test_a_pattern_without_a_row_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="no row is called in-2k"):
        chosen("all", ["*-in-1k", "in-2k"])


RUN = Run(seconds=2, records=4000, requests=1000, bytes=4000 * 1024, cpu_seconds=0.1)


def test_figures_of_a_run() -> None:
    assert rate(RUN) == 2000
    assert cpu_a_record(RUN) == pytest.approx(25)
    assert cpu_a_request(RUN) == pytest.approx(100)
    assert cpu_a_gib(RUN) == pytest.approx(0.1 / (4000 * 1024) * 2**30)
    assert p99(RUN) is None
    assert write_rate(RUN) is None
    assert write_rate(replace(RUN, write_seconds=8)) == 500


def test_a_figure_that_a_run_does_not_have_is_none() -> None:
    bare = Run(seconds=2, records=10)
    assert (cpu_a_record(bare), cpu_a_request(bare), cpu_a_gib(bare)) == (None, None, None)
    assert rate(Run(seconds=0, records=0)) is None
    assert cpu_a_request(Run(seconds=1, records=1, cpu_seconds=1)) is None


def runs(*rates: float) -> list[Run]:
    return [Run(seconds=1, records=value) for value in rates]


def test_a_ratio_is_the_median_of_the_ratios_of_each_round_not_the_ratio_of_the_medians() -> None:
    # The machine was ten times slower in the second round: both sides saw it.
    assert ratio(runs(100, 12, 110), runs(200, 20, 200), rate) == pytest.approx(0.55)
    assert ratio(runs(100, 12, 300), runs(100, 6, 100), rate) == pytest.approx(2)


def test_a_ratio_leaves_out_rounds_that_lack_the_figure() -> None:
    assert ratio(runs(100, 50), runs(200), rate) == pytest.approx(0.5)
    assert ratio(runs(100), [], rate) is None
    assert ratio(runs(100), runs(0), rate) is None
    assert ratio([RUN], runs(1), cpu_a_record) is None


def test_a_median_leaves_out_rounds_that_lack_the_figure() -> None:
    assert median([RUN, *runs(1)], cpu_a_record) == pytest.approx(25)
    assert median(runs(1), cpu_a_record) is None
    assert median(runs(1, 5, 9), rate) == 5


def test_numbers_have_a_dash_where_there_is_none() -> None:
    assert [number(1234.567, 0), number(0.5, 2), number(None, 2)] == ["1,235", "0.50", "-"]


def test_the_table_begins_with_ratios_and_its_columns_line_up() -> None:
    rows = [Row("pulsar-in-1k", "produce"), Row("pulsar-latency", "latency")]
    lines = [line(row, [RUN], runs(4000), "pulsar-perf") for row in rows]
    printed = report(lines, "peer").splitlines()
    assert len({len(text) for text in printed}) == 1
    assert [cell.strip() for cell in printed[0].split("|")][2:5] == ["rate / peer", "CPU / peer", "p99 / peer"]
    cells = dict(zip(head("peer"), lines[0], strict=True))
    assert (cells["rate / peer"], cells["CPU / peer"], cells["records/s"]) == ("0.50", "-", "2,000")
    assert (cells["peer"], cells["client"]) == ("pulsar-perf", "raw")
    assert dict(zip(head("peer"), lines[1], strict=True))["rate / peer"] == "-"  # its rate is given


def test_a_row_without_a_peer_has_dashes_for_ratios() -> None:
    cells = dict(zip(head("peer"), line(Row("r", "produce"), [RUN], [], "peer"), strict=True))
    assert (cells["rate / peer"], cells["peer"], cells["CPU us/request"]) == ("-", "-", "100")


def test_a_finished_row_is_said_in_words_without_what_it_lacks() -> None:
    said = in_words(line(Row("pulsar-in-1k", "produce"), [RUN], runs(4000), "pulsar-perf"))
    assert said.startswith("pulsar-in-1k: rate / pulsar-perf 0.50, CPU us/record 25.00,")
    assert "-," not in said
