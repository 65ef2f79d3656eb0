"""`kop check`: a round trip against any Kafka server, each step said in words, and a look at the Pulsar behind it.

Owns: the steps and what each proves.
Must not know: what kind of server it is; what a setting of Pulsar's means.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import click

from kop import clock
from kop.cli.check_pulsar import LOOKS, Caution, Settings
from kop.cli.common import (
    CliError,
    addresses,
    admin,
    bootstrap_option,
    brokers,
    client,
    explain,
    fail,
    is_server_given,
    misadvertised,
    named,
    one_line,
    quiet_client,
    reach,
    reason,
    retrying,
    unreachable,
    wrapped,
)
from kop.cli.older_entries import topics_with_older_entries
from kop.cli.pulsar import ask, configured_url
from kop.cli.pulsar_rights import lacking, settings_in_force
from kop.config import Config

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 50
STEP_SECONDS = 20.0
"""The seconds for which a step waits for what it expects."""
SHOWN = 5
"""The number of topics that a line of the output names; of more it gives the number."""

_SUPERUSERS_ALONE = (
    "it shows the settings of its brokers to superusers alone: check again with kop.pulsar.auth of such a role, once"
)

Step: TypeAlias = tuple[str, Callable[[], str], tuple[str, ...]]
"""One step of the check: its name, the function that does it, and the names of the steps without which it is left
out.
"""

EPILOG = """\b
It makes a topic `kop-check-...` and a group of that name, and deletes both.
With the address of Pulsar's admin REST (by the flag, KOP_PULSAR_ADMIN_URL or
the file that KOP_CONFIG names) it first says what the settings of the Pulsar
brokers mean, and that is all if --bootstrap is not given and no gateway runs.

\b
Examples:
  kop check
  kop check --bootstrap broker.example:9092
  kop check --admin-url http://pulsar.example:8080"""


@click.command("check", epilog=EPILOG)
@bootstrap_option
@click.option(
    "--admin-url",
    metavar="URL",
    help="Look first at the settings of the Pulsar brokers behind this admin REST address.",
)
def command(bootstrap: str, admin_url: str | None) -> None:
    """Run a round trip against a server and say what works: exit code 0 if all of it does, else 1.

    It speaks to the server without encryption or login, unless --client-config says otherwise.
    """
    quiet_client()
    config = Config.load(os.environ.get("KOP_CONFIG") or None)
    admin_url = admin_url or configured_url(config)
    behind = _pulsar_steps(admin_url, config) if admin_url else []
    alone = bool(behind) and not is_server_given() and all(map(unreachable, addresses(bootstrap)))
    trip = RoundTrip(bootstrap)
    steps: list[Step] = [
        ("connect", trip.connect, ()),
        ("addresses", trip.addresses, ("connect",)),
        ("create topic", trip.create_topic, ("addresses",)),
        ("change config", trip.change_config, ("create topic",)),
        *((f"records, {codec}", partial(trip.produce_and_fetch, codec), ("create topic",)) for codec in CODECS),
        ("find offsets", trip.find_offsets, ("records, none",)),
        ("consumer group", trip.consumer_group, ("records, none",)),
        ("committed offset", trip.committed_offset, ("consumer group",)),
        ("delete group", trip.delete_group, ("consumer group",)),
        ("delete topic", trip.delete_topic, ("create topic",)),
    ]
    if alone:
        steps = []
    width = max(len(name) for name, _, _ in (*behind, *steps))
    worked: set[str] = set()
    failed: list[str] = []
    cautions: list[str] = []
    _run(behind, worked, failed, cautions, width)
    with trip.cleaning_up(worked):
        _run(steps, worked, failed, cautions, width)
    tried = [*behind, *steps]
    if failed:
        untried = len(tried) - len(worked) - len(failed)
        rest = f"; {untried} not tried" if untried else ""
        fail(f"{len(failed)} of {len(tried)} steps failed: {', '.join(failed)}{rest}")
    more = f" Read what it says of {', '.join(cautions)}." if cautions else ""
    if alone:
        done = f"Pulsar is ready for a gateway: all {len(tried)} steps against {admin_url}."
        more += f" None answers at {bootstrap} yet."
    else:
        done = f"Everything works: all {len(tried)} steps against {bootstrap}."
    click.echo(wrapped(done + more))


