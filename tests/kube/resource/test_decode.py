# SPDX-License-Identifier: Apache-2.0
"""Reading objects: what a mistake is answered with, and what is taken although it is unusual."""

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from dra_driver.kube.resource import (
    ALL,
    AttributeList,
    Device,
    DeviceRequirements,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintSelector,
    MalformedAttribute,
    Node,
    ObjectMeta,
    Quantity,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
    Version,
)
from dra_driver.kube.resource.codec import TAINT_RULE_VERSIONS, V1, DecodeError, decode, encode_taint_rule

JSON = dict[str, Any]

SLICE = """
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: a}
spec:
  driver: gpu.nvidia.com
  pool: {name: node-a, generation: 1, resourceSliceCount: 1}
  nodeName: node-a
  devices:
  - name: gpu-0
    attributes: {type: {string: gpu}, index: {int: 0}, healthy: {bool: true}, driverVersion: {version: 570.158.1}}
    capacity: {memory: {value: 80Gi}}
    taints: [{key: gpu.nvidia.com/xid, effect: NoSchedule}]
    consumesCounters: [{counterSet: c, counters: {memory: {value: 10Gi}}}]
"""

CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c, namespace: team}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {deviceClassName: gpu.nvidia.com, tolerations: [{key: a}]}
    - name: any
      firstAvailable: [{name: big, deviceClassName: large.example.com}]
    config:
    - requests: [gpu]
      opaque: {driver: gpu.nvidia.com, parameters: {kind: GpuConfig}}
status:
  allocation:
    devices:
      results: [{request: gpu, driver: gpu.nvidia.com, pool: node-a, device: gpu-0}]
  reservedFor: [{resource: pods, name: p, uid: u}]
"""

CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec:
  selectors: [{cel: {expression: "true"}}]
  config: [{opaque: {driver: gpu.nvidia.com, parameters: {kind: GpuConfig}}}]
"""

