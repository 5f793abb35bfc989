# SPDX-License-Identifier: Apache-2.0
"""The table of the built-in kinds. The modules of this package have the defaults, rules and columns that the published
schemas do not have.

The server stores kinds without a strategy and checks them against their schema. They are here because clients list or
create them.
"""

from functools import partial
from typing import Final

from ....kube.releases import NEWEST_MINOR
from ..kinds import ALL_VERBS, FieldSelectors, KindStrategy, ServedKind, text_at
from ..release import Release
from . import core, crds, podgroups, pods, resource, workloads
from .columns import CREATED, NAME, NAME_AND_AGE

_STORED: Final = KindStrategy(status_keeps_metadata=True)
_PRIORITY: Final = KindStrategy(default=lambda obj, context: obj.setdefault("preemptionPolicy", "PreemptLowerPriority"))
"""`kubectl describe` fails without this default."""
_NETWORK: Final = KindStrategy(
    default=core.set_network_policy_defaults, generation=("spec",), status_keeps_metadata=True
)
_BELOW_POD: Final = ("attach", "binding", "eviction", "exec", "log", "portforward")
_SCALE: Final = ("scale",)
_CREATED: Final = (NAME, CREATED)
_ONE_BY_ONE: Final = tuple(verb for verb in ALL_VERBS if verb != "deletecollection")
_POLICY: Final = KindStrategy(generation=("*",), unconditional_update=False)
_EXTENSIONS: Final = ("api-extensions",)
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


_kind: Final = partial(ServedKind, strategy=_STORED, columns=NAME_AND_AGE)


def builtin_kinds(release: Release) -> tuple[ServedKind, ...]:
    """Return all built-in kinds of a release."""
    return (
        *_core(),
        *_core_data(),
        *_apps(),
        *_batch(),
        *_access(),
        *_extensions(),
        *resource.kinds(release),
        *_others(),
        *_pod_groups(release),
    )


def _pod_groups(release: Release) -> tuple[ServedKind, ...]:
    """Workloads and PodGroups in the form of 1.37. Older releases have only alpha versions, which are not served."""
    if release.minor < NEWEST_MINOR or not release.enabled("GenericWorkload"):
        return ()
    return (
        _kind("scheduling.k8s.io", "PodGroup", "podgroups", ("v1beta1",), strategy=podgroups.POD_GROUP),
        _kind("scheduling.k8s.io", "Workload", "workloads", ("v1beta1",), strategy=podgroups.WORKLOAD),
    )


def _core() -> tuple[ServedKind, ...]:
    kind = partial(_kind, "")
    return (
        kind(
            "Namespace",
            "namespaces",
            namespaced=False,
            short=("ns",),
            strategy=core.NAMESPACE,
            columns=core.NAMESPACE_COLUMNS,
            selectors=_NAMESPACE,
            verbs=_ONE_BY_ONE,
        ),
        kind(
            "Node",
            "nodes",
            namespaced=False,
            short=("no",),
            strategy=core.NODE,
            columns=core.NODE_COLUMNS,
            selectors=_at("spec.unschedulable", unschedulable="false"),
        ),
        kind(
            "Pod",
            "pods",
            short=("po",),
            in_all=True,
            strategy=pods.STRATEGY,
            columns=pods.COLUMNS,
            selectors=_POD,
            subresources=_BELOW_POD,
        ),
        kind("Event", "events", short=("ev",), columns=core.EVENT_COLUMNS, selectors=_EVENT),
        kind(
            "ServiceAccount",
            "serviceaccounts",
            short=("sa",),
            strategy=core.SERVICE_ACCOUNT,
            subresources=("token",),
        ),
    )


