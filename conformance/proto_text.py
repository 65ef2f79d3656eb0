"""The text of a Protobuf schema, as a registry shows a file that was registered as a descriptor.

Owns: proto2 and proto3 with messages, enums, maps, `oneof`, `optional`, imports.
Must not know: registries. Services, extensions and options other than those are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2

_LABELS: Final = {1: "optional ", 2: "required ", 3: "repeated "}
_NAMES: Final = {
    number: name.removeprefix("TYPE_").lower() for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}


def proto_text(descriptor: bytes) -> str:
    """Return the text of a file, of which `descriptor` is the serialized FileDescriptorProto."""
    file = descriptor_pb2.FileDescriptorProto.FromString(descriptor)
    syntax = file.syntax or "proto2"
    lines = [f'syntax = "{syntax}";']
    lines += [f"package {file.package};"] if file.package else []
    lines += [f'import "{name}";' for name in file.dependency]
    for message in file.message_type:
        lines += _message(message, syntax)
    for enum in file.enum_type:
        lines += _enum(enum)
    return "\n".join(lines) + "\n"


def _message(message: Any, syntax: str) -> Iterator[str]:
    yield f"message {message.name} {{"
    entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    for nested in message.nested_type:
        if nested.name not in entries:
            yield from _indented(_message(nested, syntax))
    for enum in message.enum_type:
        yield from _indented(_enum(enum))
    for field in message.field:
        if not field.HasField("oneof_index") or field.proto3_optional:
            yield f"  {_field(field, entries, syntax)}"
    for number, oneof in enumerate(message.oneof_decl):
        members = [field for field in message.field if field.HasField("oneof_index") and field.oneof_index == number]
        if not any(field.proto3_optional for field in members):
            yield f"  oneof {oneof.name} {{"
            yield from (f"    {_type(field)} {field.name} = {field.number};" for field in members)
            yield "  }"
    yield "}"


def _enum(enum: Any) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    yield from (f"  {value.name} = {value.number};" for value in enum.value)
    yield "}"


def _field(field: Any, entries: dict[str, Any], syntax: str) -> str:
    entry = entries.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = entry.field
        return f"map<{_type(key)}, {_type(value)}> {field.name} = {field.number};"
    label = "" if syntax == "proto3" and field.label == 1 and not field.proto3_optional else _LABELS[field.label]
    return f"{label}{_type(field)} {field.name} = {field.number};"


def _type(field: Any) -> str:
    return field.type_name or _NAMES[field.type]


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
