# SPDX-License-Identifier: Apache-2.0
"""The table of the built-in kinds. The modules of this package have their defaults, rules and columns.

The server stores kinds without a strategy and checks them against their schema. They are here because clients list or
create them.
"""

from collections.abc import Mapping
from typing import Any, Final

from ....kube.releases import NEWEST_MINOR
from ..kinds import ALL_VERBS, Column, FieldSelectors, KindStrategy, ServedKind, text_at
from ..release import Release
from . import core, crds, podgroups, pods, resource, workloads
from .columns import CREATED, NAME, NAME_AND_AGE

_STORED: Final = KindStrategy(status_keeps_metadata=True)
_PRIORITY: Final = KindStrategy(default=lambda obj, context: obj.setdefault("preemptionPolicy", "PreemptLowerPriority"))
"""`kubectl describe` fails without this default."""
_NETWORK: Final = KindStrategy(
    default=core.set_network_policy_defaults, generation=("spec",), status_keeps_metadata=True
)
_STATUS: Final = ("status",)
_BELOW_POD: Final = ("attach", "binding", "eviction", "exec", "log", "portforward", "status")
_SCALED: Final = ("scale", "status")
_CREATED: Final = (NAME, CREATED)
_ONE_BY_ONE: Final = tuple(verb for verb in ALL_VERBS if verb != "deletecollection")
_POLICY: Final = KindStrategy(generation=("*",), unconditional_update=False)
_EXTENSION: Final[Mapping[str, Any]] = {"namespaced": False, "categories": ("api-extensions",)}
_BUDGET: Final = KindStrategy(
    generation=("spec",),
    first_status={"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0},
    status_keeps_metadata=True,
    unconditional_update=False,
)


def _at(*paths: str, **absent: str) -> FieldSelectors:
    """Return field selectors of paths such as `spec.nodeName`. `absent` has the texts for absent fields."""
    return {path: text_at(*path.split("."), absent=absent.get(path.rpartition(".")[2], "")) for path in paths}


_POD: Final = _at(
    *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork"),
    *("status.phase", "status.podIP", "status.nominatedNodeName"),
    hostNetwork="false",
)
_EVENT: Final = {
    **_at(
        *(f"involvedObject.{field}" for field in ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath")),
        *("reason", "reportingComponent", "type"),
    ),
    "source": text_at("source", "component"),
}
_NAMESPACE: Final = {"name": text_at("metadata", "name"), **_at("status.phase")}


def _kind(  # noqa: PLR0913, PLR0917  # the columns of the table of kinds
    group: str,
    name: str,
    plural: str,
    short: str = "",
    strategy: KindStrategy = _STORED,
    columns: tuple[Column, ...] = NAME_AND_AGE,
    under: tuple[str, ...] = (),
    selectors: FieldSelectors | None = None,
    **more: Any,
) -> ServedKind:
    """Return a kind with the subresources `under` it. `short` has its short names, separated by spaces."""
    return ServedKind(
        group,
        name,
        plural,
        short=tuple(short.split()),
        strategy=strategy,
        columns=columns,
        subresources=under,
        selectors=selectors or {},
        **more,
    )


def builtin_kinds(release: Release) -> tuple[ServedKind, ...]:
    """Return all built-in kinds of a release."""
    return (*_core(), *_workloads(), *_access(), *resource.kinds(release), *_others(), *_pod_groups(release))


def _pod_groups(release: Release) -> tuple[ServedKind, ...]:
    """PodGroups in the form of 1.37. Other releases have them in alpha versions only, which are not served here."""
    if release.minor < NEWEST_MINOR or not release.enabled("GenericWorkload"):
        return ()
    versions = ("v1beta1",)
    return (
        _kind("scheduling.k8s.io", "PodGroup", "podgroups", "", podgroups.STRATEGY, under=_STATUS, versions=versions),
    )


def _core() -> tuple[ServedKind, ...]:
    namespace, node = (core.NAMESPACE, core.NAMESPACE_COLUMNS), (core.NODE, core.NODE_COLUMNS)
    unschedulable = _at("spec.unschedulable", unschedulable="false")
    service = _at("spec.clusterIP", "spec.type")
    return (
        _kind(
            *("", "Namespace", "namespaces", "ns", *namespace, _STATUS, _NAMESPACE), namespaced=False, verbs=_ONE_BY_ONE
        ),
        _kind("", "Node", "nodes", "no", *node, _STATUS, unschedulable, namespaced=False),
        _kind("", "Pod", "pods", "po", pods.STRATEGY, pods.COLUMNS, _BELOW_POD, _POD, in_all=True),
        _kind("", "Event", "events", "ev", columns=core.EVENT_COLUMNS, selectors=_EVENT),
        _kind("", "ServiceAccount", "serviceaccounts", "sa", core.SERVICE_ACCOUNT, under=("token",)),
        _kind("", "Secret", "secrets", "", core.SECRET, core.SECRET_COLUMNS, selectors=_at("type")),
        _kind("", "ConfigMap", "configmaps", "cm", columns=core.CONFIG_MAP_COLUMNS),
        _kind(*("", "Service", "services", "svc", core.SERVICE, core.SERVICE_COLUMNS, _STATUS, service), in_all=True),
    )


def _workloads() -> tuple[ServedKind, ...]:
    deployment = workloads.DEPLOYMENT, workloads.DEPLOYMENT_COLUMNS
    daemon_set = workloads.DAEMON_SET, workloads.DAEMON_SET_COLUMNS
    replica_set = workloads.REPLICA_SET, workloads.REPLICA_SET_COLUMNS
    stateful_set = workloads.STATEFUL_SET, workloads.STATEFUL_SET_COLUMNS
    replicas = _at("status.replicas", replicas="0")
    succeeded = {"status.successful": text_at("status", "succeeded", absent="0")}
    return (
        _kind("apps", "DaemonSet", "daemonsets", "ds", *daemon_set, _STATUS, in_all=True),
        _kind("apps", "Deployment", "deployments", "deploy", *deployment, _SCALED, in_all=True),
        _kind("apps", "ReplicaSet", "replicasets", "rs", *replica_set, _SCALED, replicas, in_all=True),
        _kind("apps", "StatefulSet", "statefulsets", "sts", *stateful_set, _SCALED, in_all=True),
        _kind("batch", "CronJob", "cronjobs", "cj", columns=workloads.CRON_JOB_COLUMNS, under=_STATUS, in_all=True),
        _kind("batch", "Job", "jobs", "", workloads.JOB, workloads.JOB_COLUMNS, _STATUS, succeeded, in_all=True),
    )


def _access() -> tuple[ServedKind, ...]:
    rbac, role, binding = core.RBAC_GROUP, (core.ROLE, _CREATED), (core.BINDING, core.BINDING_COLUMNS)
    definitions = ("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", "crd crds")
    return (
        _kind("coordination.k8s.io", "Lease", "leases", "", core.LEASE, core.LEASE_COLUMNS),
        _kind(*definitions, crds.STRATEGY, _CREATED, _STATUS, **_EXTENSION),
        _kind(rbac, "Role", "roles", "", *role),
        _kind(rbac, "ClusterRole", "clusterroles", "", *role, namespaced=False),
        _kind(rbac, "RoleBinding", "rolebindings", "", *binding),
        _kind(rbac, "ClusterRoleBinding", "clusterrolebindings", "", *binding, namespaced=False),
        *(
            _kind("admissionregistration.k8s.io", name, plural, "", _POLICY, under=under, **_EXTENSION)
            for name, plural, under in (
                ("ValidatingAdmissionPolicy", "validatingadmissionpolicies", _STATUS),
                ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", ()),
                ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations", ()),
                ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations", ()),
            )
        ),
    )


def _others() -> tuple[ServedKind, ...]:
    return (
        _kind("policy", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", _BUDGET, under=_STATUS),
        _kind("", "PersistentVolume", "persistentvolumes", "pv", under=_STATUS, namespaced=False),
        _kind("", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", under=_STATUS),
        _kind("apps", "ControllerRevision", "controllerrevisions"),
        _kind("", "ResourceQuota", "resourcequotas", "quota", columns=core.QUOTA_COLUMNS, under=_STATUS),
        _kind("discovery.k8s.io", "EndpointSlice", "endpointslices"),
        _kind("networking.k8s.io", "NetworkPolicy", "networkpolicies", "netpol", _NETWORK),
        _kind("node.k8s.io", "RuntimeClass", "runtimeclasses", namespaced=False),
        _kind("scheduling.k8s.io", "PriorityClass", "priorityclasses", "pc", _PRIORITY, namespaced=False),
        _kind("storage.k8s.io", "StorageClass", "storageclasses", "sc", namespaced=False),
    )
