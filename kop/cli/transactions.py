"""`kop transactions`: list, describe, abort, through kafka-python's clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from kop import clock
from kop.cli import completion
from kop.cli.common import (
    Ordered,
    admin,
    bold,
    bootstrap_option,
    client,
    fail_if_any,
    json_option,
    naming,
    note,
    print_blocks,
    print_rows,
    print_table,
    reason,
    retrying,
)
from kop.cli.times import parse_duration

EPILOG = """\b
Examples:
  kop transactions list --open
  kop transactions list --longer-than PT5M
  kop transactions describe orders-loader-0
  kop transactions describe --open
  kop transactions abort orders-loader-0"""

ONGOING = "Ongoing"
ABORT_SECONDS = 60
"""The seconds that the coordinator may take to write the markers of an abort."""
NOT_FOUND = 105
"""Kafka's error code TRANSACTIONAL_ID_NOT_FOUND."""


@click.group("transactions", cls=Ordered, epilog=EPILOG)
def command() -> None:
    """List, describe and abort transactions."""


@command.command("list")
@click.option("--open", "only_open", is_flag=True, help="Only those with an open transaction.")
@click.option("--longer-than", metavar="PnDTnHnMnS", help="Only those open for longer than this, such as PT5M.")
@json_option
@bootstrap_option
def list_transactions(bootstrap: str, only_open: bool, longer_than: str | None, as_json: bool) -> None:
    """List transactional ids with the states of their transactions."""
    longer_ms = None
    if longer_than is not None:
        with naming("--longer-than"):
            longer_ms = -parse_duration(longer_than, 0)
    with admin(bootstrap) as made:
        rows = _listed(made, only_open or longer_ms is not None, longer_ms)
    names = "transactional_id", "state", "producer_id", "coordinator"
    columns = dict(zip(names, ("TRANSACTIONAL-ID", "STATE", ">PRODUCER", ">COORDINATOR"), strict=True))
    empty = "there are no open transactions" if only_open or longer_ms is not None else "there are no transactions"
    print_rows([dict(zip(names, row, strict=True)) for row in rows], as_json, columns, empty)


def _listed(made: Any, only_open: bool, longer_ms: int | None = None) -> list[tuple[str, str, int, int]]:
    """Return transactional id, state, producer id and coordinator of each transaction, ordered by id: of all, of those
    that are open, or of those that began more than `longer_ms` ago.
    """
    states = [ONGOING] if only_open else None
    listed = retrying(made.list_transactions, state_filters=states, duration_filter_ms=longer_ms)
    return sorted(
        (row.transactional_id, row.state.value, row.producer_id, broker)
        for broker, rows in listed.items()
        for row in rows
    )


@command.command("describe")
@click.argument("names", metavar="[ID]...", nargs=-1, shell_complete=completion.transactional_ids)
@click.option("--open", "all_open", is_flag=True, help="Every transactional id with an open transaction.")
@json_option
@bootstrap_option
def describe(bootstrap: str, names: tuple[str, ...], all_open: bool, as_json: bool) -> None:
    """Show producer, age and partitions of transactions.

    An open transaction holds back readers of its partitions: those with read_committed, and over Pulsar every one.
    """
    if bool(names) == all_open:
        raise click.UsageError("give transactional ids or --open")
    failures, shown = [], []
    with admin(bootstrap) as made:
        wanted: Sequence[str] = [row[0] for row in _listed(made, only_open=True)] if all_open else names
        for name in wanted:
            described = _described(made, name)
            if described is None:
                failures.append(f"{name}: {reason(NOT_FOUND)}")
            else:
                shown.append(_facts(name, described))
    print_blocks(shown, as_json, _show)
    if not wanted and not as_json:
        note("there are no open transactions")
    fail_if_any(failures)


def _described(made: Any, name: str) -> Any:
    """Return the description of a transactional id; None if no coordinator knows it."""
    from kafka import errors

    try:
        return retrying(made.describe_transactions, [name])[name]
    except errors.BrokerResponseError as error:
        if error.errno != NOT_FOUND:
            raise
        return None


def _facts(name: str, described: Any) -> dict[str, Any]:
    """Return the JSON object of a transactional id for --json."""
    is_open = described.state.value == ONGOING
    return {
        "transactional_id": name,
        "state": described.state.value,
        "open_ms": max(round(clock.wall() * 1000 - described.transaction_start_time_ms), 0) if is_open else None,
        "producer_id": described.producer_id,
        "producer_epoch": described.producer_epoch,
        "timeout_ms": described.transaction_timeout_ms,
        "coordinator": described.coordinator_id,
        "partitions": [
            {"topic": topic, "partition": partition} for topic, partition in sorted(described.topic_partitions or ())
        ],
    }


def _show(facts: Mapping[str, Any]) -> None:
    words = [
        f"state {facts['state']}",
        f"producer {facts['producer_id']} epoch {facts['producer_epoch']}",
        f"timeout {_seconds(facts['timeout_ms'])}",
        f"coordinator {facts['coordinator']}",
    ]
    if facts["open_ms"] is not None:
        words.insert(1, f"open for {_seconds(facts['open_ms'])}")
    click.echo(f"{bold(facts['transactional_id'])}: {', '.join(words)}")
    if facts["partitions"]:
        print_table(["TOPIC", ">PARTITION"], [list(row.values()) for row in facts["partitions"]])


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.0f} s"


@command.command("abort")
@click.argument("names", metavar="ID...", nargs=-1, required=True, shell_complete=completion.transactional_ids)
@bootstrap_option
def abort(bootstrap: str, names: tuple[str, ...]) -> None:
    """Abort the open transactions of transactional ids.

    A producer that still runs under the id is fenced: it has to be started again.
    """
    failures = []
    with admin(bootstrap) as made:
        for name in names:
            described = _described(made, name)
            if described is None:
                failures.append(f"{name}: {reason(NOT_FOUND)}")
            elif described.state.value != ONGOING:
                click.echo(f"{name}: no open transaction, its state is {described.state.value}")
            else:
                _fence(bootstrap, name)
                click.echo(f"{name}: aborted")
    fail_if_any(failures)


def _fence(bootstrap: str, name: str) -> None:
    """Send InitProducerId for the id, as a new instance of its producer: the coordinator aborts what the former one
    left open, within 60 s, and refuses the former one from then on.
    """
    settings = {"transactional_id": name, "max_block_ms": ABORT_SECONDS * 1000}
    with client("KafkaProducer", bootstrap, **settings) as producer:
        producer.init_transactions()
