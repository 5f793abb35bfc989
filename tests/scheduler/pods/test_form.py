# SPDX-License-Identifier: Apache-2.0
"""Values of wrong types in pods: each gives an error with its place, and none is taken for something else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pytest

from dra_driver.kube.resource.codec import DecodeError
from dra_driver.sandbox.apiserver.schema import SchemaType, Shape
from dra_driver.sandbox.apiserver.schema.published import schemas_of
from dra_driver.scheduler.pods import Attempt, PodDecoder, Policies, Reader, admit_pod
from dra_driver.scheduler.pods.form import _table, form_errors

from .build import JSON, pod

T = TypeVar("T")

SELECTOR = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["d"]}]}
REQUIREMENT = {"key": "a", "operator": "In", "values": ["b"]}
TERM = {
    "topologyKey": "zone",
    "labelSelector": SELECTOR,
    "namespaces": ["ns"],
    "namespaceSelector": SELECTOR,
    "matchLabelKeys": ["app"],
    "mismatchLabelKeys": ["tier"],
}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NODE_TERM = {
    "matchExpressions": [REQUIREMENT],
    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
}
CONTAINER = {
    "name": "c",
    "image": "i",
    "command": ["run"],
    "env": [{"name": "E", "value": "v"}],
    "ports": [{"name": "http", "containerPort": 80, "hostPort": 80, "protocol": "TCP", "hostIP": "1.2.3.4"}],
    "resources": {
        "requests": {"cpu": "1", "nvidia.com/gpu": "1"},
        "limits": {"cpu": 2, "nvidia.com/gpu": 1},
        "claims": [{"name": "gpu", "request": "r"}],
    },
    "restartPolicy": "Always",
    "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}],
}
SPEC: JSON = {
    "containers": [CONTAINER],
    "initContainers": [
        {"name": "i", "image": "i", "restartPolicy": "Always", "resources": {"requests": {"memory": "1Gi"}}}
    ],
    "resources": {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"cpu": "3"}},
    "affinity": {
        "nodeAffinity": {
            REQUIRED: {"nodeSelectorTerms": [NODE_TERM]},
            PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [REQUIREMENT]}}],
        },
        "podAffinity": {REQUIRED: [TERM], PREFERRED: [{"weight": 1, "podAffinityTerm": TERM}]},
        "podAntiAffinity": {REQUIRED: [TERM]},
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": SELECTOR,
            "minDomains": 1,
            "matchLabelKeys": ["app"],
            "nodeAffinityPolicy": "Honor",
            "nodeTaintsPolicy": "Honor",
        }
    ],
    "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5}],
    "nodeSelector": {"a": "b"},
    "schedulingGates": [{"name": "g"}],
    "resourceClaims": [
        {"name": "gpu", "resourceClaimTemplateName": "t"},
        {"name": "other", "resourceClaimName": "x"},
    ],
    "volumes": [
        {"name": "v", "persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
        {"name": "d", "gcePersistentDisk": {"pdName": "x", "readOnly": True}},
        {"name": "r", "rbd": {"monitors": ["m"], "image": "i", "pool": "p"}},
    ],
    "priority": 0,
    "preemptionPolicy": "PreemptLowerPriority",
    "activeDeadlineSeconds": 5,
    "hostNetwork": True,
    "hostPID": True,
    "hostUsers": True,
    "os": {"name": "linux"},
}
STATUS: JSON = {
    "phase": "Running",
    "nominatedNodeName": "n",
    "qosClass": "Burstable",
    "startTime": "2026-01-01T00:00:00Z",
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
    "containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "1"}}],
    "resources": {"requests": {"cpu": "1"}},
    "allocatedResources": {"cpu": "1"},
    "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "x"}],
    "extendedResourceClaimStatus": {"resourceClaimName": "e"},
}
METADATA: JSON = {
    "uid": "u",
    "labels": {"app": "x"},
    "deletionTimestamp": "2026-01-01T00:00:00Z",
    "deletionGracePeriodSeconds": 30,
    "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u", "controller": True}],
}
RICH: JSON = {**pod(metadata=METADATA), "spec": SPEC, "status": STATUS}
WRONG: tuple[Any, ...] = ("x", 3, 1.5, True, [], [1], ["x"], [{}], {"a": {}}, {None: 1}, 10**30)

Path = tuple[str | int, ...]


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        yield (*path, step)
        yield from paths(item, (*path, step))


@contextmanager
def changed(path: Path, wrong: Any) -> Iterator[Any]:
    """Sets the value at a path of the pod, and gives the value that was there. It is restored afterwards."""
    parent: Any = RICH
    for step in path[:-1]:
        parent = parent[step]
    value, parent[path[-1]] = parent[path[-1]], wrong
    try:
        yield value
    finally:
        parent[path[-1]] = value


def attempted(decode: Callable[[], T]) -> tuple[str, T | None]:
    """What `decode` gives, or else the text of its DecodeError."""
    try:
        return "", decode()
    except DecodeError as error:
        return str(error), None


def is_of_type(value: Any, wrong: Any) -> bool:
    """Whether two values have one JSON type, so that the second may be right where the first is."""
    numbers = (int, float)
    if isinstance(value, bool) or isinstance(wrong, bool):
        return type(value) is type(wrong)
    return type(value) is type(wrong) or (isinstance(value, numbers) and isinstance(wrong, numbers))


def test_pod_with_many_fields_is_valid() -> None:
    assert not list(form_errors(RICH))
    assert not admit_pod(RICH, Policies()).refusals


@pytest.mark.parametrize("section", ["metadata", "spec", "status"])
def test_value_of_a_wrong_type_never_fits_and_raises_no_exception(section: str) -> None:
    for path in [(section,), *paths(RICH[section], (section,))]:
        is_listed = False  # one problem of each field is looked for among all problems
        for wrong in WRONG:
            with changed(path, wrong) as value:
                problem, admitted = attempted(partial(admit_pod, RICH, Policies()))
                if admitted is None:
                    assert problem.startswith(section)
                    is_listed = is_listed or problem in map(str, form_errors(RICH))
                    assert is_listed
                elif not admitted.refusals:
                    Attempt(PodDecoder().decode(admitted.pod), Reader().snapshot())
                    is_quantity = path[-2:-1] in (("requests",), ("limits",), ("allocatedResources",))
                    assert is_of_type(value, wrong) or is_quantity, (path, wrong)


@pytest.mark.parametrize("section", ["metadata", "spec", "status"])
def test_stored_pod_with_a_value_of_a_wrong_type_is_read_or_gives_an_error_with_its_place(section: str) -> None:
    refused = 0
    for path in [(section,), *paths(RICH[section], (section,))]:
        for wrong in WRONG:
            with changed(path, wrong):
                problem, decoded = attempted(partial(PodDecoder().decode, RICH))
            if decoded is None:
                assert problem.startswith(section)
                refused += 1
    assert refused


def test_fields_that_are_null_are_absent() -> None:
    spec = {name: None for name in SPEC if name != "containers"}
    nothing = {**pod(), "spec": {**spec, "containers": [CONTAINER | {"resources": None, "ports": None}]}}
    assert not admit_pod(nothing, Policies()).refusals


def test_table_has_the_types_that_kubernetes_publishes() -> None:
    published = schemas_of(37)
    table = _table()["types"]
    scalars = {
        Shape.STRING: ("string",),
        Shape.INTEGER: ("int32", "int64"),
        Shape.BOOLEAN: ("boolean",),
        Shape.QUANTITY: ("quantity",),
        Shape.INT_OR_STRING: ("int-or-string",),
        Shape.TIME: ("time",),
        Shape.MICRO_TIME: ("time",),
        Shape.ANY: ("any",),
    }

    def check(kind: str, node: SchemaType, seen: set[str]) -> None:
        if kind[0] in "[{":
            assert node.shape is (Shape.LIST if kind[0] == "[" else Shape.MAP)
            check(kind[1:-1], node.item, seen)
        elif kind in table:
            assert node.shape is Shape.STRUCT or not table[kind], kind
            if kind not in seen:
                seen.add(kind)
                assert set(table[kind]) == set(node.fields), kind
                for name, inner in table[kind].items():
                    if inner != "any":
                        check(inner, node.fields[name], seen)
        else:
            assert kind in scalars[node.shape], (kind, node.shape)

    for root, group in (("Pod", ""), ("Deployment", "apps"), ("Job", "batch"), ("CronJob", "batch")):
        node = published.find(group, "v1", root)
        assert node is not None
        check(root, node, set())