# which object, path to what is put there (a list index is a number), what, the whole error
MISTAKES: list[tuple[str, str, Any, str]] = [
    # forms of another version, with the fix
    (
        SLICE,
        "spec.devices.0.basic",
        {"attributes": {}},
        "spec.devices[0].basic: is the form of resource.k8s.io/v1beta1. In resource.k8s.io/v1 move everything under"
        " 'basic' one level up, beside 'name', or set apiVersion: resource.k8s.io/v1beta1",
    ),
    (
        CLAIM,
        "spec.devices.requests.0.deviceClassName",
        "gpu.nvidia.com",
        "spec.devices.requests[0].deviceClassName: is the form of resource.k8s.io/v1beta1. In resource.k8s.io/v1 put it"
        " under 'exactly', or set apiVersion: resource.k8s.io/v1beta1",
    ),
    (
        CLAIM.replace("io/v1", "io/v1beta1"),
        "spec.devices.requests.0.name",
        "gpu",
        "spec.devices.requests[0].exactly: is the form of resource.k8s.io/v1. In resource.k8s.io/v1beta1 move"
        " everything under 'exactly' one level up, beside 'name', or set apiVersion: resource.k8s.io/v1",
    ),
    (
        SLICE.replace("io/v1", "io/v1beta1"),
        "spec.devices.0.name",
        "gpu-0",
        "spec.devices[0].attributes: is the form of resource.k8s.io/v1. In resource.k8s.io/v1beta1 put it under"
        " 'basic', or set apiVersion: resource.k8s.io/v1",
    ),
    # unknown fields
    (SLICE, "spec.devices.0.atributes", {}, "spec.devices[0].atributes: unknown field; did you mean 'attributes'?"),
    (SLICE, "spec.nodename", "a", "spec.nodename: unknown field; did you mean 'nodeName'?"),
    (SLICE, "sepc", {}, "sepc: unknown field; did you mean 'spec'?"),
    (
        SLICE,
        "spec.pool.zone",
        "a",
        "spec.pool.zone: unknown field (known here: generation, name, resourceSliceCount)",
    ),
    (
        SLICE,
        "spec.devices.0.attributes.type.text",
        "gpu",
        "spec.devices[0].attributes[type].text: unknown field (an attribute has one of string, int, bool, version,"
        " strings, ints, bools, versions)",
    ),
    (
        CLAIM,
        "spec.devices.requests.1.firstAvailable.0.adminAccess",
        True,
        "spec.devices.requests[1].firstAvailable[0].adminAccess: unknown field (known here: allocationMode, capacity,"
        " count, derivedAttributes, deviceClassName, name, selectors, tolerations)",
    ),
    (
        CLAIM,
        "status.allocation.devices.results.0.devise",
        "a",
        "status.allocation.devices.results[0].devise: unknown field; did you mean 'device'?",
    ),
    # types
    (SLICE, "spec", [], "spec: must be an object, not a list"),
    (SLICE, "spec.driver", 1, "spec.driver: must be a string, not a number"),
    (SLICE, "spec.allNodes", "yes", "spec.allNodes: must be true or false, not a string"),
    (SLICE, "spec.pool.generation", "1", "spec.pool.generation: must be an integer, not a string"),
    (SLICE, "spec.pool.generation", 1.5, "spec.pool.generation: must be an integer, not a number"),
    (SLICE, "spec.pool.generation", True, "spec.pool.generation: must be an integer, not a boolean"),
    (SLICE, "spec.pool.generation", 1 << 63, "spec.pool.generation: does not fit a 64-bit integer"),
    (SLICE, "spec.devices", {}, "spec.devices: must be a list, not an object"),
    (SLICE, "spec.devices.0", "gpu-0", "spec.devices[0]: must be an object, not a string"),
    (SLICE, "metadata.labels", {"a": 1}, "metadata.labels[a]: must be a string, not a number"),
    (
        SLICE,
        "spec.devices.0.attributes.type",
        "gpu",
        "spec.devices[0].attributes[type]: must be an object such as {string: a100}, not a string",
    ),
    (
        SLICE,
        "spec.devices.0.attributes.index.int",
        "0",
        "spec.devices[0].attributes[index].int: must be of type int, not a string",
    ),
    (
        SLICE,
        "spec.devices.0.attributes.index.int",
        True,
        "spec.devices[0].attributes[index].int: must be of type int, not a boolean",
    ),
    (
        SLICE,
        "spec.devices.0.attributes.all",
        {"ints": [1, "2"]},
        "spec.devices[0].attributes[all].ints: must be a list of ints",
    ),
    (
        SLICE,
        "spec.devices.0.capacity.memory.value",
        "80GB",
        "spec.devices[0].capacity[memory].value: '80GB' is not a quantity: 'GB' is not a unit (use n, u, m, k, M, G, T,"
        " P, E, Ki, Mi, Gi, Ti, Pi, Ei or an exponent)",
    ),
    (
        SLICE,
        "spec.devices.0.capacity.memory.value",
        True,
        'spec.devices[0].capacity[memory].value: must be a quantity such as "40Gi", not a boolean',
    ),
    (
        SLICE,
        "spec.devices.0.capacity.memory",
        "80Gi",
        "spec.devices[0].capacity[memory]: must be an object, not a string",
    ),
    (
        SLICE,
        "spec.devices.0.taints.0.timeAdded",
        5,
        "spec.devices[0].taints[0].timeAdded: must be a time, not a number",
    ),
    (
        CLAIM,
        "spec.devices.config.0.requests",
        ["gpu", 1],
        "spec.devices.config[0].requests[1]: must be a string, not a number",
    ),
    (
        CLAIM,
        "spec.devices.config.0.opaque.parameters",
        "kind: GpuConfig",
        "spec.devices.config[0].opaque.parameters: must be an object, not a string",
    ),
    # required fields
    (SLICE, "spec", None, "spec: is required"),
    (SLICE, "spec.driver", "", "spec.driver: is required"),
    (SLICE, "spec.pool", None, "spec.pool: is required"),
    (SLICE, "spec.pool.resourceSliceCount", None, "spec.pool.resourceSliceCount: is required"),
    (SLICE, "spec.devices.0.name", None, "spec.devices[0].name: is required"),
    (SLICE, "spec.devices.0.capacity.memory.value", None, "spec.devices[0].capacity[memory].value: is required"),
    (
        CLAIM,
        "spec.devices.requests.0.exactly.deviceClassName",
        None,
        "spec.devices.requests[0].exactly.deviceClassName: is required",
    ),
    (CLAIM, "spec.devices.config.0.opaque", None, "spec.devices.config[0].opaque: is required"),
    (
        CLAIM,
        "spec.devices.requests.0.exactly",
        None,
        "spec.devices.requests[0]: exactly one of exactly and firstAvailable must be set",
    ),
    (
        CLAIM,
        "spec.devices.requests.1.exactly",
        {"deviceClassName": "a"},
        "spec.devices.requests[1]: exactly one of exactly and firstAvailable must be set",
    ),
    # not an object that we know
    (
        SLICE,
        "kind",
        "ResourceSlices",
        "kind: 'ResourceSlices' of resource.k8s.io/v1 is not supported (use ResourceSlice,"
        " DeviceClass, ResourceClaim, ResourceClaimTemplate)",
    ),
    (SLICE, "kind", None, "not a Kubernetes object: apiVersion and kind are missing"),
    (
        SLICE,
        "apiVersion",
        "resource.k8s.io/v1alpha3",
        "apiVersion: 'resource.k8s.io/v1alpha3' is not supported for kind"
        " 'ResourceSlice' (use resource.k8s.io/v1, resource.k8s.io/v1beta2, resource.k8s.io/v1beta1)",
    ),
    (SLICE, "apiVersion", "apps/v1", "apiVersion: 'apps/v1' is not supported for kind 'ResourceSlice'"),
]


