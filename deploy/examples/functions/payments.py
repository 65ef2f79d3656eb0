"""Dead letters: a payment that cannot be read is tried again twice, then put aside with the reason."""

from typing import Any


class PaymentFunction:
    """Adds the amount in cents."""

    def process(self, payment: dict[str, Any], context: Any) -> dict[str, Any]:
        """Return the payment; KeyError and ValueError make it a dead letter in the end."""
        cents = round(float(payment["amount"]) * 100)
        if cents <= 0:
            raise ValueError(f"an amount of {cents} cents")
        context.get_logger().info("payment %s", payment["id"])
        return payment | {"cents": cents}
