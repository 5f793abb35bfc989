# SPDX-License-Identifier: Apache-2.0
"""Every value of NVIDIA's chart is a value of this one, or a page says what became of it.

The names and defaults are those of deployments/helm/dra-driver-nvidia-gpu/values.yaml of
kubernetes-sigs/dra-driver-nvidia-gpu at commit 95932046683719c43b6a0dd9613c2e5aad5d6703.
"""

import fnmatch
import functools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from kubeletplugin.claims.boundary import ERROR_TYPES as OUR_ERROR_TYPES

from . import values_table
from .rendering import CHART, JSON, find, merged, refusal, render

_MASTER = [
    {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "node-role.kubernetes.io/master", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "CriticalAddonsOnly", "operator": "Exists"},
]
_PREFERRED = {
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {
            "weight": 100,
            "preference": {
                "matchExpressions": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
            },
        },
    ],
}
_APART = {
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {
            "weight": 100,
            "podAffinityTerm": {
                "labelSelector": {"matchLabels": {"dra-driver-nvidia-gpu-component": "controller"}},
                "topologyKey": "kubernetes.io/hostname",
            },
        },
    ],
}
OFFICIAL: JSON = {
    "nvidiaDriverRoot": "/",
    "nvidiaCDIHookPath": "",
    "altProcDevices": "",
    "nameOverride": "",
    "fullnameOverride": "",
    "namespaceOverride": "",
    "selectorLabelsOverride": {},
    "gpuResourcesEnabledOverride": False,
    "consumableShares": "",
    "allowDefaultNamespace": False,
    "resourceApiVersion": "",
    "imagePullSecrets": [],
    "image.repository": "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu",
    "image.pullPolicy": "IfNotPresent",
    "image.tag": "",
    "serviceAccount.create": True,
    "serviceAccount.annotations": {},
    "serviceAccount.name": "",
    "resources.gpus.enabled": True,
    "resources.computeDomains.enabled": True,
    "resources.computeDomains.imex.mode": "driverManaged",
    "resources.computeDomains.imex.isolation": "domain",
    "resources.computeDomains.imex.hostSocketPath": "/etc/nvidia-imex/imex_ctrl.sock",
    "featureGates": {},
    "logVerbosity": "4",
    "webhook.enabled": False,
    "webhook.replicas": 1,
    "webhook.servicePort": 443,
    "webhook.containerPort": 443,
    "webhook.priorityClassName": "system-cluster-critical",
    "webhook.strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
    "webhook.podAnnotations": {},
    "webhook.podSecurityContext": {},
    "webhook.nodeSelector": {},
    "webhook.tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
    "webhook.affinity": {},
    "webhook.containers.webhook.securityContext": {"privileged": False},
    "webhook.containers.webhook.resources": {},
    "webhook.serviceAccount.create": True,
    "webhook.serviceAccount.name": "",
    "webhook.failurePolicy": "Fail",
    "webhook.tls.mode": "cert-manager",
    "webhook.tls.certManager.issuerType": "selfsigned",
    "webhook.tls.certManager.issuerName": "",
    "webhook.tls.certManager.dnsNames": [],
    "webhook.tls.secret.name": "",
    "webhook.tls.secret.caBundle": "",
    "controller.replicas": 1,
    "controller.leaderElection.enabled": False,
    "controller.leaderElection.leaseDuration": "15s",
    "controller.leaderElection.renewDeadline": "10s",
    "controller.leaderElection.retryPeriod": "2s",
    "controller.metrics.enabled": True,
    "controller.metrics.httpEndpoint": ":8080",
    "controller.metrics.metricsPath": "/metrics",
    "controller.metrics.profilePath": "",
    "controller.priorityClassName": "system-node-critical",
    "controller.podAnnotations": {},
    "controller.podSecurityContext": {},
    "controller.nodeSelector": {},
    "controller.tolerations": _MASTER,
    "controller.containers.computeDomain.securityContext": {},
    "controller.containers.computeDomain.env": [],
    "controller.containers.computeDomain.resources": {},
    "controller.affinity": {"nodeAffinity": _PREFERRED, "podAntiAffinity": _APART},
    "controller.networkPolicy.enabled": False,
    "kubeletPlugin.metrics.enabled": True,
    "kubeletPlugin.metrics.gpuHttpEndpoint": ":8080",
    "kubeletPlugin.metrics.computeDomainHttpEndpoint": ":8081",
    "kubeletPlugin.metrics.metricsPath": "/metrics",
    "kubeletPlugin.priorityClassName": "system-node-critical",
    "kubeletPlugin.updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
    "kubeletPlugin.podAnnotations": {},
    "kubeletPlugin.podSecurityContext": {},
    "kubeletPlugin.nodeSelector": {},
    "kubeletPlugin.tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "kubeletPlugin.kubeletRegistrarDirectoryPath": "/var/lib/kubelet/plugins_registry",
    "kubeletPlugin.kubeletPluginsDirectoryPath": "/var/lib/kubelet/plugins",
    "kubeletPlugin.containers.init.securityContext": {},
    "kubeletPlugin.containers.init.resources": {},
    "kubeletPlugin.containers.computeDomains.env": [],
    "kubeletPlugin.containers.computeDomains.securityContext": {"privileged": True},
    "kubeletPlugin.containers.computeDomains.resources": {},
    "kubeletPlugin.containers.computeDomains.healthcheckPort": 51515,
    "kubeletPlugin.containers.computeDomains.gpuCliqueLabelEnabled": False,
    "kubeletPlugin.containers.gpus.env": [],
    "kubeletPlugin.containers.gpus.securityContext": {"privileged": True},
    "kubeletPlugin.containers.gpus.resources": {},
    "kubeletPlugin.containers.gpus.healthcheckPort": 51516,
    "kubeletPlugin.networkPolicy.enabled": False,
    "maskNvidiaDriverParams": "",
    "namespace": "",
    "nvidiaCtkPath": "",
}
"""Path -> default. The last three are not in its values file, but in its templates: read, or refused as gone.
kubeletPlugin.affinity has a test of its own."""
GPU_LABELS = (
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/cpu-model.vendor_id",
    "nvidia.com/gpu.present",
)
VALUE_NAME = re.compile(r"\b(?:[a-z][A-Za-z]*\.[A-Za-z.]*[A-Za-z]|[a-z]+(?:[A-Z]\w*)+)\b")
ERROR_TYPES = {"lock_acquire", "prepare_devices", "unprepare_devices", "publish_resources"}
_MISSING = object()


