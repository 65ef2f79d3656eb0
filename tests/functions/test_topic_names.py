"""Pulsar's names of topics, as a definition and a function give them."""

from __future__ import annotations

import pytest
from functions.function_kit import context_with, spec_with

from kop.client.properties import connection
from kop.functions.config_reading import read
from kop.functions.context import Effect, Publish
from kop.functions.localrun import names_of
from kop.functions.spec import SpecError
from kop.functions.topics import TopicNameError, TopicNames, check_namespace
from kop.testing import Broker

PULSAR = TopicNames(has_namespaces=True)
KAFKA = TopicNames()


@pytest.mark.parametrize(
    ("names", "name", "known_as"),
    [
        (KAFKA, "orders", "orders"),
        (KAFKA, "orders-partition-3", "orders-partition-3"),
        (KAFKA, "public/default/orders", "orders"),
        (KAFKA, "persistent://public/default/orders", "orders"),
        (TopicNames("acme/shop"), "persistent://acme/shop/orders", "orders"),
        (PULSAR, "orders", "orders"),
        (PULSAR, "persistent://public/default/orders", "public/default/orders"),
        (PULSAR, "acme/shop/orders", "acme/shop/orders"),
    ],
)
def test_a_name_of_pulsar_has_one_on_the_server(names: TopicNames, name: str, known_as: str) -> None:
    assert names.kafka_name(name) == known_as


@pytest.mark.parametrize(
    ("names", "name", "told"),
    [
        (KAFKA, "acme/shop/orders", "name orders alone, or let --topic-namespace be acme/shop"),
        (TopicNames("acme/shop"), "persistent://public/default/orders", "is a topic of public/default"),
        (PULSAR, "non-persistent://public/default/orders", "must be TOPIC, TENANT/NAMESPACE/TOPIC or"),
        (KAFKA, "shop/orders", "must be TOPIC"),
        (PULSAR, "persistent://a/b/orders-partition-3", "name the topic, persistent://a/b/orders"),
        (KAFKA, "public/default/orders-partition-0", "is one partition of a topic"),
    ],
)
def test_a_name_that_the_server_cannot_have_is_refused(names: TopicNames, name: str, told: str) -> None:
    with pytest.raises(TopicNameError, match=told):
        names.kafka_name(name)


def test_patterns_are_of_the_namespace_that_is_listed() -> None:
    assert KAFKA.kafka_pattern("a.*/b") == "a.*/b"
    assert KAFKA.kafka_pattern("persistent://public/default/a.*") == "a.*"
    assert PULSAR.kafka_pattern("persistent://public/default/a.*") == "a.*"
    with pytest.raises(TopicNameError, match="only those of public/default are listed"):
        PULSAR.kafka_pattern("persistent://acme/shop/a.*")
    with pytest.raises(TopicNameError, match="must be persistent://TENANT/NAMESPACE/PATTERN"):
        KAFKA.kafka_pattern("non-persistent://a/b/c")


def test_a_namespace_is_tenant_and_namespace() -> None:
    assert check_namespace("acme/shop") == "acme/shop"
    with pytest.raises(TopicNameError, match="must be TENANT/NAMESPACE"):
        check_namespace("acme")


DEFINITION = """
className: f.F
py: f.py
inputs:
  - persistent://public/default/a
  - acme/shop/b
inputSpecs:
  public/default/c: {schemaType: string}
output: persistent://public/default/out
logTopic: acme/shop/log
maxMessageRetries: 1
deadLetterTopic: public/default/dead
"""


def test_each_topic_of_a_definition_has_the_servers_name() -> None:
    spec, _ = read(DEFINITION.replace("acme/shop", "public/default"), "f.yaml")
    assert list(spec.inputs) == ["a", "b", "c"]
    assert (spec.output, spec.log_topic, spec.dead_letter_topic) == ("out", "log", "dead")
    spec, _ = read(DEFINITION, "f.yaml", PULSAR)
    assert list(spec.inputs) == ["public/default/a", "acme/shop/b", "public/default/c"]


def test_topics_of_other_namespaces_are_refused_with_field_and_line() -> None:
    with pytest.raises(SpecError) as refused:
        read(DEFINITION, "f.yaml")
    assert [mistake.partition(" is a ")[0] for mistake in refused.value.mistakes] == [
        "f.yaml, line 6: inputs.1: acme/shop/b",
        "f.yaml, line 10: logTopic: acme/shop/log",
    ]


def test_a_log_topic_is_no_input() -> None:
    with pytest.raises(SpecError, match="logTopic: a is an input too"):
        read("className: f\npy: f.py\ninputs: [a]\nlogTopic: persistent://public/default/a", "f.yaml")


def test_a_function_publishes_by_pulsars_names() -> None:
    effects: list[Effect] = []
    context = context_with(effects, spec=spec_with())
    context.publish("persistent://public/default/alerts", b"x")
    assert isinstance(effects[0], Publish)
    assert effects[0].topic == "alerts"
    with pytest.raises(TopicNameError, match="acme/shop"):
        context.publish("persistent://acme/shop/alerts", b"x")


def test_a_server_without_namespaces_says_so() -> None:
    with Broker() as broker:
        settings = connection({"bootstrap.servers": broker.bootstrap}, "test").settings
        assert names_of(settings, 10, "acme/shop") == TopicNames("acme/shop")
