"""Record batches without I/O: headers and checks, records, bounded codecs, and the state of idempotent producers."""
