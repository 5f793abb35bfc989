# SPDX-License-Identifier: Apache-2.0
"""Validation of new pods: the texts of `pkg/apis/core/validation` of Kubernetes 1.36, whose code gave each of them."""

from typing import Any

import pytest

from dra_driver.scheduler.pods import Policies, admit_pod

from .build import JSON, pod, read

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NAME_PART = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    " character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    " '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    r" '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


def errors(**fields: Any) -> list[str]:
    return list(admit_pod(pod(**fields), Policies()).errors)


def container(name: str = "c", **fields: Any) -> JSON:
    return {"name": name, "image": "i", **fields}


def resources(requests: JSON, limits: JSON | None = None) -> JSON:
    return {"requests": requests, "limits": limits or {}}


C = "spec.containers[0]"


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (
            {"requests": {"memory": "-1"}},
            f'{C}.resources.requests[memory]: Invalid value: "-1": must be greater than or',
        ),
        (
            {"requests": {"nvidia.com/gpu": "500m"}, "limits": {"nvidia.com/gpu": "500m"}},
            f'{C}.resources.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer',
        ),
        (
            {"requests": {"nvidia.com/gpu": 1}},
            f"{C}.resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            resources({"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 2}),
            f'{C}.resources.requests: Invalid value: "1": must be equal to nvidia.com/gpu limit of 2',
        ),
        (
            resources({"cpu": 2}, {"cpu": "1500m"}),
            f'{C}.resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1500m',
        ),
        (
            {"requests": {"gpu": 1}},
            f'{C}.resources.requests[gpu]: Invalid value: "gpu": must be a standard resource type or fully qualified',
        ),
        (
            resources({"cpu": 1, "hugepages-2Mi": "3Mi"}, {"hugepages-2Mi": "3Mi"}),
            f'{C}.resources.limits[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of'
            " hugepages-2Mi",
        ),
        (
            resources({"hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": "4Mi"}),
            f"{C}.resources: Forbidden: HugePages require cpu or memory",
        ),
        (
            {"claims": [{"name": "gpu"}]},
            f'{C}.resources.claims[0]: Not found: "gpu": must be one of the names in pod.spec.resourceClaims which is'
            " empty",
        ),
    ],
)
def test_resources_of_a_container_are_validated(own: JSON, said: str) -> None:
    assert errors(containers=[container(resources=own)])[0].startswith(said)


@pytest.mark.parametrize(
    ("own", "containers", "said"),
    [
        (
            {"requests": {"cpu": "1"}},
            [resources({"cpu": "600m"}), resources({"cpu": "600m"})],
            'spec.resources.requests[cpu]: Invalid value: "1": must be greater than or equal to aggregate container'
            " requests of 1200m",
        ),
        (
            {"limits": {"cpu": "1"}},
            [resources({"cpu": "1"}), resources({}, {"cpu": "2"})],
            'spec.resources.containers[1][cpu].limits: Invalid value: "2": must be less than or equal to pod limits of'
            " 1",
        ),
        (
            {"requests": {"ephemeral-storage": "1"}},
            [{}],
            'spec.resources.requests[ephemeral-storage]: Unsupported value: "ephemeral-storage": supported values:'
            ' "cpu", "hugepages-", "memory"',
        ),
        ({"claims": []}, [{}], "spec.resources.claims: Forbidden: claims may not be set for Resources at pod-level"),
    ],
)
def test_resources_of_the_pod_agree_with_those_of_its_containers(own: JSON, containers: list[JSON], said: str) -> None:
    made = [container(f"c{index}", resources=one) for index, one in enumerate(containers)]
    assert said in errors(resources=own, containers=made)


def test_sum_has_the_format_of_containers_before_that_of_sidecars() -> None:
    own, sidecar = {"requests": {"memory": "1M"}}, container("init", resources=resources({"memory": "1Mi"}))
    made = [container(resources=resources({"memory": "1M"}))]
    said = 'spec.resources.requests[memory]: Invalid value: "1M": must be greater than or equal to aggregate container'
    found = errors(resources=own, containers=made, initContainers=[{**sidecar, "restartPolicy": "Always"}])
    assert found == [f"{said} requests of 2048576"]


def test_duplicate_host_port_is_refused() -> None:
    ports = [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81, "hostPort": 8080}]
    assert errors(containers=[container(ports=ports)]) == [f'{C}.ports[1].hostPort: Duplicate value: "TCP//8080"']


def test_init_containers_may_use_one_host_port_each() -> None:
    ports = [{"containerPort": 80, "hostPort": 80}]
    assert not errors(initContainers=[container("a", ports=ports), container("b", ports=ports)])


def test_host_port_of_a_pod_in_the_network_of_the_host_is_the_port_of_the_container() -> None:
    ports = [{"containerPort": 80}, {"containerPort": 81, "hostPort": 82}]
    assert errors(hostNetwork=True, containers=[container(ports=ports)]) == [
        f"{C}.ports[1].hostPort: Invalid value: 82: must match `containerPort` when `hostNetwork` is true"
    ]


