"""A client of any Kafka server, for programs of kop that read and write in bulk: sources, sinks and functions.

Must not know: who reads and writes, pyspark, pyarrow, the gateway.
"""
