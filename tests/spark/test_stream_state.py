"""How far a stream goes: limits, stop points, partitions that come, topics that go or are made again."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pytest
from kafka import errors

from kop.client.connection import SETTLE_SECONDS
from kop.client.offsets import EARLIEST, LATEST, Offsets, TopicPartition
from kop.client.read_client import TopicMetadata
from kop.spark.given import OptionError
from kop.spark.options import ReadOptions, batch_options, stream_options
from kop.spark.planning import DataLossError
from kop.spark.stream_state import IDLE_SECONDS, StreamState
from kop.spark.subscription import MissingTopicError, find_partitions, find_ranges, find_start, resolve_end


@dataclass
class FakeLog:
    """A partition: its first offset, and the time of each record from there on."""

    start: int = 0
    times: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.times)


class FakeServers:
    """Topics in memory, a clock, and the sleeps that a reader asks for: each moves the clock and may be answered."""

    def __init__(self, **topics: int) -> None:
        self.time = 100.0
        self.ids = {topic: f"id-{topic}" for topic in topics}
        self.logs = {(topic, p): FakeLog() for topic, count in topics.items() for p in range(count)}
        self.asked = 0
        self.record_bytes = 100
        self.configs: dict[str, str] = {}
        self.while_it_sleeps: list[tuple[str, int, int]] = []
        self.unheard: dict[str, float] = {}
        """Topics that no server tells until that time: one is asked that has not heard of them yet."""

    def write(self, topic: str, partition: int, count: int, time: int = 0) -> None:
        self.logs[topic, partition].times += [time] * count

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        for topic, partition, count in self.while_it_sleeps:
            self.write(topic, partition, count)
        self.while_it_sleeps.clear()

    def topics(self, names: Collection[str] | None) -> dict[str, TopicMetadata]:
        wanted = self.ids if names is None else [name for name in names if name in self.ids]
        return {
            name: TopicMetadata(self.ids[name], {p: 0 for t, p in self.logs if t == name}, name.startswith("__"))
            for name in wanted
            if self.time >= self.unheard.get(name, 0)
        }

    def list_offsets(self, wanted: Mapping[TopicPartition, int], isolation: int) -> Offsets:
        self.asked += 1
        offsets: Offsets = {}
        for partition, time in wanted.items():
            if partition not in self.logs:
                raise errors.UnknownTopicOrPartitionError(str(partition))
            log = self.logs[partition]
            late = [log.start + i for i, at in enumerate(log.times) if at >= time]
            offsets[partition] = {EARLIEST: log.start, LATEST: log.end}.get(time, late[0] if late else -1)
        return offsets

    def log_sizes(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.record_bytes * len(self.logs[partition].times) for partition in partitions}

    def server_configs(self, names: Collection[str]) -> dict[str, str]:
        return {name: self.configs[name] for name in names if name in self.configs}


def options(**given: str) -> ReadOptions:
    said = {"subscribe": "t", "startingOffsets": "earliest"} | given
    if {"assign", "subscribePattern"} & given.keys():
        del said["subscribe"]
    return stream_options({"kafka.bootstrap.servers": "a:1"} | said)


def progress(servers: FakeServers, **given: str) -> StreamState:
    return StreamState(servers, options(**given), servers.now, servers.sleep)


# Topics


def test_topics_are_found_by_name_by_pattern_and_by_partition() -> None:
    servers = FakeServers(ta=2, tb=1, other=1, __t=1)
    assert list(find_partitions(servers, options(subscribe="tb,ta"))) == [("ta", 0), ("ta", 1), ("tb", 0)]
    assert list(find_partitions(servers, options(subscribePattern=".*t.*"))) == [
        ("other", 0),
        ("ta", 0),
        ("ta", 1),
        ("tb", 0),
    ]
    assert find_partitions(servers, options(assign='{"ta": [1]}')) == {("ta", 1): "id-ta"}
    assert find_partitions(servers, options(subscribePattern="t")) == {}


@pytest.mark.parametrize("given", [{"subscribe": "t,gone"}, {"assign": '{"t": [0, 7]}'}, {"assign": '{"gone": [0]}'}])
def test_a_topic_that_is_named_and_not_there_is_an_error(given: dict[str, str]) -> None:
    servers = FakeServers(t=1)
    begun = servers.time
    with pytest.raises(MissingTopicError, match=r"create it.*(gone|t-7).*UnknownTopicOrPartition"):
        find_partitions(servers, options(**given), servers.now, servers.sleep)
    assert servers.time - begun >= SETTLE_SECONDS


def test_a_new_topic_that_a_server_has_not_heard_of_yet_is_waited_for() -> None:
    servers = FakeServers(t=1, u=1)
    servers.write("u", 0, 3)
    servers.unheard["u"] = servers.time + SETTLE_SECONDS / 2
    said = batch_options({"kafka.bootstrap.servers": "a:1", "subscribe": "t,u"})
    assert [(r.topic, r.end) for r in find_ranges(servers, said, servers.now, servers.sleep)] == [("t", 0), ("u", 3)]
    servers.unheard["u"] = servers.time + SETTLE_SECONDS / 2
    assert progress(servers, subscribe="t,u").initial() == {("t", 0): 0, ("u", 0): 0}


def test_starts_and_ends_become_offsets() -> None:
    servers = FakeServers(t=2)
    for time in (10, 20, 30):
        servers.write("t", 0, 1, time)
    servers.logs["t", 1].start = 5
    partitions = find_partitions(servers, options())
    said = options(startingOffsets='{"t": {"0": 1, "1": -2}}', endingOffsets='{"t": {"0": -1, "1": 5}}')
    assert said.ending is not None
    assert find_start(servers, said, partitions)[0] == {("t", 0): 1, ("t", 1): 5}
    assert resolve_end(servers, said, said.ending, partitions) == {("t", 0): 3, ("t", 1): 5}
    said = options(startingTimestamp="15", startingOffsetsByTimestampStrategy="latest", endingTimestamp="25")
    assert said.ending is not None
    assert find_start(servers, said, partitions)[0] == {("t", 0): 1, ("t", 1): 5}
    assert resolve_end(servers, said, said.ending, partitions) == {("t", 0): 2, ("t", 1): 5}


def test_a_start_that_does_not_fit_is_an_error() -> None:
    servers = FakeServers(t=2)
    partitions = find_partitions(servers, options())
    with pytest.raises(
        OptionError, match=r"set startingOffsets for each partition.* it has t-0, and t-0, t-1 are read"
    ):
        find_start(servers, options(startingOffsets='{"t": {"0": 1}}'), partitions)
    with pytest.raises(OptionError, match="No offset matched in t-0, t-1"):
        find_start(servers, options(startingTimestamp="1"), partitions)


def test_a_batch_is_planned_from_bounds_that_are_in_the_logs(caplog: pytest.LogCaptureFixture) -> None:
    servers = FakeServers(t=2)
    servers.write("t", 0, 10)

    def ranges(**given: str) -> list[tuple[int, int]]:
        said = batch_options({"kafka.bootstrap.servers": "a:1", "subscribe": "t"} | given)
        return [(r.start, r.end) for r in find_ranges(servers, said)]

    assert ranges() == [(0, 10), (0, 0)]
    assert ranges(startingOffsets='{"t": {"0": 10, "1": 0}}', endingOffsets='{"t": {"0": 10, "1": -1}}')[0] == (10, 10)
    beyond = '{"t": {"0": 11, "1": 0}}'
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(
            DataLossError, match=f"^set failOnDataLoss.* {option} has 11 for topic t partition 0, .* 10"
        ):
            ranges(**{option: beyond})
        assert ranges(failOnDataLoss="false", **{option: beyond})[0][1] == 10
        assert f"{option} has 11" in caplog.text


# Batches


def test_a_stream_reads_what_is_new() -> None:
    servers = FakeServers(t=2)
    servers.write("t", 0, 3)
    query = progress(servers)
    start = query.initial()
    assert start == {("t", 0): 0, ("t", 1): 0}
    end = query.next_end(start)
    assert end == {("t", 0): 3, ("t", 1): 0}
    assert [(r.partition, r.start, r.end, r.topic_id) for r in query.ranges(start, end)] == [
        (0, 0, 3, "id-t"),
        (1, 0, 0, "id-t"),
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t": {"0": -1, "1": 5}}'},
        {"startingTimestamp": "7", "startingOffsetsByTimestampStrategy": "latest"},
    ],
)
def test_where_a_stream_from_latest_began_is_not_forgotten_with_its_first_batch(given: dict[str, str]) -> None:
    """Spark asks a restarted query for its start anew where its first batch was not finished."""
    servers = FakeServers(t=2)
    servers.write("t", 0, 100)
    servers.write("t", 1, 5)
    query = progress(servers, **given)
    begun = query.initial()
    servers.write("t", 0, 10)
    first = query.next_end(begun)
    assert first["t", 0] == begun["t", 0] == 100, "the first batch only says where the query began"
    servers.write("t", 0, 10, time=9)
    restarted = progress(servers, **given)
    restarted.ranges(first, first)  # as PySpark 4.0 does
    assert sum(r.size for r in restarted.ranges(restarted.initial(), first)) == 0
    second = restarted.next_end(first)
    assert second["t", 0] == 120
    assert restarted.ranges(first, second)[0].size == 20


def test_only_the_partitions_that_start_at_latest_wait_for_the_second_batch() -> None:
    """PySpark 4.0 and 4.1 ask for the end first, and run one batch alone with Trigger.AvailableNow."""
    servers = FakeServers(t=2)
    servers.write("t", 0, 100)
    servers.write("t", 1, 100)
    query = progress(servers, startingOffsets='{"t": {"0": -1, "1": 30}}')
    end = query.next_end()
    assert end == {("t", 0): 100, ("t", 1): 100}
    assert [r.size for r in query.ranges(query.initial(), end)] == [0, 70]
    servers.write("t", 0, 1)
    assert query.next_end()["t", 0] == 101


def test_an_idle_stream_asks_no_more_often_than_it_may_and_a_busy_one_at_once() -> None:
    servers = FakeServers(t=1)
    query = progress(servers)
    start = query.initial()
    begun, asked = servers.time, servers.asked
    for _ in range(11):
        assert query.next_end(start) == start
    assert servers.time - begun == pytest.approx(10 * IDLE_SECONDS)
    assert servers.asked - asked == 11
    servers.while_it_sleeps.append(("t", 0, 4))
    end = query.next_end(start)
    assert end == {("t", 0): 4}
    begun = servers.time
    query.next_end(end)
    assert servers.time == begun


def test_without_a_start_a_query_goes_on_where_its_last_batch_ended() -> None:
    """PySpark 4.0 and 4.1: a new query is asked for its end first, one from a checkpoint plans its last batch first."""
    servers = FakeServers(t=1)
    servers.write("t", 0, 100)
    new = progress(servers, maxOffsetsPerTrigger="40")
    assert [new.next_end()["t", 0] for _ in range(4)] == [40, 80, 100, 100]
    resumed = progress(servers, maxOffsetsPerTrigger="40")
    assert resumed.ranges({("t", 0): 30}, {("t", 0): 30})[0].size == 0
    assert resumed.next_end() == {("t", 0): 70}


def test_limits_do_not_count_where_spark_wants_all_there_is() -> None:
    servers = FakeServers(t=1)
    servers.write("t", 0, 100)
    query = progress(servers, maxOffsetsPerTrigger="40")
    assert query.next_end({("t", 0): 0}, limited=False) == {("t", 0): 100}
    assert query.latest == {("t", 0): 100}


def test_a_batch_waits_for_the_least_that_it_takes_but_not_for_ever() -> None:
    servers = FakeServers(t=1)
    servers.write("t", 0, 3)
    query = progress(servers, minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    first = query.next_end({("t", 0): 0})
    assert first == {("t", 0): 3}, "the first batch waits for nothing"
    servers.write("t", 0, 3)
    assert query.next_end(first) == first
    servers.write("t", 0, 2)
    assert query.next_end(first) == {("t", 0): 8}
    servers.write("t", 0, 1)
    servers.time += 10
    assert query.next_end({("t", 0): 8}) == {("t", 0): 9}


def test_available_now_ends_where_the_logs_ended_and_waits_for_no_least() -> None:
    servers = FakeServers(t=1)
    servers.write("t", 0, 100)
    query = progress(servers, minOffsetsPerTrigger="50", maxOffsetsPerTrigger="70")
    query.stop_at_latest()
    servers.write("t", 0, 100)
    ends = [{("t", 0): 0}]
    for _ in range(3):
        ends.append(query.next_end(ends[-1]))
    assert [end["t", 0] for end in ends] == [0, 70, 100, 100]


def test_a_stream_stops_at_its_end() -> None:
    servers = FakeServers(t=1)
    query = progress(servers, endingOffsets='{"t": {"0": 50}}')
    servers.write("t", 0, 30)
    end = query.next_end({("t", 0): 0})
    assert end == {("t", 0): 30}
    servers.write("t", 0, 70)
    end = query.next_end(end)
    assert end == {("t", 0): 50}
    assert query.next_end(end) == end


@pytest.mark.parametrize(
    "given", [{"endingTimestamp": "50"}, {"endingOffsetsByTimestamp": '{"t": {"0": 50, "1": 50}}'}]
)
def test_a_stream_goes_on_to_a_time_that_is_still_to_come(given: dict[str, str]) -> None:
    servers = FakeServers(t=2)
    servers.write("t", 0, 2, time=10)
    query = progress(servers, **given)
    end = query.next_end({("t", 0): 0, ("t", 1): 0})
    assert end == {("t", 0): 2, ("t", 1): 0}
    servers.write("t", 0, 3, time=20)
    servers.write("t", 1, 1, time=60)
    end = query.next_end(end)
    assert end == {("t", 0): 5, ("t", 1): 0}
    servers.write("t", 0, 4, time=50)
    servers.write("t", 1, 1, time=20)
    assert query.next_end(end) == end, "a record of that time ends a partition"


def test_a_partition_that_comes_moves_no_stop_point() -> None:
    servers = FakeServers(t=1)
    servers.write("t", 0, 5)
    to_latest = progress(servers, endingOffsets="latest")
    to_offset = progress(servers, endingOffsets='{"t": {"0": 7}}')
    start = {("t", 0): 0}
    for query in (to_latest, to_offset):
        assert query.next_end(start) == {("t", 0): 5}
    servers.logs["t", 1] = FakeLog()
    servers.write("t", 0, 5)
    servers.write("t", 1, 4)
    servers.time += 30
    assert to_latest.next_end(start) == {("t", 0): 5, ("t", 1): 4}
    assert to_offset.next_end(start) == {("t", 0): 7}, "no option says where to end in the new one"


def test_available_now_may_begin_behind_its_end() -> None:
    """Spark asks for the start of a new query after it has taken the end; records may come in between."""
    servers = FakeServers(t=1)
    query = progress(servers, startingOffsets="latest")
    query.stop_at_latest()
    servers.write("t", 0, 3)
    start = query.initial()
    end = query.next_end(start)
    assert query.ranges(start, end)[0].size == 0
    assert query.next_end(end) == end == start


# What comes and goes


def test_partitions_that_come_are_read_from_their_first_record() -> None:
    servers = FakeServers(t=1)
    query = progress(servers, partitionDiscoveryInterval="30s")
    start = query.initial()
    servers.logs["t", 1] = FakeLog()
    servers.write("t", 1, 6)
    assert query.next_end(start) == start, "not looked for yet"
    servers.time += 30
    end = query.next_end(start)
    assert end == {("t", 0): 0, ("t", 1): 6}
    assert [(r.partition, r.start, r.end) for r in query.ranges(start, end)] == [(0, 0, 0), (1, 0, 6)]


def test_no_partitions_are_looked_for_where_that_is_off() -> None:
    servers = FakeServers(t=1)
    query = progress(servers, partitionDiscoveryInterval="-1")
    start = query.initial()
    servers.logs["t", 1] = FakeLog()
    servers.time += 100_000
    assert query.next_end(start) == start


def test_a_partition_that_comes_and_has_lost_records_already_is_lost_data() -> None:
    servers = FakeServers(t=2)
    servers.logs["t", 1].start = 4
    with pytest.raises(DataLossError, match="begins at 4, not 0"):
        progress(servers).ranges({("t", 0): 0}, {("t", 0): 0, ("t", 1): 9})
    servers.configs["kop.pulsar.offsets"] = "packed"
    (_, new) = progress(servers).ranges({("t", 0): 0}, {("t", 0): 0, ("t", 1): 9})
    assert (new.start, new.end) == (4, 9), "offsets that are made of message ids begin anywhere"


def test_a_topic_that_was_made_again_is_lost_data(caplog: pytest.LogCaptureFixture) -> None:
    servers = FakeServers(t=1)
    servers.write("t", 0, 5)
    strict, lenient = progress(servers), progress(servers, failOnDataLoss="false")
    for query in (strict, lenient):
        query.next_end({("t", 0): 0})
    servers.ids["t"] = "another"
    servers.write("t", 0, 5)
    servers.time += 30
    with pytest.raises(DataLossError, match=r"set failOnDataLoss to false.*made again: its id was id-t and is another"):
        strict.next_end({("t", 0): 5})
    with caplog.at_level(logging.WARNING):
        assert lenient.next_end({("t", 0): 5}) == {("t", 0): 10}
    assert "made again" in caplog.text


def test_a_topic_that_is_gone_is_lost_data() -> None:
    servers = FakeServers(t=1, u=1)
    strict, lenient = (progress(servers, subscribe="t,u", failOnDataLoss=fail) for fail in ("true", "false"))
    start = {("t", 0): 0, ("u", 0): 0}
    for query in (strict, lenient):
        query.next_end(start)
    del servers.ids["u"], servers.logs["u", 0]
    servers.time += 30
    with pytest.raises(DataLossError, match="there is no u"):
        strict.next_end(start)
    assert lenient.next_end(start) == {("t", 0): 0}
    assert [r.topic for r in lenient.ranges(start, {("t", 0): 0})] == ["t"]


def test_a_known_topic_that_a_server_has_not_heard_of_yet_is_not_lost() -> None:
    servers = FakeServers(t=1, u=1)
    query = progress(servers, subscribePattern="[tu]", partitionDiscoveryInterval="0")
    start = query.next_end({("t", 0): 0})
    assert start == {("t", 0): 0, ("u", 0): 0}
    servers.write("u", 0, 3)
    servers.unheard["u"] = servers.time + SETTLE_SECONDS / 2
    end = query.next_end(start)
    assert [(r.topic, r.size) for r in query.ranges(start, end)] == [("t", 0), ("u", 3)]
    servers.unheard["u"] = servers.time + SETTLE_SECONDS / 2
    restarted = progress(servers, subscribePattern="[tu]")
    assert restarted.next_end(end) == end
    servers.unheard["u"] = servers.time + SETTLE_SECONDS / 2
    repeated = progress(servers, subscribePattern="[tu]")
    assert [(r.topic, r.size) for r in repeated.ranges({("t", 0): 0}, end)] == [("t", 0), ("u", 3)]


def test_what_is_gone_is_waited_for_once_and_what_is_left_each_time() -> None:
    servers = FakeServers(t=1, u=1, v=1)
    query = progress(servers, subscribe="t,u,v", partitionDiscoveryInterval="0", failOnDataLoss="false")
    start = {("t", 0): 0, ("u", 0): 0, ("v", 0): 0}
    assert query.next_end(start) == start
    del servers.ids["u"], servers.logs["u", 0]
    left = {("t", 0): 0, ("v", 0): 0}
    assert query.next_end(start) == left
    begun = servers.time
    assert query.next_end(start) == left, "the batch was not finished"
    assert query.next_end(left) == left
    assert servers.time - begun < SETTLE_SECONDS
    servers.unheard["v"] = servers.time + SETTLE_SECONDS / 2
    assert query.next_end(left) == left


def test_a_topic_may_go_before_it_is_looked_for_again() -> None:
    servers = FakeServers(t=1, u=1)
    strict, lenient, ending = (
        progress(servers, subscribe="t,u", failOnDataLoss=fail) for fail in ("true", "false", "false")
    )
    start = {("t", 0): 0, ("u", 0): 0}
    ending.stop_at_latest()
    for query in (strict, lenient, ending):
        query.next_end(start)
    del servers.ids["u"], servers.logs["u", 0]
    with pytest.raises(DataLossError, match=r"^set failOnDataLoss to false.*there is no u"):
        strict.next_end(start)
    for query in (lenient, ending):
        assert query.next_end(start) == {("t", 0): 0}


def test_a_planned_batch_may_be_of_a_new_topic_that_is_gone() -> None:
    servers = FakeServers(t=1)
    start, end = {("t", 0): 0}, {("t", 0): 0, ("new", 0): 4}
    with pytest.raises(DataLossError, match="topic new partition 0"):
        progress(servers, subscribePattern=".*").ranges(start, end)
    lenient = progress(servers, subscribePattern=".*", failOnDataLoss="false")
    assert [r.topic for r in lenient.ranges(start, end)] == ["t"]


def test_a_checkpoint_of_another_topic_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    servers = FakeServers(t=1)
    servers.write("t", 0, 4)
    start = {("other", 0): 7}
    query = progress(servers)
    end = query.next_end(start)
    with pytest.raises(
        DataLossError, match=r"^give the query a checkpointLocation.* of topic other partition 0, and.*t p"
    ):
        query.ranges(start, end)
    with caplog.at_level(logging.WARNING):
        (asked,) = progress(servers, failOnDataLoss="false").ranges(start, end)
    assert (asked.topic, asked.start, asked.end) == ("t", 0, 4)
    assert "the checkpoint is of topic other" in caplog.text


def test_a_log_that_is_shorter_for_a_moment_is_not_lost() -> None:
    """A server that takes a partition over may not know its end at once."""
    servers = FakeServers(t=1)
    servers.write("t", 0, 4)
    servers.while_it_sleeps.append(("t", 0, 8))
    assert progress(servers).next_end({("t", 0): 10}) == {("t", 0): 12}


def test_a_log_that_stays_shorter_is_lost_data(caplog: pytest.LogCaptureFixture) -> None:
    servers = FakeServers(t=1)
    servers.write("t", 0, 4)
    begun = servers.time
    query = progress(servers)
    end = query.next_end({("t", 0): 10})
    assert end == {("t", 0): 4}
    assert servers.time - begun >= SETTLE_SECONDS
    with pytest.raises(DataLossError, match=r"^give the query a checkpointLocation.*offset was changed from 10 to 4"):
        query.ranges({("t", 0): 10}, end)
    with caplog.at_level(logging.WARNING):
        (left,) = progress(servers, failOnDataLoss="false").ranges({("t", 0): 10}, end)
    assert left.size == 0
    assert "offset was changed" in caplog.text


# Bytes


def test_a_batch_takes_about_as_many_bytes_as_it_may() -> None:
    servers = FakeServers(t=2)
    servers.write("t", 0, 90)
    servers.write("t", 1, 30)
    stream = progress(servers, maxBytesPerTrigger="4k")
    first = stream.next_end({("t", 0): 0, ("t", 1): 0})
    assert first == {("t", 0): 30, ("t", 1): 10}
    second = stream.next_end(first)
    assert second == {("t", 0): 60, ("t", 1): 20}
    assert stream.next_end(second) == {("t", 0): 90, ("t", 1): 30}


def test_a_record_that_is_larger_than_a_batch_is_a_batch_of_its_own() -> None:
    servers = FakeServers(t=1)
    servers.record_bytes = 10_000
    servers.write("t", 0, 2)
    stream = progress(servers, maxBytesPerTrigger="1k")
    assert stream.next_end({("t", 0): 0}) == {("t", 0): 1}


def test_servers_that_do_not_tell_sizes_limit_nothing_by_bytes_alone() -> None:
    servers = FakeServers(t=1)
    servers.record_bytes = 0
    servers.write("t", 0, 100)
    stream = progress(servers, maxBytesPerTrigger="10", maxOffsetsPerTrigger="50")
    assert stream.next_end({("t", 0): 0}) == {("t", 0): 10}, "an offset counts as a byte at least"