@functools.lru_cache(maxsize=1)
def defaults() -> JSON:
    found: JSON = yaml.load((CHART / "values.yaml").read_bytes(), yaml.CSafeLoader)
    return found


def ours(path: str) -> Any:
    """Our default; _MISSING where there is no such value."""
    node: Any = defaults()
    for key in path.split("."):
        if not isinstance(node, dict) or key not in node:
            return _MISSING
        node = node[key]
    return node


def at(path: str, value: Any) -> JSON:
    """Values with one in them."""
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def documented() -> Iterator[str]:
    """Patterns of the values in the first column of the table of NVIDIA's values; `.x` goes on from the one before."""
    page = (values_table.PAGE.parents[1] / "how-to/migrate-from-nvidias-dra-driver.md").read_text(encoding="utf-8")
    table = page.partition("| NVIDIA's chart | here |\n|---|---|\n")[2].partition("\n\n")[0]
    for line in table.splitlines():
        whole = ""
        for name in re.findall(r"`([^`]+)`", re.sub(r"\(.*?\)", "", line.split("|")[1])):
            whole = f"{whole.removesuffix('.*').rpartition('.')[0]}{name}" if name.startswith(".") else name
            yield whole


DOCUMENTED = list(documented())


def is_documented(path: str) -> bool:
    return any(fnmatch.fnmatch(path, pattern) for pattern in DOCUMENTED)


@pytest.mark.parametrize("path", OFFICIAL)
def test_a_value_is_the_same_or_documented(path: str) -> None:
    assert ours(path) == OFFICIAL[path] or is_documented(path), f"{path}: ours is {ours(path)!r}"


@pytest.mark.parametrize("path", [path for path in OFFICIAL if ours(path) is _MISSING])
def test_a_value_that_is_not_here_is_refused_by_name(path: str) -> None:
    parts = path.split(".")
    prefixes = [".".join(parts[: index + 1]) for index in range(len(parts))]
    missing = next(prefix for prefix in prefixes if ours(prefix) is _MISSING)
    text = refusal(at(path, OFFICIAL[path]))
    assert (
        "values of NVIDIA's chart that this chart does not have (docs/how-to/migrate-from-nvidias-dra-driver.md)"
        in text
    )
    replacement = re.search(rf"{re.escape(missing)}: (use|remove) (.+)$", text)
    assert replacement is not None
    assert all(ours(name) is not _MISSING for name in VALUE_NAME.findall(replacement[2]))