def load(text: str) -> JSON:
    """A document as YAML loaders give it."""
    value: JSON = yaml.load(text, yaml.CSafeLoader)
    return value


def changed(text: str, path: str, value: Any) -> JSON:
    """The document with `value` at `path`."""
    document = copy.deepcopy(load(text))
    where: Any = document
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        where = where[part]
    where[last] = value
    return document


def in_words(path: str) -> str:
    """The path as errors have it, without the indices: `spec.devices.0.capacity.memory` becomes
    `spec.devices[].capacity[memory]`.
    """
    return re.sub(r"\.(attributes|capacity)\.(\w+)", r".\1[\2]", re.sub(r"\.\d+", "[]", path))


def only_device(document: JSON) -> Device:
    """The device of a slice with one."""
    decoded = decode(document)
    assert isinstance(decoded, ResourceSlice)
    (device,) = decoded.devices
    return device


@pytest.mark.parametrize(("text", "path", "value", "error"), MISTAKES, ids=[case[3][:60] for case in MISTAKES])
def test_a_mistake_is_answered_with_its_place_and_what_to_do(text: str, path: str, value: Any, error: str) -> None:
    with pytest.raises(DecodeError) as raised:
        decode(changed(text, path, value))
    assert str(raised.value) == error
    assert error.startswith(raised.value.path)
    assert error.endswith(raised.value.problem)


@pytest.mark.parametrize("value", ["text", None, 5, [], [{}]])
def test_value_that_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(DecodeError, match="a Kubernetes object is a mapping, not "):
        decode(value)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (SLICE, "sepc"),
        (SLICE, "metadata.zone"),
        (SLICE, "spec.pool.zone"),
        (SLICE, "spec.devices.0.compatibilityGroups"),
        (SLICE, "spec.devices.0.attributes.type.text"),
        (SLICE, "spec.devices.0.capacity.memory.unit"),
        (SLICE, "spec.devices.0.consumesCounters.0.zone"),
        (SLICE, "spec.devices.0.taints.0.why"),
        (CLAIM, "spec.devices.requests.0.exactly.zone"),
        (CLAIM, "status.allocation.devices.results.0.zone"),
        (CLAIM, "status.conditions"),
        (CLAIM, "spec.devices.config.0.opaque.kind"),
    ],
)
def test_objects_of_a_newer_server_are_read_leniently(text: str, path: str) -> None:
    document = changed(text, path, ["new"])
    with pytest.raises(DecodeError, match="unknown field"):
        decode(document)
    found = decode(document, strict=False)
    assert not isinstance(found, Node)
    assert found.unread == (in_words(path),)
    assert replace(found, unread=()) == decode(load(text))


