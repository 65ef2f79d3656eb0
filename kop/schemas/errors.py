"""The errors of schemas.

Owns: the difference between what a user has to mend and what is wrong with one record, and how errors name a field.
Must not know: formats, registries.
"""

from __future__ import annotations


class SchemaError(Exception):
    """An error for a schema that is not there, that is malformed, or that a registry refuses; the text says what to
    do.
    """


class UnknownSchemaError(SchemaError):
    """An error for a schema that the registry says it does not have."""


class UnresolvableError(SchemaError):
    """An error for a writer's schema that cannot be resolved into the reader's; the text names the field."""


class BadRecordError(ValueError):
    """An error for a record that is not what its schema says; the text says what is wrong with it."""


def below(path: str, name: str) -> str:
    """Return the path by which errors name the field `name` of a struct whose own path is `path`, with a dot between;
    the name alone if `path` is empty.
    """
    return f"{path}.{name}" if path else name