def _pulsar_steps(url: str, config: Config) -> list[Step]:
    """Return the steps that look at the Pulsar behind a gateway, whose admin REST is at `url`: reading its brokers'
    settings, the rights of the gateway's role, then one step for each of the settings that matter, and, unless offsets
    are packed, for entries that are older than the index. Nothing is asked before a step is called.
    """
    settings: dict[str, str] = {}

    def read() -> str:
        async def both(admin: Any) -> tuple[str, Settings | None]:
            return await admin.version(), await settings_in_force(admin)

        version, in_force = ask(url, config, both)
        if in_force is None:
            return Caution(f"{version} at {url}; {_SUPERUSERS_ALONE}")
        settings.update(in_force)
        return f"{version} at {url}"

    def older() -> str:
        namespace = config.kop_pulsar_namespace
        topics, seen, every = ask(url, config, lambda rest: topics_with_older_entries(rest, namespace, STEP_SECONDS))
        of = f"{seen:,} topics of {namespace}" + (
            f" ({every - seen:,} more were not looked at)" if seen < every else ""
        )
        if not topics:
            return f"none of {of} has entries that are older than the index"
        names = ", ".join(topics[:SHOWN]) + (f" and {len(topics) - SHOWN:,} more" if len(topics) > SHOWN else "")
        return Caution(
            f"{len(topics):,} of {of} {'has' if len(topics) == 1 else 'have'} entries that are older than the index; "
            f"consumers of Kafka do not see them: {names}. `kop topics describe NAME --admin-url URL` counts them; "
            "docs/pulsar.md names three ways to them"
        )

    def rights() -> str:
        home, metadata = config.kop_pulsar_namespace, config.kop_pulsar_metadata_namespace
        needed, wanted = ask(url, config, lambda rest: lacking(rest, home, metadata))
        if needed:
            fail(f"the gateway's role lacks rights: {'; '.join([*needed, *wanted])}")
        if wanted:
            return Caution(f"the gateway's role lacks a right: {wanted[0]}")
        return "the gateway's role has all that it needs"

    def bound(look: Callable[[Settings], str]) -> Callable[[], str]:
        return lambda: look(settings) if settings else Caution("not looked at")

    looks = [(name, bound(look), ("Pulsar",)) for name, look in LOOKS]
    steps: list[Step] = [("Pulsar", read, ()), ("rights", rights, ()), *looks]
    return steps if config.kop_pulsar_offsets == "packed" else [*steps, ("older entries", older, ("entry index",))]


def _run(steps: Sequence[Step], worked: set[str], failed: list[str], cautions: list[str], width: int) -> None:
    """Run each step whose needs are among `worked`, print how it went, and add its name to `worked` or to `failed`, and
    to `cautions` if its detail is a `Caution`. End early if the server cannot be reached. `width` is the room for
    names.
    """
    for name, step, needs in steps:
        missing = [need for need in needs if need not in worked]
        if missing:
            _say("-", name, width, f"not tried: {missing[0]} did not work")
            continue
        begin = clock.monotonic()
        try:
            detail = step()
        except Exception as error:
            if click.get_current_context().find_root().meta.get("kop.debug"):
                raise
            failed.append(name)
            _say("FAIL", name, width, _words(error))
            if name in {"connect", "addresses"}:
                break
        else:
            worked.add(name)
            if isinstance(detail, Caution):
                cautions.append(name)
            words, newline, lines = detail.partition("\n")
            mark = "note" if isinstance(detail, Caution) else "ok"
            _say(mark, name, width, f"{words} ({clock.monotonic() - begin:.2f} s){newline}{lines}")


def _say(mark: str, name: str, width: int, detail: str) -> None:
    color = {"ok": "green", "note": "yellow", "FAIL": "red"}.get(mark)
    click.echo(f"{click.style(mark.ljust(4), fg=color)}  {name.ljust(width)}  {wrapped(detail, 8 + width)}")


def _words(error: Exception) -> str:
    if isinstance(error, CliError):
        return error.message
    return explain(error) or one_line(f"{type(error).__name__}: {error}")