@pytest.mark.parametrize(
    ("text", "path", "value", "unread"),
    [
        (CLASS, "spec.selectors.0", {"rego": {"rule": "true"}}, "spec.selectors[].rego"),
        (CLASS, "spec.config.0", {"structured": {"driver": "d"}}, "spec.config[].structured"),
        (CLAIM, "spec.devices.config.0", {"structured": {"driver": "d"}}, "spec.devices.config[].structured"),
        (CLAIM, "spec.devices.requests.0", {"name": "gpu", "either": []}, "spec.devices.requests[].either"),
    ],
)
def test_a_form_that_only_a_newer_server_knows_is_unread(text: str, path: str, value: Any, unread: str) -> None:
    document = changed(text, path, value)
    with pytest.raises(DecodeError):
        decode(document)
    found = decode(document, strict=False)
    assert not isinstance(found, Node)
    assert found.unread == (unread,)


def test_an_unread_field_of_many_devices_is_named_once() -> None:
    document = load(SLICE)
    document["spec"]["devices"] = [{"name": f"gpu-{number}", "zone": "a"} for number in range(3)]
    found = decode(document, strict=False)
    assert isinstance(found, ResourceSlice)
    assert found.unread == ("spec.devices[].zone",)


@pytest.mark.parametrize("version", TAINT_RULE_VERSIONS)
def test_a_taint_rule_is_read_in_every_served_version(version: str) -> None:
    spec = {"deviceSelector": {"pool": "node-a"}, "taint": {"key": "k", "effect": "NoExecute"}}
    rule = decode({"apiVersion": version, "kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": spec})
    taint = DeviceTaint("k", "NoExecute")
    assert rule == DeviceTaintRule(ObjectMeta(name="r"), taint, DeviceTaintSelector(pool="node-a"))


@pytest.mark.parametrize("selector", [None, {}, {"driver": "", "device": "gpu-0"}])
def test_an_encoded_taint_rule_selects_the_same_devices(selector: JSON | None) -> None:
    spec: JSON = {"taint": {"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": "2026-11-01T00:00:00Z"}}
    if selector is not None:
        spec["deviceSelector"] = selector
    document = {"apiVersion": V1.api_version, "kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": spec}
    rule = decode(document)
    assert isinstance(rule, DeviceTaintRule)
    assert encode_taint_rule(rule) == document


def test_lenient_reading_still_checks_types() -> None:
    with pytest.raises(DecodeError, match=r"spec\.driver: must be a string"):
        decode(changed(SLICE, "spec.driver", 1), strict=False)


def test_a_new_kind_of_attribute_leaves_the_attribute_without_a_value() -> None:
    document = changed(SLICE, "spec.devices.0.attributes.speed", {"float": 1.5})
    decoded = decode(document, strict=False)
    assert isinstance(decoded, ResourceSlice)
    assert decoded.devices[0].attributes["speed"] == MalformedAttribute({})


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (SLICE, "metadata.labels"),
        (SLICE, "metadata.creationTimestamp"),
        (SLICE, "spec.allNodes"),
        (SLICE, "spec.nodeSelector"),
        (SLICE, "spec.sharedCounters"),
        (SLICE, "spec.nonsense"),
        (SLICE, "spec.devices.0.basic"),
        (SLICE, "spec.devices.0.attributes.type.int"),
        (SLICE, "spec.devices.0.bindingConditions"),
        (CLAIM, "spec.devices.requests.0.firstAvailable"),
        (CLAIM, "spec.devices.requests.0.exactly.count"),
        (CLAIM, "spec.devices.requests.0.exactly.capacity"),
        (CLAIM, "spec.devices.constraints"),
        (CLAIM, "status.devices"),
    ],
)
def test_null_is_absence(text: str, path: str) -> None:
    assert decode(changed(text, path, None)) == decode(load(text))


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        ({}, {}),
        ({"string": None}, {}),
        ({"string": "a", "int": 1}, {"string": "a", "int": 1}),
        ({"bool": False, "bools": [True]}, {"bool": False, "bools": [True]}),
    ],
)
def test_an_attribute_with_none_or_several_values_is_kept_as_malformed(value: JSON, fields: JSON) -> None:
    device = only_device(changed(SLICE, "spec.devices.0.attributes.odd", value))
    assert device.attributes["odd"] == MalformedAttribute(fields)


