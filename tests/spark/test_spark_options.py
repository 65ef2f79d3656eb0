"""The options of a read: what each means, and what the error for a wrong one tells the user to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.certificates import Authority

from kop.client.offsets import EARLIEST, LATEST
from kop.spark.given import OptionError
from kop.spark.options import ReadOptions, batch_options, stream_options

SERVER = {"kafka.bootstrap.servers": "a:9092, b:9093"}


def batch(**options: str) -> ReadOptions:
    return batch_options(SERVER | {"subscribe": "t"} | {name.replace("__", "."): v for name, v in options.items()})


def stream(**options: str) -> ReadOptions:
    return stream_options(SERVER | {"subscribe": "t"} | {name.replace("__", "."): v for name, v in options.items()})


def settings(**options: str) -> dict[str, Any]:
    return dict(batch(**options).connection.settings)


def test_a_read_needs_servers_and_topics_alone() -> None:
    options = batch()
    assert options.connection.settings["bootstrap_servers"] == ["a:9092", "b:9093"]
    assert options.topics == ("t",)
    assert options.starting.everywhere == EARLIEST
    assert options.ending is None
    assert stream().starting.everywhere == LATEST


def test_names_have_no_case() -> None:
    options = batch_options({"KAFKA.BOOTSTRAP.SERVERS": "a:1", "SUBSCRIBEPATTERN": "a.*", "minpartitions": "4"})
    assert (options.pattern, options.min_partitions) == ("a.*", 4)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "spark.read.options(...).table(...)"),
        ({"subscribe": "t"}, "set kafka.bootstrap.servers to HOST:PORT of a server, with commas between several"),
        (SERVER, "set one of subscribe, subscribePattern and assign"),
        (SERVER | {"subscribe": "a", "assign": '{"a": [0]}'}, "set one of subscribe and assign"),
        (SERVER | {"assign": "{}"}, "it names none"),
        (SERVER | {"subscribe": "a,,b"}, "is empty"),
        (SERVER | {"subscribePattern": "("}, "no regular expression"),
        (SERVER | {"subscribe": "t", "startingOffset": "earliest"}, "did you mean startingOffsets?"),
        (SERVER | {"subscribe": "t", "kafka.fetch.max.byte": "1"}, "did you mean kafka.fetch.max.bytes?"),
        (SERVER | {"subscribe": "t", "zebra": "1"}, "docs/spark.md"),
        (SERVER | {"subscribe": "t", "kafka.auto.offset.reset": "earliest"}, "set startingOffsets instead"),
        (SERVER | {"subscribe": "t", "startingmessageid": "1:2"}, "is no JSON"),
        (SERVER | {"subscribe": "t", "startingMessageId": '{"t": {"0": "1"}}'}, "a message id is LEDGER:ENTRY"),
        (SERVER | {"subscribe": "t", "startingMessageId": '{"t": {"0": "²:--1"}}'}, "a message id is LEDGER:ENTRY"),
        (SERVER | {"subscribe": "t", "startingMessageId": '{"t": ["0:1"]}'}, "is not of the form"),
        (SERVER | {"subscribe": "t", "startingMessageId": '{"t": {"0": "1:2"}}'}, "set pulsar.admin.url"),
        (SERVER | {"subscribe": "t", "pulsar.admin.url": "http://a"}, "or leave pulsar.admin.url out"),
        (SERVER | {"subscribe": "t", "startingTimestampInclusive": "false"}, "set startingTimestamp as well"),
        (SERVER | {"subscribe": "t", "endingEventTimeInclusive": "false"}, "set endingEventTime as well"),
        (SERVER | {"subscribe": "t", "includeMetadata": "yes"}, "set includeMetadata to another value"),
        (SERVER | {"subscribe": "t", "topicDomain": "non-persistent"}, "only persistent topics have offsets"),
        (SERVER | {"subscribe": "t", "topicNamespace": "public"}, "is not of the form TENANT/NAMESPACE"),
        (SERVER | {"subscribePattern": "t.*", "topicNamespace": "a/b"}, "write the namespace into subscribePattern"),
        (SERVER | {"subscribe": "t", "decoder": "a:b"}, "set decoderSchema"),
        (SERVER | {"subscribe": "t", "decoder": "a:b", "decoderSchema": "n INT not  null"}, "leave NOT NULL out"),
        (SERVER | {"subscribe": "t", "decoder": "a.b"}, "is not of the form module:function"),
        (SERVER | {"subscribe": "t", "mode": "PERMISSIVE"}, "nothing is decoded"),
        (SERVER | {"subscribe": "t", "maxBytesPerTrigger": "0"}, "is below 1"),
        (SERVER | {"subscribe": "t", "topic": "t"}, "an option of writes"),
        (SERVER | {"subscribe": "t", "subscriptionName": "s"}, "call kop.spark.track_progress"),
        (
            SERVER | {"subscribe": "t", "startingTimestamp": "9", "endingTimestamp": "8"},
            "set endingTimestamp to no ear",
        ),
        (
            SERVER | {"subscribe": "t", "startingOffsets": '{"t": {"0": 9}}', "endingOffsets": '{"t": {"0": 8}}'},
            "set endingOffsets to no less than startingOffsets: the read of t partition 0",
        ),
        (SERVER | {"subscribe": "t", "startingEventTime": "9", "endingEventTime": "8"}, "set endingEventTime"),
        (SERVER | {"subscribe": "t", "startingTimestamp": "9223372036854775808"}, "is above"),
        (SERVER | {"subscribe": "t", "kafka.fetch.max.bytes": "2147483648"}, "is above 2147483647"),
        (SERVER | {"subscribe": "t", "startingOffsets": "latest"}, "set startingOffsets to earliest"),
        (SERVER | {"subscribe": "t", "startingOffsets": '{"t": {"0": -1}}'}, "set startingOffsets to earliest"),
        (SERVER | {"subscribe": "t", "endingOffsets": "earliest"}, "set endingOffsets to latest"),
        (SERVER | {"subscribe": "t", "startingOffsets": '{"t": {"0": -3}}'}, "-2 for earliest"),
        (SERVER | {"subscribe": "t", "startingOffsets": "soon"}, "neither earliest nor latest"),
        (SERVER | {"subscribe": "t", "startingTimestamp": "-1"}, "is below 0"),
        (SERVER | {"subscribe": "t", "startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "none below 0"),
        (SERVER | {"subscribe": "t", "minPartitions": "0"}, "is below 1"),
        (SERVER | {"subscribe": "t", "failOnDataLoss": "no"}, "neither true nor false"),
        (SERVER | {"subscribe": "t", "maxTriggerDelay": "soon"}, "is no duration, as in 10ms"),
        (SERVER | {"subscribe": "t", "kafka.isolation.level": "none"}, "read_uncommitted, read_committed"),
        (SERVER | {"subscribe": "t", "kafka.allow.auto.create.topics": "true"}, "a read makes no topic"),
    ],
)
def test_an_option_that_cannot_be_kept_is_refused_with_what_to_do(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError) as caught:
        batch_options(given)
    assert says in str(caught.value).splitlines()[0]


def test_limits_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(OptionError, match="no more than maxOffsetsPerTrigger"):
        stream(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="5")
    options = stream(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="5", maxTriggerDelay="2m")
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_ms) == (5, 120_000)


def test_of_several_bounds_the_one_counts_that_counts_in_sparks_source() -> None:
    both = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t": {"0": 7}}'}
    assert batch(**both).starting.times == {("t", 0): 7}
    assert batch(**both, startingTimestamp="9").starting.time == 9


def test_bounds_of_time_may_be_inclusive_or_not() -> None:
    both = {"startingTimestamp": "10", "endingTimestamp": "20"}
    options = batch(**both)
    assert (options.starting.time, options.ending and options.ending.time) == (10, 20)
    options = batch(**both, startingTimestampInclusive="false", endingTimestampInclusive="true")
    assert (options.starting.time, options.ending and options.ending.time) == (11, 21)
    options = batch(startingOffsetsByTimestamp='{"t": {"0": 7}}', startingTimestampInclusive="false")
    assert options.starting.times == {("t", 0): 8}


def test_times_of_events_leave_rows_out_and_move_no_bound() -> None:
    options = batch(startingEventTime="10", endingEventTime="20")
    assert (options.event_times, options.starting.everywhere, options.ending) == ((10, 20), EARLIEST, None)
    options = batch(
        startingEventTime="10",
        startingEventTimeInclusive="false",
        endingEventTime="20",
        endingEventTimeInclusive="true",
        startingTimestamp="5",
    )
    assert (options.event_times, options.starting.time) == ((11, 21), 5)
    assert stream(startingEventTime="10").starting.everywhere == EARLIEST
    with pytest.raises(OptionError, match="endingEventTime would never end it"):
        stream(endingEventTime="10")


def test_messages_are_bounds_where_pulsar_can_be_asked() -> None:
    given = {"startingMessageId": '{"t": {"0": "12:5:-1"}}', "pulsar__admin__url": "http://a:8080"}
    options = batch(**given)
    assert (options.starting.messages, options.starting.behind) == ({("t", 0): (12, 5, -1)}, False)
    assert options.pulsar is not None
    assert (options.pulsar.url, options.pulsar.offsets) == ("http://a:8080", None)
    assert batch(**given, startingMessageIdInclusive="false").starting.behind
    options = batch(**given, endingMessageId='{"t": {"0": "12:6:2"}}', endingMessageIdInclusive="true")
    assert options.ending is not None
    assert options.ending.behind
    with pytest.raises(OptionError, match="set one of startingMessageId and startingTimestamp"):
        batch(**given, startingTimestamp="1")


def test_topics_without_a_namespace_get_the_one_that_was_asked_for() -> None:
    assert batch(subscribe="a,b/c/d", topicNamespace="x/y").topics == ("x/y/a", "b/c/d")
    options = batch_options(SERVER | {"assign": '{"a": [1]}', "topicNamespace": "x/y", "topicDomain": "persistent"})
    assert options.assign == (("x/y/a", 1),)


def test_a_stream_may_start_at_latest_in_some_partitions() -> None:
    assert stream(startingOffsets='{"t": {"0": -1, "1": 4}}').starting.each == {("t", 0): -1, ("t", 1): 4}


def test_settings_of_the_connection_become_those_of_kafka_python() -> None:
    made = settings(kafka__client__id="me", kafka__request__timeout__ms="5000", kafka__receive__buffer__bytes="4096")
    assert (made["client_id"], made["request_timeout_ms"], made["security_protocol"]) == ("me", 5000, "PLAINTEXT")
    assert any(option[2] == 4096 for option in made["socket_options"])


JAAS = 'org.apache.kafka.common.security.{0} required username="alice" password="a\\"b;c";'


def test_a_line_of_jaas_gives_the_user() -> None:
    given = {
        "kafka__security__protocol": "SASL_PLAINTEXT",
        "kafka__sasl__mechanism": "PLAIN",
        "kafka__sasl__jaas__config": JAAS.format("plain.PlainLoginModule"),
    }
    made = settings(**given)
    assert (made["sasl_mechanism"], made["sasl_plain_username"]) == ("PLAIN", "alice")
    assert made["sasl_plain_password"] == 'a"b;c'
    given["kafka__sasl__mechanism"] = "SCRAM-SHA-512"
    with pytest.raises(OptionError, match="a line of ScramLoginModule"):
        settings(**given)
    with pytest.raises(OptionError, match=r"kafka\.security\.protocol to SASL_SSL"):
        settings(kafka__sasl__mechanism="PLAIN")


@pytest.mark.parametrize(
    ("mechanism", "line", "says"),
    [
        ("GSSAPI", 'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/k";', "kinit -kt"),
        (
            "SCRAM-SHA-256",
            'org.apache.kafka.ScramLoginModule required username="i" password="h" tokenauth=true;',
            "delegation tokens are not there",
        ),
    ],
)
def test_what_a_line_of_jaas_asks_in_vain_is_refused(mechanism: str, line: str, says: str) -> None:
    sasl = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": mechanism, "kafka.sasl.jaas.config": line}
    with pytest.raises(OptionError, match=says):
        batch_options(SERVER | {"subscribe": "t"} | sasl)


def test_the_class_that_java_needs_for_tokens_is_taken_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    token = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        "kafka.sasl.oauthbearer.token.endpoint.url": f"file://{tmp_path}/token",
        "kafka.sasl.login.callback.handler.class": "org.apache.kafka.OAuthBearerLoginCallbackHandler",
    }
    settings = batch_options(SERVER | {"subscribe": "t"} | token).connection.settings
    assert settings["sasl_mechanism"] == "OAUTHBEARER"
    token["kafka.sasl.login.callback.handler.class"] = "my.Handler"
    with pytest.raises(OptionError, match=r"'my.Handler' is not OAuthBearerLoginCallbackHandler, and no Java class"):
        batch_options(SERVER | {"subscribe": "t"} | token)


def test_no_error_has_a_password_in_it() -> None:
    line = 'PlainLoginModule username="ann" password="open sesame";'
    with pytest.raises(OptionError, match=r"set kafka\.sasl\.jaas\.config to another value: this one is not") as caught:
        batch_options(SERVER | {"subscribe": "t", "kafka.sasl.jaas.config": line})
    assert "sesame" not in str(caught.value)


def test_stores_of_java_are_refused_and_pem_files_taken(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"set kafka\.ssl\.truststore\.type to PEM"):
        settings(kafka__security__protocol="SSL", kafka__ssl__truststore__location="/trust.jks")
    with pytest.raises(OptionError, match="export them as PEM files"):
        settings(kafka__ssl__truststore__type="JKS", kafka__ssl__truststore__location="/trust.jks")
    ca = Authority(tmp_path).pem
    made = settings(
        kafka__security__protocol="SSL",
        kafka__ssl__truststore__type="PEM",
        kafka__ssl__truststore__location=ca,
        kafka__ssl__endpoint__identification__algorithm="",
    )
    assert (made["ssl_cafile"], made["ssl_check_hostname"]) == (ca, False)
