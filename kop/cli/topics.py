"""`kop topics`: list, create, describe, alter, delete, delete-records, through kafka-python's admin client."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from kop.cli import completion
from kop.cli.common import (
    CliError,
    CliUsageError,
    Ordered,
    admin,
    bold,
    bootstrap_option,
    fail,
    fail_if_any,
    is_internal,
    json_option,
    named,
    no_topic,
    note,
    pairs,
    print_blocks,
    print_rows,
    print_table,
    reason,
    size,
    wrapped,
)
from kop.cli.older_entries import older_entries_of
from kop.cli.pulsar import ask, configured_url
from kop.config import Config

EPILOG = """\b
Examples:
  kop topics create orders --partitions 3 --config cleanup.policy=compact
  kop topics describe orders
  kop topics describe orders --admin-url http://pulsar.example:8080
  kop topics alter orders --partitions 6 --config retention.ms=86400000
  kop topics alter orders --delete-config retention.ms
  kop topics delete-records orders:0 --before 1200
  kop topics delete orders"""

_UNKNOWN_TOPIC = 3
_NO_TOPICS = "there are no topics; make one with: kop topics create NAME"


@click.group("topics", cls=Ordered, epilog=EPILOG)
def command() -> None:
    """List, create, describe, alter and delete topics and their records."""


@command.command("list")
@click.option("--internal", is_flag=True, help="List internal topics, too.")
@json_option
@bootstrap_option
def list_topics(bootstrap: str, internal: bool, as_json: bool) -> None:
    """List topics with their number of partitions."""
    with admin(bootstrap) as client:
        topics = [t for t in client.describe_topics() if internal or not is_internal(t)]
    rows = [
        {"topic": t["name"], "partitions": len(t["partitions"]), "internal": is_internal(t)}
        for t in sorted(topics, key=lambda t: str(t["name"]))
    ]
    print_rows(rows, as_json, {"topic": "TOPIC", "partitions": ">PARTITIONS"}, _NO_TOPICS)


@command.command("create")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    help="Number of partitions; without it, the server's default.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    metavar="N",
    help="Number of replicas; without it, the server's default.",
)
@click.option(
    "-c", "--config", "configs", metavar="NAME=VALUE", multiple=True, help="Set a config of the topic; may be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="Do not fail for a topic that exists.")
@click.option("--validate-only", is_flag=True, help="Only say whether the server would do it.")
@bootstrap_option
def create(
    bootstrap: str,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    validate_only: bool,
) -> None:
    """Create topics."""
    wanted = {
        "num_partitions": partitions or -1,
        "replication_factor": replication_factor or -1,
        "configs": pairs(configs, "--config"),
    }
    with admin(bootstrap) as client:
        results = client.create_topics(dict.fromkeys(names, wanted), validate_only=validate_only, raise_errors=False)[
            "topics"
        ]
    done = "could be created" if validate_only else "created"
    _report(results, done, ignored={36: "exists already"} if if_not_exists else {})
    for result in results:
        given = result.get("replication_factor", -1)
        if replication_factor is not None and 0 < given != replication_factor and not result["error_code"]:
            note(f"{result['name']}: the server gives it a replication factor of {given}, not {replication_factor}")


@command.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=completion.topics)
@bootstrap_option
def delete(bootstrap: str, names: tuple[str, ...]) -> None:
    """Delete topics and all their records."""
    with admin(bootstrap) as client:
        results = client.delete_topics(list(names), raise_errors=False)["topics"]
        is_missing = any(result["error_code"] == _UNKNOWN_TOPIC for result in results)
        known = [topic["name"] for topic in client.describe_topics()] if is_missing else []
    _report(results, "deleted", ignored={}, known=known)


@command.command("alter")
@click.argument("name", shell_complete=completion.topics)
@click.option(
    "-p", "--partitions", type=click.IntRange(1), metavar="N", help="New number of partitions; it can only grow."
)
@click.option("-c", "--config", "configs", metavar="NAME=VALUE", multiple=True, help="Set a config; may be repeated.")
@click.option(
    "--delete-config",
    "removed",
    metavar="NAME",
    multiple=True,
    help="Set a config back to its default; may be repeated.",
)
@bootstrap_option
def alter(
    bootstrap: str, name: str, partitions: int | None, configs: tuple[str, ...], removed: tuple[str, ...]
) -> None:
    """Change a topic's configs or add partitions."""
    from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType

    changes: dict[str, tuple[Any, str | None]] = {
        key: (AlterConfigOp.SET, value) for key, value in pairs(configs, "--config").items()
    }
    for key in removed:
        if key in changes:
            raise click.UsageError(f"{key} is both set and deleted")
        changes[key] = (AlterConfigOp.DELETE, None)
    if partitions is None and not changes:
        raise click.UsageError("nothing to change: give --partitions, --config or --delete-config")
    with admin(bootstrap) as client:
        if changes:
            resource = ConfigResource(ConfigResourceType.TOPIC, name, changes)
            answer = client.alter_configs([resource], raise_on_unknown=False)["topic"][name]
            if answer != "OK":
                fail(f"{name}: {named(str(answer))}")
            click.echo(f"{name}: configs changed")
        if partitions is not None:
            results = client.create_partitions({name: partitions}, raise_errors=False)
            _report(results.to_dict()["results"], f"has {partitions} partitions now", ignored={})