def _core_data() -> tuple[ServedKind, ...]:
    kind = partial(_kind, "")
    return (
        kind("Secret", "secrets", strategy=core.SECRET, columns=core.SECRET_COLUMNS, selectors=_at("type")),
        kind("ConfigMap", "configmaps", short=("cm",), columns=core.CONFIG_MAP_COLUMNS),
        kind(
            "Service",
            "services",
            short=("svc",),
            in_all=True,
            strategy=core.SERVICE,
            columns=core.SERVICE_COLUMNS,
            selectors=_at("spec.clusterIP", "spec.type"),
        ),
        kind("PersistentVolume", "persistentvolumes", namespaced=False, short=("pv",)),
        kind("PersistentVolumeClaim", "persistentvolumeclaims", short=("pvc",)),
        kind("ResourceQuota", "resourcequotas", short=("quota",), columns=core.QUOTA_COLUMNS),
    )


def _apps() -> tuple[ServedKind, ...]:
    kind = partial(_kind, "apps")
    workload = partial(kind, in_all=True)
    return (
        workload(
            "DaemonSet",
            "daemonsets",
            short=("ds",),
            strategy=workloads.DAEMON_SET,
            columns=workloads.DAEMON_SET_COLUMNS,
        ),
        workload(
            "Deployment",
            "deployments",
            short=("deploy",),
            strategy=workloads.DEPLOYMENT,
            columns=workloads.DEPLOYMENT_COLUMNS,
            subresources=_SCALE,
        ),
        workload(
            "ReplicaSet",
            "replicasets",
            short=("rs",),
            strategy=workloads.REPLICA_SET,
            columns=workloads.REPLICA_SET_COLUMNS,
            selectors=_at("status.replicas", replicas="0"),
            subresources=_SCALE,
        ),
        workload(
            "StatefulSet",
            "statefulsets",
            short=("sts",),
            strategy=workloads.STATEFUL_SET,
            columns=workloads.STATEFUL_SET_COLUMNS,
            subresources=_SCALE,
        ),
        kind("ControllerRevision", "controllerrevisions"),
    )


def _batch() -> tuple[ServedKind, ...]:
    kind = partial(_kind, "batch", in_all=True)
    return (
        kind("CronJob", "cronjobs", short=("cj",), columns=workloads.CRON_JOB_COLUMNS),
        kind(
            "Job",
            "jobs",
            strategy=workloads.JOB,
            columns=workloads.JOB_COLUMNS,
            selectors={"status.successful": text_at("status", "succeeded", absent="0")},
        ),
    )


def _access() -> tuple[ServedKind, ...]:
    role = partial(_kind, core.RBAC_GROUP, strategy=core.ROLE, columns=_CREATED)
    binding = partial(_kind, core.RBAC_GROUP, strategy=core.BINDING, columns=core.BINDING_COLUMNS)
    return (
        role("Role", "roles"),
        role("ClusterRole", "clusterroles", namespaced=False),
        binding("RoleBinding", "rolebindings"),
        binding("ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    )


def _extensions() -> tuple[ServedKind, ...]:
    kind = partial(_kind, namespaced=False, categories=_EXTENSIONS)
    admission = partial(kind, "admissionregistration.k8s.io", strategy=_POLICY)
    return (
        admission("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        admission("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
        admission("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
        admission("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
        kind(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            short=("crd", "crds"),
            strategy=crds.STRATEGY,
            columns=_CREATED,
        ),
    )


def _others() -> tuple[ServedKind, ...]:
    return (
        _kind("coordination.k8s.io", "Lease", "leases", strategy=core.LEASE, columns=core.LEASE_COLUMNS),
        _kind("discovery.k8s.io", "EndpointSlice", "endpointslices"),
        _kind("networking.k8s.io", "NetworkPolicy", "networkpolicies", short=("netpol",), strategy=_NETWORK),
        _kind("node.k8s.io", "RuntimeClass", "runtimeclasses", namespaced=False),
        _kind("policy", "PodDisruptionBudget", "poddisruptionbudgets", short=("pdb",), strategy=_BUDGET),
        _kind(
            "scheduling.k8s.io",
            "PriorityClass",
            "priorityclasses",
            namespaced=False,
            short=("pc",),
            strategy=_PRIORITY,
        ),
        _kind("storage.k8s.io", "StorageClass", "storageclasses", namespaced=False, short=("sc",)),
    )
