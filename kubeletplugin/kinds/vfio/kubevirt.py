# SPDX-License-Identifier: Apache-2.0
"""The extended resources of a claim for virtual machines, and the variables that tell KubeVirt their devices.

A machine that was written for a device plugin names its GPUs by an extended resource (`deviceName:
nvidia.com/GH100_H100_SXM5_80GB`). If a DeviceClass serves the resource, the scheduler makes a claim for the pod
(KEP-5004). KubeVirt then expects the PCI addresses of the devices in the variable `PCI_RESOURCE_<name>`, and the UUIDs
of mediated devices in `MDEV_PCI_RESOURCE_<name>` (`ResourceNameToEnvVar` in KubeVirt's pkg/util/util.go).

The scheduler's claim has the name of the class, but not that of the resource. The class has it, and the pod's status
has it as well. The plugin reads the class, because the right to read classes reveals nothing, and the right to read
pods would reveal the environment of all pods. A class always serves a second resource,
`deviceclass.resource.kubernetes.io/<name of the class>`. The claim does not show which of both the pod requests, so
the container gets the variables of both.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from dra_driver.kube.api import ApiClient, Connection, NotFoundError, newest_dialect
from dra_driver.kube.kinds import classes_of
from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.claim import CLASS_RESOURCE_PREFIX, EXTENDED_CLAIM_ANNOTATION

ResourceOfClass = Callable[[str], str]
"""Returns the extended resource that a DeviceClass names, or an empty string. May raise ApiError."""

_PREFIX: Final = "PCI_RESOURCE_"
_OF_CONTAINER: Final = re.compile(r"(container-[0-9]+)-request-[0-9]+", re.ASCII)


def no_resource(_: str) -> str:
    """No class names an extended resource."""
    return ""


class ClassReader:
    """Reads the extended resources of DeviceClasses from the API server."""

    def __init__(self, connection: Connection) -> None:
        self._client = ApiClient(connection)

    def __call__(self, name: str) -> str:
        """The resource that the class names; empty if it names none, or was deleted. Raises ApiError."""
        kind = classes_of(newest_dialect(self._client))
        try:
            spec = self._client.get(kind, name).get("spec") or {}
        except NotFoundError:
            return ""
        return str(spec.get("extendedResourceName") or "")


def is_for_extended_resources(claim: ResourceClaim) -> bool:
    """Whether the scheduler made the claim for the extended resources of a pod."""
    return claim.metadata.annotations.get(EXTENDED_CLAIM_ANNOTATION) == "true"


def resource_variables(claim: ResourceClaim, resource_of: ResourceOfClass) -> Mapping[str, tuple[str, ...]]:
    """The names of KubeVirt's variables for the devices of each request. Empty for all other claims."""
    if not is_for_extended_resources(claim):
        return {}
    classes = {name: wanted.device_class_name for name, wanted in claim.spec.requirements}
    names = {
        class_name: (resource_of(class_name), f"{CLASS_RESOURCE_PREFIX}{class_name}")
        for class_name in dict.fromkeys(classes.values())
    }
    return {
        request: tuple(variable(name) for name in names[class_name] if name) for request, class_name in classes.items()
    }


def variable(resource: str) -> str:
    """`PCI_RESOURCE_NVIDIA_COM_GH100` for `nvidia.com/gh100`."""
    return _PREFIX + resource.upper().replace("/", "_").replace(".", "_")


def container_of(request: str) -> str:
    """A text that is equal for the requests of one container. The scheduler names a request after its container."""
    found = _OF_CONTAINER.fullmatch(request)
    return found[1] if found else request
