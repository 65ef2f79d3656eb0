"""Crash tests of kop's own PySpark sink: `make conformance-spark-crashes`."""
