# SPDX-License-Identifier: Apache-2.0
"""Objects in protobuf: the definitions of their messages, and their JSON."""

import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from dra_driver.kube.api import ApiClient, Connection, Kind, load_credentials
from dra_driver.kube.kinds import PODS, claims_of, slices_of
from dra_driver.kube.releases import NEWEST_MINOR, OLDEST_MINOR
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.apiserver import ApiServerOptions
from dra_driver.sandbox.apiserver.groups import builtin_kinds
from dra_driver.sandbox.apiserver.groups.crds import GROUP as JSON_ONLY
from dra_driver.sandbox.apiserver.opaque import DEFINITION, OPAQUE_KINDS, texts
from dra_driver.sandbox.apiserver.schema import SchemaType, Shape
from dra_driver.sandbox.apiserver.schema.protobuf import (
    WireError,
    decode_message,
    encode_object,
    is_inlined,
    is_map,
    message_name,
)
from dra_driver.sandbox.apiserver.schema.published import schemas_of
from dra_driver.sandbox.proto import message_class
from tests.support import preloaded
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

WITHOUT_PROTOC = """
import sys
sys.modules["grpc_tools"] = None  # the import system's sign for a missing module
from dra_driver.kube.releases import NEWEST_MINOR
from dra_driver.sandbox.apiserver.schema.protobuf import WireError, decode_message
from dra_driver.sandbox.apiserver.schema.published import schemas_of
pod = schemas_of(NEWEST_MINOR).find("", "v1", "Pod")
try:
    decode_message(b"", pod)
except WireError as error:
    print(error)
"""


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
TYPES = {
    Shape.STRING: {"TYPE_STRING"},
    Shape.INTEGER: {"TYPE_INT32", "TYPE_INT64"},
    Shape.NUMBER: {"TYPE_DOUBLE"},
    Shape.BOOLEAN: {"TYPE_BOOL"},
    Shape.BYTES: {"TYPE_BYTES"},
    Shape.QUANTITY: {"k8s.io.apimachinery.pkg.api.resource.Quantity"},
    Shape.INT_OR_STRING: {"k8s.io.apimachinery.pkg.util.intstr.IntOrString"},
    Shape.TIME: {"k8s.io.apimachinery.pkg.apis.meta.v1.Time"},
    Shape.MICRO_TIME: {"k8s.io.apimachinery.pkg.apis.meta.v1.MicroTime"},
}
"""The types in .proto files of values that are no objects, lists or maps in JSON."""
LISTS = {"k8s.io.api.authentication.v1.ExtraValue", "k8s.io.api.authorization.v1.ExtraValue"}
"""Messages that are lists of texts in JSON."""


def defined_fields(descriptor: Any) -> dict[str, Any]:
    """The fields of a message by their names, with those of inlined messages."""
    found: dict[str, Any] = {}
    for field in descriptor.fields:
        found |= defined_fields(field.message_type) if is_inlined(field) else {field.name: field}
    return found


def has_type(field: Any, node: SchemaType) -> bool:
    """Whether a field is defined with the type that the published schema has."""
    if is_map(field):
        value = field.message_type.fields_by_name["value"]
        return node.shape is Shape.MAP and has_value_type(value, node.item)
    if field.is_repeated:
        return node.shape is Shape.LIST and has_value_type(field, node.item)
    return has_value_type(field, node)


def has_value_type(field: Any, node: SchemaType) -> bool:
    if field.message_type is None:
        return FieldDescriptorProto.Type.Name(field.type) in TYPES.get(node.shape, ())
    name = field.message_type.full_name
    if node.definition:
        return bool(name == message_name(node.definition))
    return name in TYPES.get(node.shape, ()) or (node.shape is Shape.LIST and name in LISTS)


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
def test_every_field_of_served_kinds_is_defined_with_its_type(minor: int) -> None:
    schemas = schemas_of(minor)
    kinds = builtin_kinds(ApiServerOptions(minor=minor).release())
    names = {(kind.group, version, kind.name) for kind in kinds for version in kind.versions if kind.group != JSON_ONLY}
    found = [schemas.find(*name) for name in sorted({*names, *REQUESTS})]
    structs = [node for node in reachable([node for node in found if node is not None]) if node.shape is Shape.STRUCT]
    undefined = []
    for node in structs:
        defined = defined_fields(message_class(message_name(node.definition)).DESCRIPTOR)
        undefined += [
            f"{node.definition}.{name}"
            for name, child in node.fields.items()
            if name not in HEAD and not (name in defined and has_type(defined[name], child))
        ]
    assert len(structs) > 100
    assert undefined == []


# Messages as Go clients write them: fields that are not pointers are there even if they are unset.


def decoded(data: bytes, kind: str = "Pod", group: str = "", version: str = "v1") -> Any:
    return decode_message(data, schema(kind, group, version))


def schema(kind: str, group: str = "", version: str = "v1") -> SchemaType:
    found = schemas_of(NEWEST_MINOR).find(group, version, kind)
    assert found is not None
    return found


def pod(spec: bytes) -> bytes:
    return bytes([2 << 3 | 2, len(spec)]) + spec


