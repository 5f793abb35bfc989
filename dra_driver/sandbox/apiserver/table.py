# SPDX-License-Identifier: Apache-2.0
"""The table of kinds that are built in: a kind is one entry.

Kinds with `STORED` are kept and checked against their schema, and nothing more; they are here
because clients of a cluster list or watch them.
"""

from typing import Final

from .groups import access, crds
from .groups.columns import CREATED, NAME, NAME_AND_AGE
from .groups.core import events, pods, small
from .groups.resource import kinds as resource
from .groups.workloads import apps, batch
from .kinds import Kind, Strategy, text_at
from .release import Release

_STATUS: Final = ("status",)
_SCALED: Final = ("scale", "status")
_CREATED: Final = (NAME, CREATED)
_ADMISSION: Final = "admissionregistration.k8s.io"
_EXTENSIONS: Final = ("api-extensions",)
STORED: Final = Strategy(status_keeps_metadata=True)
_BUDGET: Final = Strategy(
    generation=("spec",),
    first_status={"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0},
    status_keeps_metadata=True,
    unconditional_update=False,
)

_POD_SELECTORS: Final = {
    "spec.nodeName": text_at("spec", "nodeName"),
    "spec.restartPolicy": text_at("spec", "restartPolicy"),
    "spec.schedulerName": text_at("spec", "schedulerName"),
    "spec.serviceAccountName": text_at("spec", "serviceAccountName"),
    "spec.hostNetwork": text_at("spec", "hostNetwork", absent="false"),
    "status.phase": text_at("status", "phase"),
    "status.podIP": text_at("status", "podIP"),
    "status.nominatedNodeName": text_at("status", "nominatedNodeName"),
}


def builtin_kinds(release: Release) -> tuple[Kind, ...]:
    """Every kind that the server has from the start."""
    return (*_core(), *_workloads(), *_access(), *resource.kinds(release), *_stored())


def _core() -> tuple[Kind, ...]:
    return (
        Kind(
            "",
            "Namespace",
            "namespaces",
            namespaced=False,
            short=("ns",),
            subresources=_STATUS,
            strategy=small.NAMESPACE,
            selectors={"name": text_at("metadata", "name"), "status.phase": text_at("status", "phase")},
            columns=small.NAMESPACE_COLUMNS,
            verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
        ),
        Kind(
            "",
            "Node",
            "nodes",
            namespaced=False,
            short=("no",),
            subresources=_STATUS,
            strategy=small.NODE,
            selectors={"spec.unschedulable": text_at("spec", "unschedulable", absent="false")},
            columns=small.NODE_COLUMNS,
        ),
        Kind(
            "",
            "Pod",
            "pods",
            short=("po",),
            in_all=True,
            subresources=("binding", "eviction", "status"),
            strategy=pods.STRATEGY,
            selectors=_POD_SELECTORS,
            columns=pods.COLUMNS,
        ),
        Kind(
            "",
            "Event",
            "events",
            short=("ev",),
            strategy=events.STRATEGY,
            selectors=events.SELECTORS,
            columns=events.COLUMNS,
            from_stored=events.from_stored,
        ),
        Kind(
            "",
            "ServiceAccount",
            "serviceaccounts",
            short=("sa",),
            subresources=("token",),
            strategy=small.SERVICE_ACCOUNT,
            columns=NAME_AND_AGE,
        ),
        Kind(
            "",
            "Secret",
            "secrets",
            strategy=small.SECRET,
            selectors={"type": text_at("type")},
            columns=small.SECRET_COLUMNS,
        ),
        Kind("", "ConfigMap", "configmaps", short=("cm",), strategy=small.CONFIG_MAP, columns=small.CONFIG_MAP_COLUMNS),
        Kind(
            "",
            "Service",
            "services",
            short=("svc",),
            in_all=True,
            subresources=_STATUS,
            strategy=small.SERVICE,
            selectors={"spec.clusterIP": text_at("spec", "clusterIP"), "spec.type": text_at("spec", "type")},
            columns=small.SERVICE_COLUMNS,
        ),
    )


def _workloads() -> tuple[Kind, ...]:
    return (
        Kind(
            "apps",
            "DaemonSet",
            "daemonsets",
            short=("ds",),
            in_all=True,
            subresources=_STATUS,
            strategy=apps.DAEMON_SET,
            columns=apps.DAEMON_SET_COLUMNS,
        ),
        Kind(
            "apps",
            "Deployment",
            "deployments",
            short=("deploy",),
            in_all=True,
            subresources=_SCALED,
            strategy=apps.DEPLOYMENT,
            columns=apps.DEPLOYMENT_COLUMNS,
        ),
        Kind(
            "apps",
            "ReplicaSet",
            "replicasets",
            short=("rs",),
            in_all=True,
            subresources=_SCALED,
            strategy=apps.REPLICA_SET,
            selectors={"status.replicas": text_at("status", "replicas", absent="0")},
            columns=apps.REPLICA_SET_COLUMNS,
        ),
        Kind(
            "apps",
            "StatefulSet",
            "statefulsets",
            short=("sts",),
            in_all=True,
            subresources=_SCALED,
            strategy=apps.STATEFUL_SET,
            columns=apps.STATEFUL_SET_COLUMNS,
        ),
        Kind(
            "batch",
            "Job",
            "jobs",
            in_all=True,
            subresources=_STATUS,
            strategy=batch.JOB,
            selectors={"status.successful": text_at("status", "succeeded", absent="0")},
            columns=batch.JOB_COLUMNS,
        ),
    )


def _access() -> tuple[Kind, ...]:
    rbac = access.RBAC_GROUP
    return (
        Kind("coordination.k8s.io", "Lease", "leases", strategy=access.LEASE, columns=access.LEASE_COLUMNS),
        Kind(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            namespaced=False,
            short=("crd", "crds"),
            categories=_EXTENSIONS,
            subresources=_STATUS,
            strategy=crds.STRATEGY,
            columns=_CREATED,
        ),
        Kind(rbac, "Role", "roles", strategy=access.ROLE, columns=_CREATED),
        Kind(rbac, "ClusterRole", "clusterroles", namespaced=False, strategy=access.ROLE, columns=_CREATED),
        Kind(rbac, "RoleBinding", "rolebindings", strategy=access.BINDING, columns=access.BINDING_COLUMNS),
        Kind(
            rbac,
            "ClusterRoleBinding",
            "clusterrolebindings",
            namespaced=False,
            strategy=access.BINDING,
            columns=access.BINDING_COLUMNS,
        ),
        Kind(
            _ADMISSION,
            "ValidatingAdmissionPolicy",
            "validatingadmissionpolicies",
            namespaced=False,
            categories=_EXTENSIONS,
            subresources=_STATUS,
            strategy=access.STORED_POLICY,
            columns=NAME_AND_AGE,
        ),
        Kind(
            _ADMISSION,
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
            namespaced=False,
            categories=_EXTENSIONS,
            strategy=access.STORED_POLICY,
            columns=NAME_AND_AGE,
        ),
        *(
            Kind(
                _ADMISSION,
                f"{verb}WebhookConfiguration",
                f"{verb.lower()}webhookconfigurations",
                namespaced=False,
                categories=_EXTENSIONS,
                strategy=access.STORED_POLICY,
                columns=NAME_AND_AGE,
            )
            for verb in ("Mutating", "Validating")
        ),
    )


def _stored() -> tuple[Kind, ...]:
    def kind(
        group: str, name: str, plural: str, short: str = "", *, namespaced: bool = True, status: bool = False
    ) -> Kind:
        return Kind(
            group,
            name,
            plural,
            namespaced=namespaced,
            short=(short,) if short else (),
            subresources=_STATUS if status else (),
            strategy=STORED,
            columns=NAME_AND_AGE,
        )

    return (
        Kind(
            "policy",
            "PodDisruptionBudget",
            "poddisruptionbudgets",
            short=("pdb",),
            subresources=_STATUS,
            strategy=_BUDGET,
            columns=NAME_AND_AGE,
        ),
        kind("", "PersistentVolume", "persistentvolumes", "pv", namespaced=False, status=True),
        kind("", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", status=True),
        kind("apps", "ControllerRevision", "controllerrevisions"),
        kind("batch", "CronJob", "cronjobs", "cj", status=True),
        kind("discovery.k8s.io", "EndpointSlice", "endpointslices"),
        kind("node.k8s.io", "RuntimeClass", "runtimeclasses", namespaced=False),
        kind("scheduling.k8s.io", "PriorityClass", "priorityclasses", "pc", namespaced=False),
        kind("storage.k8s.io", "StorageClass", "storageclasses", "sc", namespaced=False),
    )
