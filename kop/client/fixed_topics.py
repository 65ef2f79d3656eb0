"""Topics of one partition with configs that have to be as they are: made if they are not there, else checked.

Owns: these requests, and what is told of a topic that is another one.
Must not know: what is in the topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

from kafka import KafkaAdminClient, errors
from kafka.admin import ConfigResource, ConfigResourceType

from kop.client.errors import ClientError
from kop.client.properties import known_settings


def ensure_topics(settings: Mapping[str, Any], topics: Mapping[str, Mapping[str, str]]) -> None:
    """Make each topic that does not exist with one partition and its configs, and wait for it; check partitions and
    configs of the others. `settings` are kafka-python's, `topics` configs by topic. ClientError if an existing topic
    has others, or the user may not make one.
    """
    try:
        with closing(KafkaAdminClient(**known_settings(settings, KafkaAdminClient))) as admin:
            for topic, configs in topics.items():
                with suppress(errors.TopicAlreadyExistsError):
                    admin.create_topics({topic: {"num_partitions": 1, "configs": dict(configs)}})
                admin.wait_for_topics([topic])
                _check(admin, topic, configs)
    except (errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError) as error:
        raise ClientError(f"let this user make and describe the topics {', '.join(topics)}: {error!r}") from None


def _check(admin: Any, topic: str, configs: Mapping[str, str]) -> None:
    (described,) = admin.describe_topics([topic])
    count = len(described["partitions"])
    if count != 1:
        raise ClientError(f"make the topic {topic} again with one partition: it has {count}")
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict.fromkeys(configs))
    there = admin.describe_configs([resource], config_filter="all").get("topic", {}).get(topic, {})
    for name, wanted in configs.items():
        value = there.get(name, {}).get("value")
        if value is not None and value != wanted:
            raise ClientError(f"set {name} of the topic {topic} to {wanted}: it is {value}")
