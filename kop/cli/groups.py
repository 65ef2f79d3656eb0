"""`kop groups`: list, describe, reset-offsets, delete, through kafka-python's admin client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from kop.cli import completion
from kop.cli.common import (
    Ordered,
    admin,
    bold,
    bootstrap_option,
    fail,
    fail_if_any,
    json_option,
    named,
    naming,
    note,
    print_blocks,
    print_rows,
    print_table,
    reason,
    retrying,
)
from kop.cli.times import parse_datetime, parse_duration
from kop.cli.topics import chosen_partitions
from kop.errors import ErrorCode

EPILOG = """\b
Examples:
  kop groups describe billing
  kop groups describe --all --json
  kop groups reset-offsets billing --topic orders --to-earliest
  kop groups reset-offsets billing --topic orders:0 --shift-by -9 --execute
  kop groups reset-offsets billing --all-topics --by-duration PT1H
  kop groups delete billing"""

INACTIVE = {"Empty", "Dead"}


@click.group("groups", cls=Ordered, epilog=EPILOG)
def command() -> None:
    """List, describe, reset and delete consumer groups."""


@command.command("list")
@json_option
@bootstrap_option
def list_groups(bootstrap: str, as_json: bool) -> None:
    """List groups with their state and type."""
    with admin(bootstrap) as client:
        groups = retrying(client.list_groups)
    rows = [
        {
            "group": g["group_id"],
            "state": g.get("group_state") or None,
            "type": g.get("group_type") or None,
            "protocol": g["protocol_type"] or None,
        }
        for g in sorted(groups, key=lambda g: str(g["group_id"]))
    ]
    columns = {"group": "GROUP", "state": "STATE", "type": "TYPE", "protocol": "PROTOCOL"}
    print_rows(rows, as_json, columns, "there are no groups")


@command.command("describe")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=completion.groups)
@click.option("--all", "every", is_flag=True, help="Show every group.")
@json_option
@bootstrap_option
def describe(bootstrap: str, names: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Show state, members, committed offsets and lag of groups.

    LAG is the end of the partition minus the committed offset: what is left to read.
    """
    if bool(names) == every:
        raise click.UsageError("give names of groups or --all")
    failures, shown = [], []
    with admin(bootstrap) as client:
        if every:
            names = tuple(sorted(g["group_id"] for g in retrying(client.list_groups)))
        for name in names:
            group, committed = _group(client, name)
            if group is not None:
                shown.append(_facts(client, group, committed))
            elif not every:  # it was there a moment ago
                failures.append(_refused(name, 69))
    print_blocks(shown, as_json, _show)
    fail_if_any(failures)
    if not shown and not as_json:
        note("there are no groups")


def _group(client: Any, name: str) -> tuple[Mapping[str, Any] | None, dict[Any, Any]]:
    """Return a group's description (None if there is no such group) and its committed offsets by partition. The
    description has no members (None) if kafka-python cannot ask for those of its type. Any other error ends the
    command.
    """
    from kafka import errors

    described = retrying(client.describe_groups, [name])[name]
    try:
        committed = retrying(client.list_group_offsets, {name: None})[name]
    except errors.GroupIdNotFoundError:
        committed = {}
    if described["error"]:
        text = str(described["error"])
        if not text.startswith("[Error 69]"):
            fail(f"{name}: {named(text)}")
        listed = [g for g in retrying(client.list_groups) if g["group_id"] == name]
        if not listed:
            return None, {}
        # There, but of a type (KIP-848, KIP-932) whose members kafka-python cannot ask for.
        described = listed[0] | {"members": None, "protocol_data": ""}
    elif described["group_state"] == "Dead" and not committed:
        return None, {}
    return described, {key: value for key, value in committed.items() if value.offset >= 0}


