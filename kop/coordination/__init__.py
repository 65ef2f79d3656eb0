"""The base of every coordinator: state in a compacted topic, partitions that it owns, deadlines.

- `state_log`: the topic, replayed and written; what one transition of a state machine writes is in one batch.
- `ownership`: which partitions of the topic this broker coordinates: taking over, loading, doubt, loss.
- `deadlines`: one timer for the deadlines of many state machines. `failed_writes`: what clients are told of them.

A coordinator brings the topic's name, its number of partitions and its configs, and the functions that decode the
records of a partition, put what they decoded in force, and end it.
"""
