# SPDX-License-Identifier: Apache-2.0
"""Extended resources of pods (`nvidia.com/gpu: 2`): whether DeviceClasses serve them, and notes about the others.

Device plugins serve others. No simulated node has a device plugin, so what a pod requests from other vendors' plugins
(`rdma/ib: 1`) cannot be evaluated there. The resources of this driver are known: nothing but a DeviceClass serves them
on a simulated node.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from ..kube.releases import RULES, has_rule
from ..kube.resource import DeviceClass, ObjectMeta, ResourceClaim
from ..kube.resource.claim import CLASS_RESOURCE_PREFIX
from ..scheduler.allocator import Features
from ..scheduler.pods.objects import claim_for, served
from .workload import Demand

GPU_RESOURCE: Final = "nvidia.com/gpu"
MIG_RESOURCE_PREFIX: Final = "nvidia.com/mig-"
_OF_DRIVER: Final = re.compile(rf"{re.escape(GPU_RESOURCE)}|{re.escape(MIG_RESOURCE_PREFIX)}[0-9]+g\..+")


def extended_claims(demand: Demand, classes: Iterable[DeviceClass], features: Features) -> list[ResourceClaim]:
    """The claim that the scheduler makes for the demand's extended resources, if DeviceClasses serve any of them."""
    serving = served(classes) if features.extended_resources else {}
    wanted = [request for request in demand.extended if request.resource in serving]
    if not wanted:
        return []
    name = f"{demand.pod.name}-extended-resources"
    return [claim_for(wanted, ObjectMeta(name=name, namespace=demand.pod.namespace), serving)]


def unserved(demand: Demand, classes: Iterable[DeviceClass], features: Features) -> tuple[str, ...]:
    """The extended resources of the demand that no DeviceClass serves, each once."""
    serving = served(classes) if features.extended_resources and demand.extended else {}
    return tuple(dict.fromkeys(request.resource for request in demand.extended if request.resource not in serving))


def doubtful_classes(demand: Demand, classes: Iterable[DeviceClass], features: Features) -> Iterator[str]:
    """Notes about extended resources that several DeviceClasses offer, if the scheduler may use an old state of one."""
    if not (demand.extended and features.extended_resources):
        return
    if not has_rule(features.release, "extended_resources_get_stale"):
        return
    by_resource: dict[str, list[str]] = {}
    for class_ in classes:
        if class_.extended_resource_name:
            by_resource.setdefault(class_.extended_resource_name, []).append(class_.metadata.name)
    issue = RULES["extended_resources_get_stale"].issue
    for resource in dict.fromkeys(request.resource for request in demand.extended):
        names = by_resource.get(resource, [])
        if len(names) > 1:
            yield (
                f"DeviceClasses {' and '.join(sorted(names))} offer {resource}: the newest counts here, but"
                f" kube-scheduler {features.release} may use another one after changes of them ({issue})"
            )


def is_of_driver(resource: str) -> bool:
    """Whether only a DeviceClass for this driver's devices, or NVIDIA's device plugin, can serve the resource."""
    return _OF_DRIVER.fullmatch(resource) is not None or resource.startswith(CLASS_RESOURCE_PREFIX)


def remedy(resource: str, features: Features) -> str:
    """The advice for a resource of this driver that nothing serves."""
    if resource.startswith(CLASS_RESOURCE_PREFIX):
        said = f"there is no DeviceClass {resource.removeprefix(CLASS_RESOURCE_PREFIX)}"
        return said if features.extended_resources else f"{said} that serves pods: {_gate(features)}"
    said = f"no DeviceClass serves {resource}"
    if not features.extended_resources:
        return f"{said}: {_gate(features)}"
    value = f"deviceClasses.gpu.extendedResourceName={resource}"
    if resource != GPU_RESOURCE:
        value = f"deviceClasses.migProfiles={{{resource.removeprefix(MIG_RESOURCE_PREFIX)}}}"
    return f"{said}: set the chart's value {value}, or give the pod a claim (dra-dryrun migrate writes it)"


def not_judged(resources: Iterable[str]) -> tuple[str, ...]:
    """Notes about extended resources of device plugins, which are unknown for a simulated node."""
    return tuple(
        f"whether the node has {resource}: no device plugin is known of simulated nodes" for resource in resources
    )


def _gate(features: Features) -> str:
    return f"the feature gate DRAExtendedResource is off in Kubernetes {features.release}"
