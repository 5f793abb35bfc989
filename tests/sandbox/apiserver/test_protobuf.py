# SPDX-License-Identifier: Apache-2.0
"""Single objects in protobuf: written back as they were read, they change nothing."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient, Connection, Kind, load_credentials
from dra_driver.kube.kinds import PODS, claims_of, slices_of
from dra_driver.kube.releases import NEWEST_MINOR
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.apiserver import ApiServerOptions
from dra_driver.sandbox.apiserver.groups import builtin_kinds
from dra_driver.sandbox.apiserver.groups.crds import GROUP as JSON_ONLY
from dra_driver.sandbox.apiserver.schema import SchemaType, Shape
from dra_driver.sandbox.apiserver.schema.protobuf import WireError, wire_fields
from dra_driver.sandbox.apiserver.schema.published import schemas_of
from tests.support.apiserver import api_server

PROTOBUF = "application/vnd.kubernetes.protobuf"
POD: Any = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "<d> é"}},
    "spec": {
        "containers": [
            {
                "name": "c",
                "image": "i",
                "ports": [{"containerPort": 80, "name": "http"}],
                "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "1Gi"}},
                "readinessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 3},
                "livenessProbe": {"tcpSocket": {"port": 80}},
                "securityContext": {"privileged": False, "runAsUser": 0},
            }
        ],
        "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": -1, "effect": "NoExecute"}],
    },
}
SLICE: Any = {
    "spec": {
        "driver": "gpu.nvidia.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d", "attributes": {"big": {"int": -5}}, "capacity": {"memory": {"value": "80Gi"}}}],
    }
}
REQUEST: Any = {"name": "r", "exactly": {"deviceClassName": "c", "adminAccess": False}}
OPAQUE: Any = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"b": 1.5, "a": "é<"}}}
CLAIM: Any = {"spec": {"devices": {"requests": [REQUEST], "config": [OPAQUE]}}}
CASES = {
    "Pod": (PODS, POD),
    "Secret": (Kind("v1", "secrets", namespaced=True), {"data": {"k": "AAEC"}, "immutable": False}),
    "ResourceSlice": (slices_of(V1), SLICE),
    "ResourceClaim": (claims_of(V1), CLAIM),
}


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with (
        api_server(tmp_path_factory.mktemp("server")) as path,
        Connection(load_credentials(str(path)), "tests") as found,
    ):
        yield found


@pytest.mark.parametrize("kind", CASES)
def test_an_object_that_is_read_and_written_back_does_not_change(connection: Connection, kind: str) -> None:
    served, value = CASES[kind]
    client = ApiClient(connection)
    name = f"o-{uuid.uuid4().hex[:8]}"
    whole = {"apiVersion": served.api_version, "kind": kind, **value}
    whole["metadata"] = {**value.get("metadata", {}), "name": name}
    created = client.create(served, whole, "default" if served.namespaced else "")
    path = served.path("default" if served.namespaced else "", name)
    answer = connection.request("GET", path, accept=PROTOBUF)
    assert answer.headers["Content-Type"] == PROTOBUF
    assert answer.data.startswith(b"k8s\x00")
    written = connection.request("PUT", path, body=answer.data, content_type=PROTOBUF)
    assert written.status == 200, written.data
    assert client.get_path(path) == created


REQUESTS = (
    ("", "v1", "Binding"),
    ("", "v1", "DeleteOptions"),
    ("authentication.k8s.io", "v1", "TokenRequest"),
    ("authorization.k8s.io", "v1", "SelfSubjectAccessReview"),
    ("autoscaling", "v1", "Scale"),
    ("policy", "v1", "Eviction"),
)
"""Kinds that are only sent to subresources or to be answered."""
HEAD = {"apiVersion", "kind"}
"""The envelope of a message has these fields of an object."""


def numbered(definition: str) -> set[str]:
    """The fields of a message that have a number, with those of inlined messages."""
    try:
        fields = wire_fields(definition).values()
    except WireError:
        return set()
    inlined = {name for field in fields if field.inlined for name in numbered(field.inlined)}
    return inlined | {field.name for field in fields if not field.inlined}


def reachable(nodes: list[SchemaType]) -> Iterator[SchemaType]:
    """These types and all types of their fields, each once."""
    seen: set[int] = set()
    while nodes:
        node = nodes.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            nodes += [*node.fields.values(), *([node.element] if node.element else [])]


@pytest.mark.parametrize("minor", range(32, NEWEST_MINOR + 1))
def test_every_field_of_served_kinds_has_a_number(minor: int) -> None:
    schemas = schemas_of(minor)
    kinds = builtin_kinds(ApiServerOptions(minor=minor).release())
    names = {(kind.group, version, kind.name) for kind in kinds for version in kind.versions if kind.group != JSON_ONLY}
    found = [schemas.find(*name) for name in sorted({*names, *REQUESTS})]
    structs = [node for node in reachable([node for node in found if node is not None]) if node.shape is Shape.STRUCT]
    missing = {
        node.definition: fields
        for node in structs
        if node.definition and (fields := node.fields.keys() - numbered(node.definition) - HEAD)
    }
    assert missing == {}
