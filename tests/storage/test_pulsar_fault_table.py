"""What a trouble is called, how often it is said, and what a rate that is exceeded means in milliseconds."""

from __future__ import annotations

import logging

import pytest

from kop.errors import BackendError, ErrorCode, PeerError
from kop.pulsar_client import PulsarError
from kop.pulsar_client.errors import server_error
from kop.pulsar_client.outage import Outage
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.repeats import Lasting, Repeats
from kop.storage.pulsar.faults import Faults, Refused, kafka_error
from kop.storage.pulsar.partition.throttle import BETWEEN_SECONDS, RateExceeded, RateQuestions, still_to_wait

RETRIED = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
"""Kafka's RetriableExceptions among those used here."""
NAMED = {
    ("AuthenticationError", "token expired"): (ErrorCode.KAFKA_STORAGE_ERROR, "kop.pulsar.auth"),
    ("AuthFailed", "no file"): (ErrorCode.KAFKA_STORAGE_ERROR, "kop.pulsar.auth"),
    ("Unauthorized", "401"): (ErrorCode.KAFKA_STORAGE_ERROR, "kop.pulsar.auth"),
    ("AuthorizationError", "no"): (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "grant-permission"),
    ("Forbidden", "403"): (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "admin of the tenant"),
    ("ConnectionLost", "gone"): (ErrorCode.KAFKA_STORAGE_ERROR, "--admin-url"),
    ("Timeout", "30 s"): (ErrorCode.REQUEST_TIMED_OUT, "overloaded"),
    ("ProducerBusy", "Producer with name 'a' is already connected"): (ErrorCode.NOT_LEADER_OR_FOLLOWER, "name"),
    ("ProducerBusy", "Topic 't' reached max producers limit"): (ErrorCode.NOT_LEADER_OR_FOLLOWER, "set-max-producers"),
    ("ConsumerBusy", "Topic reached max consumers limit"): (ErrorCode.NOT_LEADER_OR_FOLLOWER, "set-max-consumers"),
    ("ProducerBlockedQuotaExceededError", "quota"): (ErrorCode.KAFKA_STORAGE_ERROR, "raise the quota"),
    ("IncompatibleSchema", "no schema"): (ErrorCode.POLICY_VIOLATION, "schemas delete"),
    ("EncryptionRequired", "in t"): (ErrorCode.POLICY_VIOLATION, "set-encryption-required --disable"),
    ("TopicTerminatedError", "over"): (ErrorCode.POLICY_VIOLATION, "create another"),
    ("NotAllowedError", "Exceed maximum message size"): (ErrorCode.MESSAGE_TOO_LARGE, "get-max-message-size"),
    ("MessageTooLarge", "6 MiB"): (ErrorCode.MESSAGE_TOO_LARGE, "maxMessageSize"),
    ("NotAllowed", "Topic level policies is disabled"): (ErrorCode.POLICY_VIOLATION, "topicLevelPoliciesEnabled"),
    ("PreconditionFailed", "Exceed maximum number of topics"): (ErrorCode.POLICY_VIOLATION, "set-max-topics"),
    ("TopicNotFound", "t"): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Pulsar says TopicNotFound"),
    ("SomethingNew", "t"): (ErrorCode.KAFKA_STORAGE_ERROR, "Pulsar says SomethingNew"),
}
FINAL = {
    "AuthorizationError",
    "Forbidden",
    "IncompatibleSchema",
    "EncryptionRequired",
    "TopicTerminatedError",
    "NotAllowedError",
    "MessageTooLarge",
    "NotAllowed",
    "PreconditionFailed",
}
"""What the same request meets again until an operator or the client changes something."""


@pytest.mark.parametrize(("code", "said"), NAMED)
def test_a_refusal_has_kafkas_name_and_says_what_to_do(code: str, said: str) -> None:
    expected, part = NAMED[code, said]
    refusal = kafka_error(PulsarError(code, said), "cannot write to t-0")
    assert refusal.code is expected
    says = "" if code in {"ConnectionLost", "Timeout"} else "Pulsar says "
    assert refusal.message.startswith(f"cannot write to t-0: {says}{code}: {said}")
    assert part in refusal.message
    assert (refusal.code in RETRIED) == (code not in FINAL)


def test_encryption_that_is_wanted_is_told_from_metadata_that_cannot_be_read() -> None:
    wanted = server_error(pb.MetadataError, "Encryption is required in persistent://public/default/t")
    assert (wanted.code, wanted.retriable) == ("EncryptionRequired", False)
    passing = server_error(pb.MetadataError, "metadata store session lost")
    assert (passing.code, passing.retriable) == ("MetadataError", True)


def test_a_trouble_is_said_when_it_begins_and_now_and_then() -> None:
    repeats = Repeats()
    assert repeats.say("a", 0) == 0
    assert [repeats.say("a", now) for now in (0.1, 1, 30, 80, 130)] == [None] * 5
    assert repeats.say("b", 130) == 0, "another one"
    assert [repeats.say("a", now) for now in (180, 230, 280)] == [None] * 3
    assert repeats.say("a", 301) == 8, "still: how often it was kept back"
    assert repeats.say("a", 302) is None
    assert repeats.say("a", 363) == 1, "quiet for a minute: it begins once more"


def test_what_is_remembered_of_troubles_is_bounded() -> None:
    repeats = Repeats()
    for number in range(3000):
        assert repeats.say(number, 0) == 0
    assert repeats.say(2999, 1) is None
    assert repeats.say(0, 1) == 0