def test_all_values_that_are_not_here_are_named_at_once() -> None:
    values = merged(at("kubeletPlugin.containers.gpus.env", []), {"nvidiaCtkPath": "", "altProcDevices": ""})
    text = refusal(values)
    assert all(f"{name}: " in text for name in ("kubeletPlugin.containers.gpus", "nvidiaCtkPath", "altProcDevices"))


@pytest.mark.parametrize("path", [path for path in OFFICIAL if ours(path) not in (_MISSING, OFFICIAL[path])])
def test_shared_value_accepts_nvidias_default(path: str) -> None:
    """Where it is not our default, too, with which everything is rendered."""
    assert render(at(path, OFFICIAL[path]))


def test_nothing_else_is_said_to_be_different() -> None:
    names = [*OFFICIAL, "policy"]
    unknown = [pattern for pattern in DOCUMENTED if not fnmatch.filter(names, pattern)]
    assert unknown == []


def test_a_version_of_the_api_may_be_written_as_there() -> None:
    for version in ("v1", "v1beta2", "v1beta1"):
        values = {"resourceApiVersion": f"resource.k8s.io/{version}"}
        assert find(render(values), "DeviceClass", "mig")["apiVersion"] == f"resource.k8s.io/{version}"


def test_gpu_nodes_are_found_by_the_same_labels() -> None:
    terms = ours("kubeletPlugin.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms")
    assert {one["matchExpressions"][0]["key"] for one in terms} >= set(GPU_LABELS)


def test_page_maps_all_error_types_of_nvidias_metrics() -> None:
    page = (values_table.PAGE.parents[1] / "how-to/migrate-from-nvidias-dra-driver.md").read_text(encoding="utf-8")
    table = (
        page.partition("\n[Metrics](../reference/metrics.md) have")[2].partition("\n## ")[0].partition("|---|---|\n")[2]
    )
    theirs, here = zip(*(line.strip("|").split("|") for line in table.split("\n\n")[0].splitlines()), strict=True)
    labels = {*OUR_ERROR_TYPES.values(), "internal"}
    assert set(re.findall(r"`(\w+)`", "".join(here))) - {"nvidia_dra_publish_errors_total"} == labels
    assert set(re.findall(r"`(\w+)`", "".join(theirs))) == ERROR_TYPES


# A variable of its container `gpus` that both of ours have to know


@pytest.mark.parametrize("container", ["controller", "kubeletplugin"])
def test_ignored_xids_are_passed_to_both_containers(container: str) -> None:
    variable = {"name": "ADDITIONAL_XIDS_TO_IGNORE", "value": "137, 13"}
    more = [
        {"name": "A", "value": "1"},
        variable,
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    values: JSON = {
        "policy": {"gpus": [{"publish": True}], "health": {"applicationXIDs": [7, 13], "effect": "None"}},
        "kubeletPlugin": {"containers": {container: {"env": more}}},
    }
    objects = render(values)
    policy = yaml.safe_load(find(objects, "ConfigMap")["data"]["policy.yaml"])
    assert policy == merged(values["policy"], {"health": {"applicationXIDs": [137, 13, 7]}})
    pod = find(objects, "DaemonSet")["spec"]["template"]["spec"]
    told = {one["name"]: [env["name"] for env in one["env"]] for one in pod["containers"]}
    assert told[container][-2:] == ["A", "B"]
    assert not any("ADDITIONAL_XIDS_TO_IGNORE" in names for names in told.values())


@pytest.mark.parametrize(
    "variable",
    [{"value": "thirteen"}, {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    ids=["text", "elsewhere"],
)
def test_xids_that_the_policy_cannot_have_are_refused(variable: JSON) -> None:
    env = [{"name": "ADDITIONAL_XIDS_TO_IGNORE", **variable}]
    values = {"kubeletPlugin": {"containers": {"kubeletplugin": {"env": env}}}}
    assert "kubeletPlugin.containers.kubeletplugin.env: ADDITIONAL_XIDS_TO_IGNORE must be numbers" in refusal(values)


def test_no_xids_to_ignore_leave_the_policy_alone() -> None:
    env = [{"name": "ADDITIONAL_XIDS_TO_IGNORE", "value": ""}]
    values = {"kubeletPlugin": {"containers": {"controller": {"env": env}}}}
    assert find(render(values), "ConfigMap") == find(render({}), "ConfigMap")
