# SPDX-License-Identifier: Apache-2.0
"""Writes `wire.json`: the protobuf field numbers of the kinds that clients send.

The published JSON schemas have the fields of an object, but not their protobuf numbers. Kubernetes has the numbers in
the struct tags of its API types. No Python package contains these, so the table cannot be generated when the package is
built. This program reads them from a source tree of Kubernetes:

    python -m tests.sandbox.apiserver.wire_table KUBERNETES_TREE

Run it for each new release. `test_protobuf.py` tells which fields of the published schemas have no number. Messages and
fields that the tree does not have stay in the table, because older releases have them, and Kubernetes never uses a
number again.

A message is `"io.k8s.api.core.v1.Pod": "metadata=1 spec=2 status=3"`. After the number, `*` marks a pointer (its zero
value is meant, not merely unset), and `@NAME` a message whose fields JSON writes into its parent.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dra_driver.sandbox.apiserver.schema.protobuf import WIRE_FILE

# Go package below staging/src/k8s.io -> the prefix of its definitions.
_GROUPS: Final = (
    "admissionregistration/v1",
    "apps/v1",
    "authentication/v1",
    "authorization/v1",
    "autoscaling/v1",
    "batch/v1",
    "coordination/v1",
    "core/v1",
    "discovery/v1",
    "events/v1",
    "networking/v1",
    "node/v1",
    "policy/v1",
    "rbac/v1",
    "resource/v1",
    "resource/v1alpha3",
    "resource/v1beta1",
    "resource/v1beta2",
    "scheduling/v1",
    "scheduling/v1alpha3",
    "scheduling/v1beta1",
    "storage/v1",
)
_SOURCES: Final = {
    **{f"api/{group}": f"io.k8s.api.{group.replace('/', '.')}" for group in _GROUPS},
    "apimachinery/pkg/apis/meta/v1": "io.k8s.apimachinery.pkg.apis.meta.v1",
}
_STRUCT: Final = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD: Final = re.compile(r"^\t(?:(\w+)\s+)?(\S+)\s+`([^`]*)`", re.MULTILINE)
_JSON: Final = re.compile(r'json:"([^",]*)([^"]*)"')
_NUMBER: Final = re.compile(r'protobuf:"\w+,(\d+),')


def table_of(tree: Path) -> dict[str, str]:
    """Return the messages of a Kubernetes source tree."""
    messages = {}
    for folder, prefix in _SOURCES.items():
        for path in sorted((tree / "staging/src/k8s.io" / folder).glob("*.go")):
            if path.name.startswith("zz_generated") or path.name.endswith(("_test.go", ".pb.go")):
                continue
            for name, body in _STRUCT.findall(path.read_text(encoding="utf-8")):
                fields = " ".join(_fields(body, prefix))
                if fields:
                    messages[f"{prefix}.{name}"] = fields
    return messages


def _fields(body: str, prefix: str) -> Iterator[str]:
    for _, kind, tag in _FIELD.findall(body):
        json_tag, number = _JSON.search(tag), _NUMBER.search(tag)
        if json_tag is None or number is None:
            continue
        name, options = json_tag[1], json_tag[2]
        if "inline" in options or not name:
            yield f"={number[1]}@{_definition(kind, prefix)}"
        else:
            yield f"{name}={number[1]}{'*' if kind.startswith('*') else ''}"


def _definition(kind: str, prefix: str) -> str:
    package, _, name = kind.lstrip("*").rpartition(".")
    if not package:
        return f"{prefix}.{name}"
    imported = {"metav1": "io.k8s.apimachinery.pkg.apis.meta.v1", "v1": "io.k8s.api.core.v1"}
    return f"{imported[package]}.{name}"


def merged(known: str, found: str) -> str:
    """Return the fields of a message in both tables, by number. Of one number, the field in `found` counts."""
    fields = {_number(field): field for field in (*known.split(), *found.split())}
    return " ".join(fields[number] for number in sorted(fields))


def _number(field: str) -> int:
    return int(field.partition("=")[2].partition("@")[0].rstrip("*"))


def main() -> None:
    """Add the messages of the tree that the command line names to the table."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m {__spec__.name if __spec__ else __name__} KUBERNETES_TREE")
    messages = table_of(Path(sys.argv[1]))
    if not messages:
        sys.exit(f"{sys.argv[1]} is not a Kubernetes source tree: it has no staging/src/k8s.io/api")
    known = json.loads(WIRE_FILE.read_text(encoding="utf-8"))
    table = {name: merged(known.get(name, ""), messages.get(name, "")) for name in known.keys() | messages.keys()}
    WIRE_FILE.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
