"""Schemas of records: registries, and what turns bytes into typed columns of pyarrow and back.

Owns: what a schema means as a type, how records are framed, which version of a schema reads which record.
Must not know: pyspark, Kafka's protocol, where records come from.

Errors: `SchemaError` is what a user has to mend, and ends a read or a write. What is wrong with one record is a text,
told beside the column by the record's row, so that no other record goes with it.
"""