@pytest.mark.parametrize(
    ("value", "attribute"),
    [
        ({"string": ""}, ""),
        ({"bool": False}, False),
        ({"int": 0}, 0),
        ({"int": -(1 << 63)}, -(1 << 63)),
        ({"version": "1.2.3"}, Version("1.2.3")),
        ({"string": "a", "int": None}, "a"),
        ({"strings": ["a", "b"]}, AttributeList("strings", ("a", "b"))),
        ({"versions": ["1.0.0"]}, AttributeList("versions", (Version("1.0.0"),))),
        ({"ints": []}, AttributeList("ints", ())),
    ],
)
def test_attributes_have_the_type_of_their_field(value: JSON, attribute: object) -> None:
    found = only_device(changed(SLICE, "spec.devices.0.attributes.a", value)).attributes["a"]
    assert (found, type(found)) == (attribute, type(attribute))


@pytest.mark.parametrize(
    ("value", "quantity"),
    [(80, "80"), (1.5, "1500m"), (1e3, "1k"), (0.1, "100m"), (10**20, "100E"), ("80Gi", "80Gi"), (1e22, "1e22")],
)
def test_numbers_are_quantities_too(value: object, quantity: str) -> None:
    device = only_device(changed(SLICE, "spec.devices.0.capacity.memory.value", value))
    assert device.capacity["memory"].value == Quantity.parse(quantity)


@pytest.mark.parametrize(
    ("written", "time"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ('"2026-01-02T03:04:05Z"', "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05+02:00", "2026-01-02T03:04:05+02:00"),
        ("", ""),
    ],
)
def test_times_may_be_what_yaml_makes_of_them(written: str, time: str) -> None:
    text = SLICE.replace("effect: NoSchedule", f"effect: NoSchedule, timeAdded: {written}")
    (taint,) = only_device(load(text)).taints
    assert taint.time_added == time


def claim_requirements(exactly: JSON) -> DeviceRequirements:
    """The requirements of a claim with this exact request."""
    decoded = decode(changed(CLAIM, "spec.devices.requests.0.exactly", exactly))
    assert isinstance(decoded, ResourceClaim)
    found = decoded.spec.requests[0].exactly
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("written", "mode", "count"),
    [
        ({}, "ExactCount", 1),
        ({"count": 3}, "ExactCount", 3),
        ({"count": 0}, "ExactCount", 0),
        ({"allocationMode": "ExactCount"}, "ExactCount", 1),
        ({"allocationMode": "All"}, ALL, 0),
        ({"allocationMode": "Some"}, "Some", 1),  # kept: a stored object may be newer than us
    ],
)
def test_requests_have_the_apis_defaults(written: JSON, mode: str, count: int) -> None:
    requirements = claim_requirements({"deviceClassName": "c", "tolerations": [{}], **written})
    assert (requirements.allocation_mode, requirements.count) == (mode, count)
    assert requirements.tolerations[0].operator == "Equal"


def test_an_allocation_names_the_request_and_its_alternative() -> None:
    decoded = decode(changed(CLAIM, "status.allocation.devices.results.0.request", "any/big"))
    assert isinstance(decoded, ResourceClaim)
    assert decoded.allocation is not None
    (result,) = decoded.allocation.results
    assert (result.request, result.base_request) == ("any/big", "any")


def test_a_template_hands_its_labels_to_claims() -> None:
    claim = load(CLAIM)
    template = {
        **claim,
        "kind": "ResourceClaimTemplate",
        "spec": {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": claim["spec"]},
    }
    del template["status"]
    decoded = decode(template)
    assert isinstance(decoded, ResourceClaimTemplate)
    assert (dict(decoded.labels), dict(decoded.annotations)) == ({"a": "b"}, {"c": "d"})
    of_claim = decode(claim)
    assert isinstance(of_claim, ResourceClaim)
    assert decoded.spec == of_claim.spec


def test_a_flat_request_of_v1beta1_is_read() -> None:
    flat = changed(
        CLAIM.replace("io/v1", "io/v1beta1"), "spec.devices.requests.0", {"name": "gpu", "deviceClassName": "c"}
    )
    decoded = decode(flat)
    assert isinstance(decoded, ResourceClaim)
    assert decoded.spec.requests[0].exactly == DeviceRequirements("c")
