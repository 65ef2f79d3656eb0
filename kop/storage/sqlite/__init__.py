"""The embedded engine: one SQLite database in WAL mode, `synchronous=FULL`, record batches as rows.

What is where
- `schema`: tables, pragmas, the lock on the file.
- `writer`: the one thread that writes; group commit.
- `reader`: reading threads, the queries on batches, look-ups by time.
- `kop.storage.tail_cache`: the newest batches in memory.
- `log`: one partition, and all of them. `topics`: the table of topics. `settings`: what can be set.
- `engine`: all of it together.
- `maintenance`: retention, deletes, snapshots of producers, checkpoints, vacuum. `compaction`: the log cleaner.
"""
