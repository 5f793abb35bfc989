# SPDX-License-Identifier: Apache-2.0
"""Objects of a cluster reduced to the fields that decide whether pods can be scheduled, as a snapshot has them.

It keeps the fields that `dra_driver.scheduler.pods` reads, and the fields of pending pods that the API server checks.
All other fields are left out: images, commands, environments, most of what a status has, annotations.
"""

from collections.abc import Mapping
from typing import Any, Final

JSON = dict[str, Any]

Kept = Mapping[str, "Kept"] | None
"""The fields of an object that are kept, each with its own; None for all of a value. Lists are reduced item by item."""

_ANNOTATIONS: Final = dict.fromkeys(
    (
        "volume.beta.kubernetes.io/storage-class",
        "pv.kubernetes.io/bind-completed",
        "volume.kubernetes.io/selected-node",
    )
)

_VOLUME_FIELDS: Final = "accessModes storageClassName volumeMode volumeAttributesClassName"


def _only(names: str, **more: Kept) -> Kept:
    """All of the fields `names`, and some of the fields in `more`."""
    return {**dict.fromkeys(names.split()), **more}


_NAME: Final = _only("name namespace")
_STORED: Final = _only(
    "name namespace uid labels creationTimestamp deletionTimestamp",
    annotations=_ANNOTATIONS,
    ownerReferences=_only("apiVersion kind name uid controller"),
)
_CONTAINER: Final = _only(
    "name resources restartPolicy restartPolicyRules", ports=_only("containerPort hostPort hostIP protocol")
)
_CONTAINER_STATUS: Final = _only("name resources allocatedResources")
_VOLUME: Final = _only(
    "name",
    persistentVolumeClaim=_only("claimName"),
    ephemeral={},
    gcePersistentDisk=_only("pdName readOnly"),
    awsElasticBlockStore=_only("volumeID readOnly"),
    iscsi=_only("iqn readOnly"),
    rbd=_only("monitors pool image readOnly"),
)

_POLICY: Final = "schedulingPolicy schedulingConstraints resourceClaims"
"""The fields that say how the pods of a group are placed."""

_KEPT: Final[Mapping[str, Kept]] = {
    "Node": _only(
        "",
        metadata=_only("name labels"),
        spec=_only("taints unschedulable"),
        status=_only("allocatable capacity declaredFeatures"),
    ),
    "Pod": _only(
        "",
        metadata=_STORED,
        spec=_only(
            "nodeName nodeSelector affinity tolerations topologySpreadConstraints schedulingGates resourceClaims"
            " resources overhead priority priorityClassName preemptionPolicy runtimeClassName activeDeadlineSeconds"
            " hostNetwork hostPID hostIPC hostUsers schedulerName",
            schedulingGroup=_only("podGroupName"),
            workloadRef=_only("name podGroup"),
            containers=_CONTAINER,
            initContainers=_CONTAINER,
            volumes=_VOLUME,
        ),
        status=_only(
            "phase startTime nominatedNodeName qosClass resources allocatedResources resourceClaimStatuses",
            extendedResourceClaimStatus=_only("resourceClaimName"),
            conditions=_only("type status reason"),
            containerStatuses=_CONTAINER_STATUS,
            initContainerStatuses=_CONTAINER_STATUS,
        ),
    ),
    "Namespace": _only("", metadata=_only("name labels")),
    "PersistentVolume": _only(
        "",
        metadata=_STORED,
        spec=_only(
            f"capacity nodeAffinity {_VOLUME_FIELDS}",
            claimRef=_only("namespace name uid"),
            csi=_only("driver volumeHandle"),
        ),
        status=_only("phase"),
    ),
    "PersistentVolumeClaim": _only(
        "", metadata=_STORED, spec=_only(f"volumeName selector resources {_VOLUME_FIELDS}"), status=_only("phase")
    ),
    "LimitRange": _only("spec", metadata=_NAME),
    "ResourceQuota": _only("spec status", metadata=_NAME),
    "PodDisruptionBudget": _only(
        "", metadata=_NAME, spec=_only("selector"), status=_only("disruptionsAllowed disruptedPods")
    ),
    "PriorityClass": _only("value globalDefault preemptionPolicy", metadata=_only("name")),
    "RuntimeClass": _only("overhead scheduling", metadata=_only("name")),
    "StorageClass": _only("provisioner volumeBindingMode allowedTopologies", metadata=_only("name")),
    "CSINode": _only("", metadata=_only("name"), spec=_only("", drivers=_only("name allocatable"))),
    "CSIDriver": _only("", metadata=_only("name"), spec=_only("storageCapacity")),
    "CSIStorageCapacity": _only("storageClassName nodeTopology maximumVolumeSize capacity", metadata=_NAME),
    "PodGroup": _only("", metadata=_NAME, spec=_only(f"parentCompositePodGroupName {_POLICY}")),
    "Workload": _only(
        "",
        metadata=_NAME,
        spec=_only("", controllerRef=_only("apiGroup kind name"), podGroupTemplates=_only(f"name {_POLICY}")),
    ),
    "ResourceClaimTemplate": _only("", metadata=_NAME, spec=_only("spec")),
}


def reduced_object(value: Mapping[str, Any]) -> JSON:
    """An object (JSON) of a kind that concerns pods, with only the fields that decide."""
    identity = {"apiVersion": value["apiVersion"], "kind": value["kind"]}
    return {**identity, **_reduced(value, _KEPT[value["kind"]])}


def _reduced(value: Any, kept: Kept) -> Any:
    if kept is None:
        return value
    if isinstance(value, list):
        return [_reduced(element, kept) for element in value]
    if not isinstance(value, dict):
        return value
    return {name: _reduced(value[name], inner) for name, inner in kept.items() if name in value}
