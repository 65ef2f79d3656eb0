"""A route by content, as it is written for Pulsar: each order goes to the topic of its country, in one transaction."""

import json

from pulsar import Context, Function, SerDe


class Json(SerDe):
    """Values as JSON."""

    def serialize(self, input):
        return json.dumps(input).encode()

    def deserialize(self, input_bytes):
        return json.loads(input_bytes)


class RouteFunction(Function):
    """Publishes to the topic that `userConfig` names for the country, else to the one of `other`."""

    def process(self, input: dict, context: Context) -> None:
        topics = context.get_user_config_map()
        topic = topics.get(input["country"], topics["other"])
        context.publish(topic, input, "route.Json", message_conf={"partition_key": str(input["id"])})