def test_unset_field_that_is_no_pointer_is_left_out() -> None:
    host_network_false = bytes([11 << 3, 0])
    assert decoded(pod(host_network_false)) == {}


def test_pointer_to_zero_is_kept() -> None:
    termination_grace_period_zero = bytes([4 << 3, 0])
    assert decoded(pod(termination_grace_period_zero)) == {"spec": {"terminationGracePeriodSeconds": 0}}


def test_required_field_is_kept_with_zero() -> None:
    message: Any = message_class("k8s.io.api.resource.v1.ResourceSlice")
    data = message(spec={"pool": {"name": "n"}}).SerializeToString()
    pool = decoded(data, "ResourceSlice", "resource.k8s.io")["spec"]["pool"]
    assert pool == {"name": "n", "generation": 0, "resourceSliceCount": 0}


def test_fields_of_inlined_message_are_in_the_parent() -> None:
    message: Any = message_class("k8s.io.api.core.v1.Pod")
    volume = {"name": "v", "volumeSource": {"emptyDir": {}}}
    data = message(spec={"volumes": [volume]}).SerializeToString()
    assert decoded(data)["spec"]["volumes"] == [{"name": "v", "emptyDir": {}}]


def test_pointer_to_message_without_fields_is_kept() -> None:
    message: Any = message_class("k8s.io.api.scheduling.v1beta1.PodGroup")
    data = message(spec={"schedulingPolicy": {"basic": {}}}).SerializeToString()
    group = decoded(data, "PodGroup", "scheduling.k8s.io", "v1beta1")
    assert group["spec"]["schedulingPolicy"] == {"basic": {}}


def test_opaque_parameters_keep_their_text() -> None:
    message: Any = message_class("k8s.io.api.resource.v1.ResourceClaim")
    opaque = {"driver": "d", "parameters": {"raw": b'{"b": 1.50}'}}
    config = {"deviceConfiguration": {"opaque": opaque}}
    data = message(spec={"devices": {"config": [config]}}).SerializeToString()
    assert list(texts(decoded(data, "ResourceClaim", "resource.k8s.io"))) == ['{"b": 1.50}']


@pytest.mark.parametrize("minor", range(OLDEST_MINOR, NEWEST_MINOR + 1))
def test_kinds_with_opaque_objects_are_those_whose_texts_are_kept(minor: int) -> None:
    schemas, group = schemas_of(minor), "resource.k8s.io"
    kinds = {kind.name for kind in builtin_kinds(ApiServerOptions(minor=minor).release()) if kind.group == group}
    found = {
        kind
        for kind in kinds
        for version in ("v1", "v1beta2", "v1beta1", "v1alpha3")
        if (node := schemas.find(group, version, kind)) is not None and has_opaque_object(node, set())
    }
    assert found == OPAQUE_KINDS


def has_opaque_object(node: SchemaType, seen: set[int]) -> bool:
    """Whether a value of the type can have an opaque object."""
    if id(node) in seen:
        return False
    seen.add(id(node))
    below = [*node.fields.values(), *([node.element] if node.element is not None else [])]
    return node.definition == DEFINITION or any(has_opaque_object(child, seen) for child in below)


def test_field_of_newer_client_is_skipped() -> None:
    assert decoded(bytes([15 << 3, 1])) == {}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (bytes([2 << 3, 1]), "field k8s.io.api.core.v1.Pod.spec has wire type 0"),
        (bytes([2 << 3 | 2, 9]), "the message cannot be read"),
        (pod(bytes([8 << 3 | 2, 1, 0xFF])), "the message cannot be read"),
    ],
    ids=["another wire type", "truncated", "no UTF-8"],
)
def test_unreadable_message_is_an_error(data: bytes, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        decoded(data)


def test_time_out_of_range_is_an_error() -> None:
    message: Any = message_class("k8s.io.api.core.v1.Pod")
    data = message(metadata={"creationTimestamp": {"seconds": 1 << 60}}).SerializeToString()
    with pytest.raises(WireError, match=r"meta\.v1\.Time in the message cannot be read"):
        decoded(data)


def test_opaque_parameters_that_are_no_json_are_an_error() -> None:
    message: Any = message_class("k8s.io.api.resource.v1.ResourceClaim")
    config = {"deviceConfiguration": {"opaque": {"driver": "d", "parameters": {"raw": b"{"}}}}
    data = message(spec={"devices": {"config": [config]}}).SerializeToString()
    with pytest.raises(WireError, match="RawExtension in the message cannot be read"):
        decoded(data, "ResourceClaim", "resource.k8s.io")


def test_integer_that_a_message_cannot_have_is_an_error() -> None:
    value = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1 << 40}}
    with pytest.raises(WireError, match="no form in protobuf"):
        encode_object(value, schema("Deployment", "apps"))


def test_kind_without_message_is_an_error() -> None:
    with pytest.raises(WireError, match=r"CustomResourceDefinition is not read from protobuf here; send JSON"):
        decoded(b"", "CustomResourceDefinition", JSON_ONLY)


def test_without_protoc_a_checkout_says_what_to_install() -> None:
    done = preloaded.run([sys.executable, "-c", WITHOUT_PROTOC])
    assert (done.returncode, done.stderr) == (0, "")
    assert "pip install 'grpcio-tools" in done.stdout
