"""An enrichment: orders get the name of their customer, from a topic that is a table of customers by key."""

from typing import Any


class EnrichFunction:
    """Keeps the table in the state of the function, so that a restart need not read it again."""

    def process(self, record: dict[str, Any] | None, context: Any) -> dict[str, Any] | None:
        """Return an order with its customer. One whose customer is not there yet is tried again."""
        if context.get_current_message_topic_name() == context.get_user_config_value("table"):
            self._keep(context.get_message_key(), record, context)
            return None
        if record is None:
            return None
        name = context.get_state(f"customer/{record['customer']}")
        if name is None:
            raise LookupError(f"there is no customer {record['customer']}")
        return record | {"name": name.decode()}

    def _keep(self, customer: str, record: dict[str, Any] | None, context: Any) -> None:
        if record is None:
            context.del_counter(f"customer/{customer}")  # of a value, too
        else:
            context.put_state(f"customer/{customer}", record["name"])