@command.command("describe", short_help="Show configs, partitions, offsets and sizes.")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=completion.topics)
@click.option("--all-configs", is_flag=True, help="Show configs that are at their default, too.")
@click.option(
    "--admin-url",
    metavar="URL",
    help="Count entries without an offset, too, by Pulsar's admin REST at this address.",
)
@json_option
@bootstrap_option
def describe(bootstrap: str, names: tuple[str, ...], all_configs: bool, admin_url: str | None, as_json: bool) -> None:
    """Show configs, partitions, start and end offsets and sizes of topics.

    Without a name, all topics are shown but internal ones.

    OLDER are entries of Pulsar that are older than its index: consumers do not see them. They are counted if Pulsar's
    admin REST is named, by the flag, KOP_PULSAR_ADMIN_URL or the file that KOP_CONFIG names.
    """
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType
    from kafka.protocol.consumer import OffsetSpec

    with admin(bootstrap) as client:
        topics = client.describe_topics(list(names) or None)
        if not names:
            topics = [topic for topic in topics if not is_internal(topic)]
        missing = [_missing(client, t) for t in topics if t["error_code"]]
        known = sorted((t for t in topics if not t["error_code"]), key=lambda t: str(t["name"]))
        if known:
            resources = [ConfigResource(ConfigResourceType.TOPIC, t["name"]) for t in known]
            which = "all" if all_configs else "modified"
            configs = client.describe_configs(resources, config_filter=which).get("topic", {})
            led = [
                TopicPartition(t["name"], p["partition_index"])
                for t in known
                for p in t["partitions"]
                if p["leader_id"] >= 0
            ]
            starts = client.list_partition_offsets(dict.fromkeys(led, OffsetSpec.EARLIEST))
            ends = client.list_partition_offsets(dict.fromkeys(led, OffsetSpec.LATEST))
            sizes = _sizes(client, [t["name"] for t in known])
    older = _older(admin_url, [t["name"] for t in known])
    shown = []
    for topic in known:
        partitions = []
        for partition in sorted(topic["partitions"], key=lambda p: int(p["partition_index"])):
            key = TopicPartition(topic["name"], partition["partition_index"])
            start, end = (offsets[key].offset if key in offsets else None for offsets in (starts, ends))
            partitions.append(
                {
                    "partition": key.partition,
                    "leader": partition["leader_id"] if partition["leader_id"] >= 0 else None,
                    "replicas": list(partition["replica_nodes"]),
                    "in_sync_replicas": list(partition["isr_nodes"]),
                    "start": start,
                    "end": end,
                    "size_bytes": sizes.get(tuple(key)),
                    "older_entries": older.get(tuple(key)),
                }
            )
        shown.append(
            {
                "topic": topic["name"],
                "topic_id": str(topic["topic_id"]),
                "internal": is_internal(topic),
                "configs": {name: entry["value"] for name, entry in sorted(configs.get(topic["name"], {}).items())},
                "partitions": partitions,
            }
        )
    print_blocks(shown, as_json, _show)
    fail_if_any(missing)
    if not known and not as_json:
        note(_NO_TOPICS)


def _missing(client: Any, topic: Mapping[str, Any]) -> str:
    """Return the error line for a topic that cannot be described; if it does not exist, with names that may be
    meant.
    """
    if topic["error_code"] != _UNKNOWN_TOPIC:
        return f"{topic['name']}: {reason(topic['error_code'])}"
    return no_topic(topic["name"], [t["name"] for t in client.describe_topics()])


def _show(topic: Mapping[str, Any]) -> None:
    replicas = {len(partition["replicas"]) for partition in topic["partitions"]}
    click.echo(bold(topic["topic"]) + (" (internal)" if topic["internal"] else ""))
    click.echo(f"  id {topic['topic_id']}, replicas {'/'.join(map(str, sorted(replicas)))}")
    for name, value in topic["configs"].items():
        click.echo(f"  {name} = {value}")
    partitions = topic["partitions"]
    counted = any(p["older_entries"] is not None for p in partitions)
    print_table(
        [">PARTITION", ">LEADER", ">START", ">END", ">SIZE", *([">OLDER"] if counted else [])],
        [
            (
                p["partition"],
                "none" if p["leader"] is None else p["leader"],
                p["start"],
                p["end"],
                size(p["size_bytes"]),
                *([p["older_entries"]] if counted else []),
            )
            for p in partitions
        ],
    )
    if count := sum(p["older_entries"] or 0 for p in partitions):
        entries = "entry is" if count == 1 else "entries are"
        note(wrapped(f"{topic['topic']}: {count:,} {entries} older than Pulsar's index; consumers do not see them"))


