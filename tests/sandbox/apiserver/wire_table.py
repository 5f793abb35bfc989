# SPDX-License-Identifier: Apache-2.0
"""Makes `wire.json`: the protobuf field numbers of the kinds that clients send.

The published JSON schemas say what an object looks like but not how protobuf numbers its fields.
Kubernetes states the numbers in the struct tags of its API types; this reads them from a source
tree and writes one line of facts a message. Run it again for a new release:

    python -m tests.sandbox.apiserver.wire_table KUBERNETES_TREE

A message is `"io.k8s.api.core.v1.Pod": "metadata=1 spec=2 status=3"`. After the number, `*` marks
a pointer (its zero value is meant, not merely unset), `@NAME` a message whose fields JSON
writes into its parent.
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
    "node/v1",
    "policy/v1",
    "rbac/v1",
    "resource/v1",
    "resource/v1alpha3",
    "resource/v1beta1",
    "resource/v1beta2",
    "scheduling/v1",
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
    """The messages of a Kubernetes source tree."""
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


def main() -> None:
    """Writes the table of the tree that the command line names."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m {__spec__.name if __spec__ else __name__} KUBERNETES_TREE")
    messages = table_of(Path(sys.argv[1]))
    if not messages:
        sys.exit(f"{sys.argv[1]} is not a Kubernetes source tree: it has no staging/src/k8s.io/api")
    WIRE_FILE.write_text(json.dumps(messages, indent=0, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
