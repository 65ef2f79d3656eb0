"""Kafka's wire protocol, no I/O: frames and headers, a strict decoder, hand-written Produce and Fetch, state records.

The only package that imports kafka-python's codec, whose internals are not promised stable.
"""