def _older(url: str | None, names: Sequence[str]) -> dict[tuple[str, int], int]:
    """Return the number of entries older than Pulsar's index by topic and partition; an empty dict if no address of
    Pulsar's REST is known, or offsets are packed. If Pulsar cannot be asked, the command ends if it was told to ask at
    `url`, else that is told.
    """
    config = Config.load(os.environ.get("KOP_CONFIG") or None)
    asked = url or configured_url(config)
    if not asked or config.kop_pulsar_offsets == "packed":
        return {}
    try:
        return ask(asked, config, lambda rest: older_entries_of(rest, names, config.kop_pulsar_namespace))
    except CliError as error:
        if url:
            raise
        note(f"entries older than Pulsar's index are not counted: {error.message}")
        return {}


@command.command("delete-records", short_help="Delete the oldest records of partitions.")
@click.argument("names", metavar="NAME[:P,...]...", nargs=-1, required=True, shell_complete=completion.topics)
@click.option("--before", type=click.IntRange(0), metavar="N", help="Delete the records before this offset.")
@click.option("--all", "every", is_flag=True, help="Delete every record that is there now.")
@json_option
@bootstrap_option
def delete_records(bootstrap: str, names: tuple[str, ...], before: int | None, every: bool, as_json: bool) -> None:
    """Delete the oldest records of topics, or of only the partitions P of one.

    START is the first offset that is left.
    """
    from kafka import errors
    from kafka.protocol.consumer import OffsetSpec

    if (before is None) != every:
        raise click.UsageError("give --before or --all")
    failures = []
    with admin(bootstrap) as client:
        keys = chosen_partitions(client, names)
        if every:
            ends = client.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.LATEST))
            wanted = {key: ends[key].offset for key in keys}
        else:
            wanted = dict.fromkeys(keys, before)
        rows = []
        for key in keys:
            try:
                answer = client.delete_records({key: wanted[key]})[key]
            except errors.OffsetOutOfRangeError:
                end = client.list_partition_offsets({key: OffsetSpec.LATEST})[key].offset
                text = reason(errors.OffsetOutOfRangeError.errno, f"its records end before offset {end}")
                failures.append(f"{key.topic}-{key.partition}: {text}")
                continue
            except errors.BrokerResponseError as error:
                failures.append(f"{key.topic}-{key.partition}: {named(str(error))}")
                continue
            start = answer["low_watermark"]
            rows.append({"topic": key.topic, "partition": key.partition, "start": start})
    if as_json or rows:
        print_rows(rows, as_json, {"topic": "TOPIC", "partition": ">PARTITION", "start": ">START"})
    fail_if_any(failures)


def chosen_partitions(client: Any, texts: Sequence[str]) -> list[Any]:
    """Return the partitions that texts such as NAME or NAME:0,2 name, in order. The command ends if a topic or a
    partition does not exist.
    """
    from kafka import TopicPartition

    wanted: dict[str, set[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not colon:
            wanted[topic] = None
            continue
        if not all(number.strip().isdecimal() for number in numbers.split(",")):
            raise CliUsageError(f"{text}: partitions must be numbers, as in {topic}:0,2")
        if (before := wanted.setdefault(topic, set())) is not None:
            before.update(int(number) for number in numbers.split(","))
    keys = []
    for topic in client.describe_topics(list(wanted)):
        if topic["error_code"]:
            fail(_missing(client, topic))
        present = {partition["partition_index"] for partition in topic["partitions"]}
        some = wanted[topic["name"]]
        if some is not None and some - present:
            fail(f"{topic['name']} has no partition {', '.join(map(str, sorted(some - present)))}")
        keys += [TopicPartition(topic["name"], number) for number in present if some is None or number in some]
    return sorted(keys)


def _sizes(client: Any, names: Sequence[str]) -> dict[tuple[str, int], int]:
    """Return the bytes of each partition of topics; none from servers that do not tell (managed ones often forbid
    it).
    """
    from kafka import errors

    try:
        brokers = client.describe_log_dirs()
    except errors.KafkaError:
        return {}
    return {
        (topic["name"], partition["partition_index"]): partition["partition_size"]
        for broker in brokers
        for directory in broker["log_dirs"]
        for topic in directory["topics"]
        if topic["name"] in names
        for partition in topic["partitions"]
    }


def _report(
    results: Sequence[Mapping[str, Any]], done: str, ignored: Mapping[int, str], known: Sequence[str] = ()
) -> None:
    """Print for each topic that the request worked (`done`), or the word for an error code that is `ignored`; end the
    command with a line for each other error. A topic that does not exist may be one of `known` misspelt.
    """
    failures = []
    for result in results:
        code = result["error_code"]
        if code == 0 or code in ignored:
            click.echo(f"{result['name']}: {ignored.get(code, done)}")
        elif code == _UNKNOWN_TOPIC:
            failures.append(no_topic(result["name"], known))
        else:
            failures.append(f"{result['name']}: {reason(code, result.get('error_message'))}")
    fail_if_any(failures)