class RoundTrip:
    """The steps of the check against a Kafka server. Each returns a line that says what works, or raises an
    exception.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.name = f"kop-check-{clock.uuid4().hex[:12]}"
        self.end = 0
        """The end offset of the check's topic: the number of records that were produced to its partition 0."""
        self.may_have_group = False
        """True from the step that makes the check's consumer group to the one that deletes it."""

    def connect(self) -> str:
        """Connect by TCP, and ask for ApiVersions and Metadata. Return a line with the number of brokers; the command
        ends, or kafka-python's error is raised, if the server does not answer.
        """
        reach(self.bootstrap)
        with admin(self.bootstrap) as server:
            count = len(brokers(server))
        return f"{self.bootstrap} answers and names {count} {'broker' if count == 1 else 'brokers'}"

    def addresses(self) -> str:
        """Check that every broker can be reached at the address that the server gives for it, and that it says which
        APIs it serves. Return a line with the addresses; CliError if one cannot be reached.
        """
        with admin(self.bootstrap) as server:
            named_brokers = brokers(server)
            for broker, address in named_brokers:
                if problem := unreachable(address):
                    fail(misadvertised(broker, address, problem))
            versions = [server.get_broker_version_data(broker) for broker, _ in named_brokers]
        shown = ", ".join(str(address) for _, address in named_brokers[:3])
        return f"{shown}: {len(versions[0].api_versions)} APIs, as Kafka {versions[0].broker_version_str}"

    def create_topic(self) -> str:
        """Create the check's topic, of two partitions, by CreateTopics, and check that Metadata shows it. Return a line
        that says so; CliError if the server refuses it, kafka-python's error if it does not show it after 20 s.
        """
        with admin(self.bootstrap) as server:
            wanted = {self.name: {"num_partitions": 2, "configs": {"retention.ms": "3600000"}}}
            result = server.create_topics(wanted, raise_errors=False)["topics"][0]
            if result["error_code"]:
                fail(reason(result["error_code"], result["error_message"]))
            server.wait_for_topics([self.name], timeout_ms=int(STEP_SECONDS * 1000))
        return f"{self.name} with 2 partitions"

    def change_config(self) -> str:
        """Change a config of the check's topic by IncrementalAlterConfigs, and read it back by DescribeConfigs. Return
        a line that says so; CliError if the server refuses it, or the config does not read so after 20 s.
        """
        from kafka.admin import ConfigResource, ConfigResourceType

        with admin(self.bootstrap) as server:
            change = ConfigResource(ConfigResourceType.TOPIC, self.name, {"retention.ms": "7200000"})
            answer = str(server.alter_configs([change], raise_on_unknown=False)["topic"][self.name])
            if answer != "OK":
                fail(named(answer))
            end = clock.monotonic() + STEP_SECONDS
            while True:
                asked = ConfigResource(ConfigResourceType.TOPIC, self.name)
                value = server.describe_configs([asked])["topic"][self.name].get("retention.ms", {}).get("value")
                if value == "7200000":
                    return "retention.ms set and read back"
                if clock.monotonic() > end:
                    fail(f"retention.ms was set to 7200000 and reads {value}")
                time.sleep(0.2)

    def produce_and_fetch(self, codec: str) -> str:
        """Produce 50 records in this codec with acks=all as an idempotent producer, fetch them, and compare every byte.
        Return a line that says so; CliError if anything differs. `end` is set to the offset behind them.
        """
        from kafka import TopicPartition

        sent = [
            (b"key-%d" % number, b"%s record %d " % (codec.encode(), number) * 20, [("codec", codec.encode())])
            for number in range(RECORDS)
        ]
        compression = None if codec == "none" else codec
        with client("KafkaProducer", self.bootstrap, compression_type=compression, linger_ms=20) as producer:
            futures = [producer.send(self.name, value, key, headers, 0) for key, value, headers in sent]
            offsets = [future.get(timeout=STEP_SECONDS).offset for future in futures]
        self.end = offsets[-1] + 1
        if offsets != list(range(offsets[0], offsets[0] + RECORDS)):
            fail(f"offsets are not one after the other: {offsets[:5]}...")
        partition = TopicPartition(self.name, 0)
        with client("KafkaConsumer", self.bootstrap, enable_auto_commit=False) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, offsets[0])
            got = self._read(consumer, RECORDS)
        if [record.offset for record in got] != offsets:
            fail(f"sent offsets {offsets[0]} to {offsets[-1]}, read {[record.offset for record in got][:5]}...")
        for record, (key, value, headers) in zip(got, sent, strict=True):
            if (record.key, record.value, list(record.headers)) != (key, value, headers):
                fail(f"the record at offset {record.offset} is not what was sent")
        return f"{RECORDS} produced, fetched and equal"

    def find_offsets(self) -> str:
        """Ask ListOffsets for the first offset, for the end, and for an offset by time. Return a line with the three;
        CliError if one is wrong.
        """
        from kafka import TopicPartition
        from kafka.protocol.consumer import OffsetSpec, OffsetTimestamp

        partition = TopicPartition(self.name, 0)
        with admin(self.bootstrap) as server:
            offsets = [
                server.list_partition_offsets({partition: spec})[partition].offset
                for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetTimestamp(1))
            ]
        if offsets != [0, self.end, 0]:
            fail(f"first, end and by time should be 0, {self.end}, 0 and are {', '.join(map(str, offsets))}")
        return f"first 0, end {self.end}, by time 0"

    def consumer_group(self) -> str:
        """Consume as a member of a group: JoinGroup, SyncGroup, Fetch, OffsetCommit, OffsetFetch, LeaveGroup. Return a
        line that says so; CliError if partitions, records or the committed offset are not as they have to be.
        """
        from kafka import TopicPartition

        self.may_have_group = True
        settings = {"group_id": self.name, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
        with client("KafkaConsumer", self.bootstrap, **settings) as consumer:
            consumer.subscribe([self.name])
            got = self._read(consumer, self.end)
            assigned = len(consumer.assignment())
            consumer.commit()
            committed = consumer.committed(TopicPartition(self.name, 0))
        if len(got) != self.end or assigned != 2:
            fail(f"a member alone should get 2 partitions and {self.end} records, and got {assigned} and {len(got)}")
        if committed != self.end:
            fail(f"offset {self.end} was committed and {committed} came back")
        return f"joined, read {len(got)} records, committed"

    def committed_offset(self) -> str:
        """Ask by DescribeGroups and OffsetFetch, as a client outside of the group, for the offset that the group
        committed. Return a line with it; CliError if it is another, or the group still has a member.
        """
        from kafka import TopicPartition

        with admin(self.bootstrap) as server:
            described = retrying(server.describe_groups, [self.name], seconds=STEP_SECONDS)[self.name]
            if described["error"]:
                fail(named(described["error"]))
            offsets = retrying(server.list_group_offsets, {self.name: None}, seconds=STEP_SECONDS)[self.name]
        committed = offsets.get(TopicPartition(self.name, 0))
        if committed is None or committed.offset != self.end:
            fail(f"should be {self.end} and is {committed.offset if committed else 'not there'}")
        if described["group_state"] != "Empty":
            fail(f"its member has left, so the group should be Empty; it is {described['group_state']}")
        return f"{committed.offset} kept after the member left"

    def delete_group(self) -> str:
        """Delete the check's consumer group by DeleteGroups. Return a line that says so; CliError if the server refuses
        it.
        """
        from kafka import errors

        with admin(self.bootstrap) as server:
            answer = dict(retrying(server.delete_groups, [self.name], seconds=STEP_SECONDS))[self.name]
            if answer != "OK":
                fail(reason(getattr(errors, answer).errno))
        self.may_have_group = False
        return "gone"

    def delete_topic(self) -> str:
        """Delete the check's topic by DeleteTopics, and check that Metadata does not show it any more. Return a line
        that says so; CliError if the server refuses it, or still shows it after 20 s.
        """
        with admin(self.bootstrap) as server:
            result = server.delete_topics([self.name], raise_errors=False)["topics"][0]
            if result["error_code"]:
                fail(reason(result["error_code"], result["error_message"]))
            end = clock.monotonic() + STEP_SECONDS
            while self.name in server.list_topics():
                if clock.monotonic() > end:
                    fail(f"{self.name} was deleted and is still listed")
                time.sleep(0.2)
        return "gone"

    @contextlib.contextmanager
    def cleaning_up(self, worked: set[str]) -> Iterator[None]:
        """Delete the check's group and its topic if an exception such as Ctrl-C ends the block after the step that made
        them, before the one that deletes them. The block's exception goes on.
        """
        try:
            yield
        except BaseException:
            if self.may_have_group:
                with contextlib.suppress(Exception):
                    self.delete_group()
            if "create topic" in worked and "delete topic" not in worked:
                with contextlib.suppress(Exception):
                    self.delete_topic()
            raise

    @staticmethod
    def _read(consumer: Any, count: int) -> Sequence[Any]:
        """Poll the consumer until it has given `count` records or 20 s have passed; return the records, which may be
        fewer or more.
        """
        records_read: list[Any] = []
        end = clock.monotonic() + STEP_SECONDS
        while len(records_read) < count and clock.monotonic() < end:
            for records in consumer.poll(timeout_ms=500).values():
                records_read += records
        return records_read