def test_of_thousands_that_are_alike_a_few_are_named(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    faults = Faults(lambda: now, Outage())
    with caplog.at_level(logging.WARNING):
        for number in range(5000):
            faults.refused(PulsarError("Timeout", "x"), Refused.READS, f"cannot open t-{number}")
        faults.refused(PulsarError("ServiceNotReady", "x"), Refused.READS, "cannot open t-0")
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 11, "ten of the one kind, one of the other"
        assert ["kop_pulsar_faults_total" in line for line in lines] == [False] * 9 + [True, False]
        now = 61.0
        faults.refused(PulsarError("Timeout", "x"), Refused.READS, "cannot open t-7777")
        assert "t-7777" in caplog.records[-1].getMessage()
    assert faults.counts["reads_refused/timeout"] == 5001


def test_every_refusal_is_counted_and_a_client_that_asks_for_what_is_not_there_is_no_trouble(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = Faults(lambda: 7.0, Outage())
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            assert isinstance(
                faults.refused(PulsarError("Timeout", "x"), Refused.WRITES, "cannot write to t-0"), BackendError
            )
        assert isinstance(faults.refused(PulsarError("NotFound", "x"), Refused.READS, "cannot read t-0"), PeerError)
    assert faults.counts == {"writes_refused/timeout": 50, "reads_refused/not_found": 1}
    assert len(caplog.records) == 1


def test_a_refusal_in_a_block_becomes_kafkas_and_is_counted() -> None:
    faults = Faults(lambda: 0.0, Outage())
    refusing = faults.refusing(Refused.REQUESTS, "cannot keep a setting")
    with pytest.raises(BackendError, match="cannot keep a setting: Pulsar says Unauthorized: 401") as caught, refusing:
        raise PulsarError("Unauthorized", "401")
    assert isinstance(caught.value.__cause__, PulsarError)
    assert faults.counts == {"requests_refused/unauthorized": 1}
    with pytest.raises(ValueError, match="not thought of"), faults.refusing(Refused.READS, "cannot read"):
        raise ValueError("not thought of")


def test_a_producer_whose_name_is_held_after_a_restart_is_told_only_if_that_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    faults = Faults(lambda: now, Outage())
    busy = PulsarError("ProducerBusy", "Producer with name 'p' is already connected to topic")
    with caplog.at_level(logging.INFO):
        for at in (0.0, 5.0, 20.0):
            now = at
            refused = faults.refused(busy, Refused.TRANSACTIONS, "cannot add partitions to Pulsar's transaction")
            assert isinstance(refused, BackendError)
        assert not caplog.records
        now = 31.0
        faults.refused(busy, Refused.TRANSACTIONS, "cannot add partitions to Pulsar's transaction")
        assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert faults.counts == {"transactions_refused/producer_busy": 4}


def test_a_limit_on_producers_mends_by_nobody_and_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults(lambda: 7.0, Outage())
    with caplog.at_level(logging.WARNING):
        faults.refused(PulsarError("ProducerBusy", "Topic 't' reached max producers limit"), Refused.WRITES, "no")
    assert ["set-max-producers" in record.getMessage() for record in caplog.records] == [True]


def test_faults_that_last_are_told_from_those_that_come_again() -> None:
    lasting = Lasting()
    assert [lasting.lasts("a", now) for now in (0, 20, 30, 31)] == [False, False, True, True]
    assert not lasting.lasts("b", 31), "another one"
    assert not lasting.lasts("a", 92), "quiet for a minute: it begins once more"
    assert lasting.lasts("a", 122)
    lasting.over("a")
    assert not lasting.lasts("a", 123)


def test_a_rate_is_exceeded_while_pulsars_count_of_it_grows() -> None:
    held = RateExceeded()
    assert held.wants_to_ask(0, 9)
    assert not held.wants_to_ask(0.9, 9)
    assert not held.counted(4, 0.1), "from long ago, for all we know"
    assert not held.now(0.1)
    assert held.wants_to_ask(1, 9)
    assert held.counted(5, 1.1), "it begins"
    assert not held.counted(9, 2.1), "it goes on"
    assert held.now(12)
    assert not held.counted(9, 12.0)
    assert not held.now(12.2)
    assert held.counted(10, 20)


def test_a_short_pause_is_no_reason_to_ask() -> None:
    held = RateExceeded()
    for pause in range(20):
        assert not any(held.wants_to_ask(pause, 0.3) for _ in range(5)), "the receipts of all that was under way"
        for _ in range(15):
            held.in_time()
    assert [held.wants_to_ask(30, 0.5) for _ in range(5)] == [False, False, False, True, False]


def test_late_receipts_of_other_reasons_are_asked_about_ever_less() -> None:
    held = RateExceeded()
    asked = []
    for now in range(300):
        if held.wants_to_ask(now, 2):
            asked.append(now)
            assert not held.counted(7, now)
    assert asked == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]
    assert held.counted(8, 300), "a rate after all"
    assert held.wants_to_ask(301, 2)


def test_the_time_to_wait_is_that_of_what_is_left() -> None:
    assert still_to_wait(0.5, taken=1000, left=0) == 0
    assert still_to_wait(0.5, taken=1000, left=1000) == 500
    assert still_to_wait(0.4, taken=4000, left=1000) == 100
    assert still_to_wait(30, taken=1000, left=1000) == 1000, "as Kafka, no more than a second"
    assert still_to_wait(0.5, taken=0, left=10) == 1000


def test_all_partitions_together_ask_for_rates_four_times_a_second() -> None:
    questions = RateQuestions()
    asked = [now for now in range(1000) if questions.may_ask(now / 1000)]
    assert asked == list(range(0, 1000, int(1000 * BETWEEN_SECONDS)))
