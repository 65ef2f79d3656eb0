"""Who is behind, as the line of a backlog quota says it."""

from __future__ import annotations

from kop.storage.pulsar.partition.throttle import furthest_behind


def test_the_subscription_that_is_furthest_behind_is_named_with_its_backlog() -> None:
    slow, fast = {"msgBacklog": 1200, "backlogSize": 5_000_000}, {"msgBacklog": 3, "backlogSize": 300}
    stats = {"subscriptions": {"fast": fast, "slow": slow}}
    assert furthest_behind(stats) == "the subscription 'slow' is 1,200 entries (5,000,000 bytes) behind"
    assert furthest_behind({"subscriptions": {"fast": {"msgBacklog": 0, "backlogSize": 0}}}) is None
    assert furthest_behind({}) is None


def test_the_gateways_own_readers_are_not_named() -> None:
    reader = {"msgBacklog": 1, "backlogSize": 5_000_000, "durable": False}
    stuck = {"msgBacklog": 10, "backlogSize": 4_000_000, "durable": True}
    said = furthest_behind({"subscriptions": {"kop-reader-1": reader, "stuck": stuck}})
    assert said == "the subscription 'stuck' is 10 entries (4,000,000 bytes) behind"
    assert furthest_behind({"subscriptions": {"kop-reader-1": reader}}) is None
