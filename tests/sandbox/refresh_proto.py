# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.sandbox.refresh_proto KUBERNETES_TREE`: add the protobuf messages of a Kubernetes release.

KUBERNETES_TREE is a source tree of Kubernetes. It has the types and numbers of fields in the files `generated.proto` of
its API packages. The struct tags of its Go types tell the name of a field in JSON, and the Go type whether the field is
a pointer. The program writes names, types and numbers to `dra_driver/sandbox/proto`. Git shows the changes.

Messages and fields that the tree does not have stay, because older releases have them, and Kubernetes never uses a
number again. For a new version of a group, add its package to `PACKAGES`. `test_protobuf.py` tells which fields of the
published schemas are not defined, or with another type.
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet

from dra_driver.sandbox.proto import FOLDER, compile_definitions, protoc

PACKAGES: Final = (
    "api/admissionregistration/v1",
    "api/apps/v1",
    "api/authentication/v1",
    "api/authorization/v1",
    "api/autoscaling/v1",
    "api/batch/v1",
    "api/coordination/v1",
    "api/core/v1",
    "api/discovery/v1",
    "api/events/v1",
    "api/networking/v1",
    "api/node/v1",
    "api/policy/v1",
    "api/rbac/v1",
    "api/resource/v1",
    "api/resource/v1alpha3",
    "api/resource/v1beta1",
    "api/resource/v1beta2",
    "api/scheduling/v1",
    "api/scheduling/v1alpha3",
    "api/scheduling/v1beta1",
    "api/storage/v1",
    "apimachinery/pkg/api/resource",
    "apimachinery/pkg/apis/meta/v1",
    "apimachinery/pkg/runtime",
    "apimachinery/pkg/util/intstr",
)
"""Go packages below k8s.io."""

_STRUCT: Final = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD: Final = re.compile(r"^\t(?:\w+\s+)?(\S+)\s+`([^`]*)`", re.MULTILINE)
_JSON: Final = re.compile(r'json:"([^",]*)([^"]*)"')
_NUMBER: Final = re.compile(r'protobuf:"\w+,(\d+),')
_MESSAGE_TYPE: Final = re.compile(r"\.(k8s\.io[\w.]*)\.\w+")
"""The package of a message in the type of a field."""
_HEAD: Final = """\
// SPDX-License-Identifier: Apache-2.0
// Names, types and numbers of the fields in k8s.io/{}. Written by tests/sandbox/refresh_proto.py.
syntax = "proto3";

package {};
"""


@dataclass(frozen=True)
class Field:
    """A field of a message."""

    name: str
    type: str
    """As in a .proto file, with `map<...>` or `repeated`. Messages have their full names, with a dot at the start."""
    pointer: bool
    inlined: bool


Messages = dict[str, dict[int, Field]]
"""The fields of messages by their numbers. The messages have their full names, without a dot at the start."""


def described(descriptors: FileDescriptorSet) -> Messages:
    """Return the messages that protoc has compiled."""
    return {
        f"{file.package}.{message.name}": {field.number: _field(field, message) for field in message.field}
        for file in descriptors.file
        for message in file.message_type
    }


def _field(field: FieldDescriptorProto, message: DescriptorProto) -> Field:
    entry = next((nested for nested in message.nested_type if field.type_name.endswith(f".{nested.name}")), None)
    if entry is not None:
        key, value = map(_type_name, entry.field)
        kind = f"map<{key}, {value}>"
    else:
        repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
        kind = f"repeated {_type_name(field)}" if repeated else _type_name(field)
    return Field(field.name, kind, field.proto3_optional, field.json_name == "inline")


def _type_name(field: FieldDescriptorProto) -> str:
    return field.type_name or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def messages_of(tree: Path) -> Messages:
    """Return the messages of a Kubernetes source tree."""
    root = tree / "staging/src"
    folders = [f"k8s.io/{package}" for package in PACKAGES if (root / "k8s.io" / package / "generated.proto").is_file()]
    if not folders:
        raise SystemExit(f"{tree} is not a source tree of Kubernetes: it has no staging/src/k8s.io/api")
    compiled = FileDescriptorSet.FromString(protoc(root, [f"{folder}/generated.proto" for folder in folders]))
    packages = {folder.replace("/", "."): root / folder for folder in folders}
    found = {name: fields for name, fields in described(compiled).items() if name.rpartition(".")[0] in packages}
    for package, folder in packages.items():
        for message, number, field in _struct_tags(folder):
            of_message = found.get(f"{package}.{message}", {})
            if number in of_message:
                name = field.name or of_message[number].name
                of_message[number] = replace(field, name=name, type=of_message[number].type)
    return found


def _struct_tags(folder: Path) -> Iterator[tuple[str, int, Field]]:
    """Yield the struct, the number and the properties of each field in the Go files of a package, without types."""
    for path in sorted(folder.glob("*.go")):
        if path.name.startswith("zz_generated") or path.name.endswith(("_test.go", ".pb.go")):
            continue
        for struct, body in _STRUCT.findall(path.read_text(encoding="utf-8")):
            for kind, tag in _FIELD.findall(body):
                json, number = _JSON.search(tag), _NUMBER.search(tag)
                if number is not None:
                    name, options = (json[1], json[2]) if json else ("", "")
                    inlined = "inline" in options or (json is not None and not name)
                    yield struct, int(number[1]), Field(name.strip("-"), "", kind.startswith("*"), inlined)


def merged(known: Messages, found: Messages) -> Messages:
    """Return the messages of both. Of one number, the field in `found` counts."""
    return {name: {**known.get(name, {}), **found.get(name, {})} for name in known.keys() | found.keys()}


def files_of(messages: Messages) -> dict[str, str]:
    """Return the text of each .proto file by its path."""
    return {f"{package}.proto": _text(package, messages) for package in PACKAGES}


def _text(package: str, messages: Messages) -> str:
    full = f"k8s.io.{package.replace('/', '.')}"
    blocks = []
    used = set[str]()
    for name in sorted(messages):
        if name.rpartition(".")[0] == full:
            lines = [f"  {_line(number, field, full)}\n" for number, field in sorted(messages[name].items())]
            blocks.append(f"\nmessage {name.rpartition('.')[2]} {{\n{''.join(lines)}}}\n")
            used.update(path for field in messages[name].values() for path in _MESSAGE_TYPE.findall(field.type))
    imports = sorted(path.removeprefix("k8s.io.").replace(".", "/") for path in used - {full})
    statements = "".join(f'import "{path}.proto";\n' for path in imports)
    return _HEAD.format(package, full) + (f"\n{statements}" if statements else "") + "".join(blocks)


def _line(number: int, field: Field, package: str) -> str:
    label = "optional " if field.pointer else ""
    kind = field.type.replace(f".{package}.", "")
    option = ' [json_name = "inline"]' if field.inlined else ""
    return f"{label}{kind} {field.name} = {number}{option};"


def main() -> None:
    """Add the messages of the tree that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.sandbox.refresh_proto", description=__doc__)
    parser.add_argument("tree", type=Path, metavar="KUBERNETES_TREE")
    found = messages_of(parser.parse_args().tree)
    known = described(FileDescriptorSet.FromString(compile_definitions()))
    for path, text in files_of(merged(known, found)).items():
        target = FOLDER / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