def _facts(client: Any, group: Mapping[str, Any], committed: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the JSON object of a group for --json. Its members are null if kafka-python cannot ask for members of its
    type.
    """
    members = group["members"]
    owners = _owners(members or [])
    keys = sorted({*committed, *owners})
    ends = _offsets(client, keys, "LATEST")
    offsets = []
    for key in keys:
        offset = committed[key].offset if key in committed else None
        end = ends.get(key)
        lag = max(end - offset, 0) if end is not None and offset is not None else None
        member = owners.get(key)
        offsets.append(
            {
                "topic": key.topic,
                "partition": key.partition,
                "committed": offset,
                "end": end,
                "lag": lag,
                "member_id": None if member is None else member["member_id"],
            }
        )
    return {
        "group": group["group_id"],
        "state": group["group_state"],
        "type": group.get("group_type") or None,
        "assignor": group.get("protocol_data") or None,
        "members": None if members is None else [_member(member, owners) for member in members],
        "offsets": offsets,
    }


def _member(member: Mapping[str, Any], owners: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        "member_id": member["member_id"],
        "instance_id": member.get("group_instance_id") or None,
        "client_id": member["client_id"],
        "host": str(member["client_host"]).lstrip("/"),
        "partitions": sum(owner is member for owner in owners.values()),
    }


def _show(group: Mapping[str, Any]) -> None:
    members = group["members"]
    facts = [f"state {group['state']}"]
    if members is None:
        facts.append(f"type {group['type']}; members of this type cannot be shown")
    else:
        facts.append(f"{len(members)} {'member' if len(members) == 1 else 'members'}")
    if group["assignor"]:
        facts.append(f"assignor {group['assignor']}")
    click.echo(f"{bold(group['group'])}: {', '.join(facts)}")
    if group["offsets"]:
        labels = {member["member_id"]: _label(member) for member in members or []}
        print_table(
            ["TOPIC", ">PARTITION", ">COMMITTED", ">END", ">LAG", "MEMBER"],
            [[*list(row.values())[:-1], labels.get(row["member_id"])] for row in group["offsets"]],
        )
    idle = [_label(member) for member in members or [] if not member["partitions"]]
    if idle:
        click.echo(f"without partitions: {', '.join(idle)}")


def _label(member: Mapping[str, Any]) -> str:
    return f"{member['instance_id'] or member['member_id']} ({member['host']})"


def _owners(members: Sequence[Mapping[str, Any]]) -> dict[Any, Mapping[str, Any]]:
    """Return for each partition the group member that it is assigned to."""
    from kafka import TopicPartition

    owners = {}
    for member in members:
        assignment = member["member_assignment"]
        if not isinstance(assignment, Mapping):  # not a consumer's (Connect), or not assigned yet
            continue
        for topic in assignment["assigned_partitions"]:
            for partition in topic["partitions"]:
                owners[TopicPartition(topic["topic"], partition)] = member
    return owners


def _offsets(client: Any, keys: Sequence[Any], which: str) -> dict[Any, int]:
    """Return the first (`EARLIEST`) or end (`LATEST`) offset of each partition; those that do not exist any more are
    left out.
    """
    from kafka.protocol.consumer import OffsetSpec

    if not keys:
        return {}
    present = {
        (t["name"], p["partition_index"])
        for t in client.describe_topics(sorted({key.topic for key in keys}))
        for p in t["partitions"]
    }
    specs = {key: OffsetSpec[which] for key in keys if tuple(key) in present}
    return {key: answer.offset for key, answer in client.list_partition_offsets(specs).items()} if specs else {}


@command.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=completion.groups)
@bootstrap_option
def delete(bootstrap: str, names: tuple[str, ...]) -> None:
    """Delete groups without members, and their committed offsets."""
    from kafka import errors

    failures = []
    with admin(bootstrap) as client:
        for name, answer in dict(retrying(client.delete_groups, list(names))).items():
            if answer == "OK":
                click.echo(f"{name}: deleted")
            else:
                failures.append(_refused(name, getattr(errors, answer).errno))
    fail_if_any(failures)


def _refused(name: str, code: int) -> str:
    hint = " (`kop groups list` shows what there is)" if code == ErrorCode.GROUP_ID_NOT_FOUND else ""
    return f"{name}: {reason(code)}{hint}"


@command.command("reset-offsets", short_help="Move committed offsets (with --execute).")
@click.argument("name", shell_complete=completion.groups)
@click.option(
    "--topic",
    "topics",
    shell_complete=completion.topics,
    metavar="NAME[:P,...]",
    multiple=True,
    help="Reset this topic, or only the partitions P of it; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="Reset every topic for which the group committed offsets.")
@click.option("--to-earliest", is_flag=True, help="Move to the first record.")
@click.option("--to-latest", is_flag=True, help="Move behind the last record.")
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="Move to this offset.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="Move to the first record at or after a time such as 2026-01-31T12:00[:00][Z|+01:00].",
)
@click.option(
    "--by-duration", metavar="PnDTnHnMnS", help="Move to the first record of a time up to now, such as PT1H30M."
)
@click.option("--shift-by", type=int, metavar="N", help="Move forward by N offsets, or back where N is negative.")
@click.option("--execute", is_flag=True, help="Change the offsets; without it they are only shown.")
@json_option
@bootstrap_option
def reset_offsets(
    bootstrap: str, name: str, topics: tuple[str, ...], all_topics: bool, execute: bool, as_json: bool, **targets: Any
) -> None:
    """Move the committed offsets of a group that has no members.

    A target outside of a partition becomes its first or end offset; a time after the last record, the end.
    Without --execute it only shows what would happen. Times without a zone are UTC.
    """
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    chosen = {key: value for key, value in targets.items() if value is not None and value is not False}
    if len(chosen) != 1:
        raise click.UsageError("give one of " + ", ".join("--" + key.replace("_", "-") for key in targets))
    if bool(topics) == all_topics:
        raise click.UsageError("give --topic or --all-topics")
    ((target, value),) = chosen.items()
    timestamp = _timestamp(target, value)
    with admin(bootstrap) as client:
        group, committed = _group(client, name)
        if group is not None and group["group_state"] not in INACTIVE:
            state = group["group_state"]
            fail(f"{name} is in state {state}: its consumers have to stop before its offsets can be moved")
        keys = sorted(committed) if all_topics else chosen_partitions(client, topics)
        if not keys:
            fail(f"{name} has no committed offsets")
        starts, ends = _offsets(client, keys, "EARLIEST"), _offsets(client, keys, "LATEST")
        times = _times(client, sorted(ends), timestamp) if timestamp is not None else {}
        moves: dict[TopicPartition, tuple[int | None, int]] = {}
        for key in keys:
            old = committed[key].offset if key in committed else None
            if key not in ends:
                note(f"{key.topic}-{key.partition} is not there any more; left as it is")
            elif target == "shift_by" and old is None:
                note(f"{key.topic}-{key.partition} has no committed offset to shift; left as it is")
            else:
                wish = {
                    "to_earliest": starts[key],
                    "to_latest": ends[key],
                    "to_offset": value,
                    "shift_by": (old or 0) + (value if target == "shift_by" else 0),
                }.get(target, times.get(key, -1))
                moves[key] = (
                    old,
                    ends[key] if wish < 0 and timestamp is not None else min(max(wish, starts[key]), ends[key]),
                )
        results = {}
        if execute and moves:
            offsets = {key: OffsetAndMetadata(new, "", -1) for key, (_, new) in moves.items()}
            results = retrying(client.alter_group_offsets, name, offsets)
    rows = [
        {"topic": key.topic, "partition": key.partition, "committed": old, "new": new, "lag": ends[key] - new}
        for key, (old, new) in moves.items()
    ]
    if as_json or moves:
        heads = ("TOPIC", ">PARTITION", ">COMMITTED", ">NEW", ">LAG")
        print_rows(rows, as_json, dict(zip(("topic", "partition", "committed", "new", "lag"), heads, strict=True)))
    if not moves:
        note("there is nothing to move")
        return
    fail_if_any(
        [f"{key.topic}-{key.partition}: {reason(error.errno)}" for key, error in results.items() if error.errno]
    )
    note("done" if execute else "nothing has changed yet; add --execute to do it")


def _timestamp(target: str, value: Any) -> int | None:
    """Return the time in ms since the epoch that a target of reset-offsets means; None if the target is no time. A
    usage error if `value` is none.
    """
    parse = {"to_datetime": parse_datetime, "by_duration": parse_duration}.get(target)
    with naming(f"--{target.replace('_', '-')}"):
        return None if parse is None else parse(value)


def _times(client: Any, keys: Sequence[Any], timestamp: int) -> dict[Any, int]:
    from kafka.protocol.consumer import OffsetTimestamp

    if not keys:
        return {}
    answers = client.list_partition_offsets(dict.fromkeys(keys, OffsetTimestamp(timestamp)))
    return {key: answer.offset for key, answer in answers.items()}