def test_node_name_waits_for_the_scheduling_gates() -> None:
    assert errors(nodeName="a", schedulingGates=[{"name": "g"}]) == [
        "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"
    ]


@pytest.mark.parametrize(
    ("toleration", "said"),
    [
        (
            {"key": "a", "operator": "Lt", "value": "1"},
            '.operator: Unsupported value: "Lt": supported values: "Equal", "Exists", "Lt", "Gt"',
        ),
        ({"key": "a", "operator": "In"}, '.operator: Unsupported value: "In": supported values: "Equal", "Exists"'),
        (
            {"operator": "Equal"},
            '.operator: Invalid value: "Equal": operator must be Exists when `key` is empty, which means "match all'
            ' values and all keys"',
        ),
        (
            {"key": "a", "operator": "Exists", "value": "b"},
            ".operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'",
        ),
        (
            {"key": "a", "operator": "Exists", "tolerationSeconds": 1},
            ".effect: Invalid value: \"\": effect must be 'NoExecute' when `tolerationSeconds` is set",
        ),
    ],
)
def test_tolerations_are_validated(toleration: JSON, said: str) -> None:
    assert errors(tolerations=[toleration]) == [f"spec.tolerations[0]{said}"]


def test_label_key_that_the_selector_has_already_is_refused() -> None:
    spread = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
        "matchLabelKeys": ["app"],
    }
    term = {key: spread[key] for key in ("topologyKey", "labelSelector", "matchLabelKeys")}
    affinity = {"podAffinity": {REQUIRED: [term], PREFERRED: [{"weight": 1, "podAffinityTerm": term}]}}
    said = '[0]: Invalid value: "app": exists in both matchLabelKeys and labelSelector'
    labels = {"labels": {"app": "x"}}
    assert errors(metadata=labels, affinity=affinity, topologySpreadConstraints=[spread]) == [
        f"spec.affinity.podAffinity.{REQUIRED}[0]{said}",
        f"spec.affinity.podAffinity.{PREFERRED}[0].podAffinityTerm{said}",
        f"spec.topologySpreadConstraints[0]{said}",
    ]
    assert not errors(affinity=affinity), "a pod without the label adds nothing to the selector"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"maxSkew": 0}, ".maxSkew: Invalid value: 0: must be greater than zero"),
        ({"topologyKey": ""}, ".topologyKey: Required value: can not be empty"),
        (
            {"whenUnsatisfiable": "Wait"},
            '.whenUnsatisfiable: Unsupported value: "Wait": supported values: "DoNotSchedule", "ScheduleAnyway"',
        ),
        (
            {"whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2},
            ".minDomains: Invalid value: 2: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not"
            " ScheduleAnyway",
        ),
        (
            {"nodeTaintsPolicy": "No"},
            '.nodeTaintsPolicy: Unsupported value: "No": supported values: "Honor", "Ignore"',
        ),
    ],
)
def test_topology_spread_constraints_are_validated(change: JSON, said: str) -> None:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **change}
    assert errors(topologySpreadConstraints=[constraint]) == [f"spec.topologySpreadConstraints[0]{said}"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nodeSelector": {"bad key": "v"}}, f'spec.nodeSelector: Invalid value: "bad key": {NAME_PART}'),
        ({"nodeName": "N"}, f'spec.nodeName: Invalid value: "N": {SUBDOMAIN}'),
        ({"containers": []}, "spec.containers: Required value"),
        ({"containers": [{"image": "i"}]}, f"{C}.name: Required value"),
        (
            {"containers": [container(), container()]},
            'spec.containers[1].name: Duplicate value: "c"',
        ),
        (
            {"activeDeadlineSeconds": 0},
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
        ),
        (
            {"resourceClaims": [{"name": "gpu"}]},
            'spec.resourceClaims[0]: Invalid value: {"Name":"gpu","ResourceClaimName":null,"ResourceClaimTemplateName":'
            "null}: must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
        ),
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {}}]},
            "spec.volumes[0].persistentVolumeClaim.claimName: Required value",
        ),
        (
            {"hostUsers": False, "hostPID": True},
            "spec.HostPID: Forbidden: when `hostUsers` is false",
        ),
        (
            {"schedulingGates": [{"name": "g"}, {"name": "g"}]},
            'spec.schedulingGates[1]: Duplicate value: "g"',
        ),
    ],
)
def test_fields_that_affect_scheduling_are_validated(fields: JSON, said: str) -> None:
    assert errors(**fields) == [said]


def test_errors_of_limits_come_after_validation() -> None:
    limits = {"type": "Pod", "max": {"cpu": "1"}}
    reader = read(
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "l", "namespace": "default"},
            "spec": {"limits": [limits]},
        }
    )
    admitted = admit_pod(pod(nodeSelector={"a/b/c": ""}), reader.policies())
    assert admitted.errors
    assert not admitted.forbidden


def test_overhead_without_a_runtime_class_is_forbidden() -> None:
    admitted = admit_pod(pod(overhead={"cpu": "1"}), Policies())
    said = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
    assert admitted.refusals == (f'pods "p" is forbidden: {said}',)
