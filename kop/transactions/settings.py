"""The settings of the transaction coordinator. Owns: their names, defaults and limits."""

from __future__ import annotations

from kop.values import Int, Settings, setting


class TransactionSettings(Settings):
    """The settings of transactions: limits and times of transactional ids."""

    transaction_state_log_num_partitions: Int = setting(
        "transaction.state.log.num.partitions", 50, "Partitions of __transaction_state; fixed once it exists.", ge=1
    )
    transaction_max_timeout_ms: Int = setting(
        "transaction.max.timeout.ms", 900_000, "The longest transaction.timeout.ms that a producer may ask for.", ge=1
    )
    transactional_id_expiration_ms: Int = setting(
        "transactional.id.expiration.ms",
        604_800_000,
        "Milliseconds that a transactional id is kept that nobody uses.",
        ge=1,
    )
