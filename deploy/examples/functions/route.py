"""A route by content, as it is written for Pulsar: each order goes to the topic of its country, in one transaction."""

import json
from typing import Any

from pulsar import Context, Function


class RouteFunction(Function):  # type: ignore[misc]
    """Publishes to the topic that `userConfig` names for the country, else to the one of `other`."""

    def process(self, input: dict[str, Any], context: Context) -> None:
        """Publish an order; there is no result."""
        topics = context.get_user_config_map()
        topic = topics.get(input["country"], topics["other"])
        context.publish(topic, json.dumps(input), message_conf={"partition_key": str(input["id"])})
