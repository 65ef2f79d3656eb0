"""The memory engine: everything is in the process and goes with it. The smallest engine, and what the others do too.

What is where
- `engine`: all of it together, with the table of topics; the data that outlives an engine within the process.
- `log`: one partition, and the bytes that all logs share.
- `shared`: several brokers of one process on one engine.
"""
