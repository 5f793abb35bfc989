# SPDX-License-Identifier: Apache-2.0
"""Virtual machines of KubeVirt, as the pods in which they run.

A machine names its GPUs by the resource of a device plugin (`deviceName`) or by a claim of the machine (`claimName` and
`requestName`). Its pod requests these for its container `compute`.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from ..scheduler.pods import POD_FIELDS
from .documents import JSON, each, within
from .groups import Part, PodGroup, joined

_IMAGE: Final = "set-by-the-controller"
_DEVICES: Final = ("gpus", "hostDevices")
_INSTANCE_TYPES: Final = "instancetype.kubevirt.io"
_OVERHEAD: Final = "the cpu and memory that KubeVirt adds for the machine itself are not considered"


def devices_of(machine_spec: JSON) -> Iterator[tuple[str, JSON]]:
    """The GPUs and other devices of a machine (the spec of a VirtualMachineInstance), with their paths in it."""
    devices = within(machine_spec, "domain", "devices")
    for field in _DEVICES:
        for index, device in enumerate(each(devices, field)):
            yield f"domain.devices.{field}[{index}]", device


def machine(part: Part) -> Iterator[PodGroup]:
    """The pod of a virtual machine."""
    found, unknown = _devices_of_type(part)
    limits: Counter[str] = Counter()
    uses: list[JSON] = []
    moved: dict[str, str] = {}
    for path, device in [*devices_of(part.value), *found]:
        if name := device.get("claimName"):
            request = device.get("requestName")
            use = f"containers[0].resources.claims[{len(uses)}]"
            moved[f"{use}.name"] = joined(part.path, f"{path}.claimName")
            moved[f"{use}.request"] = joined(part.path, f"{path}.requestName")
            uses.append({"name": name, **({"request": request} if request else {})})
        elif device.get("deviceName"):
            limits[str(device["deviceName"])] += 1
    of_domain = within(part.value, "domain", "resources")
    resources: JSON = {
        "limits": {**within(of_domain, "limits"), **limits},
        "requests": {**_memory(part.value), **within(of_domain, "requests")},
    }
    if uses:
        resources["claims"] = uses
    spec = {name: one for name, one in part.value.items() if name in POD_FIELDS and name not in ("volumes", "hostname")}
    spec["containers"] = [{"name": "compute", "image": _IMAGE, "resources": resources}]
    moved["containers[0].resources"] = joined(part.path, "domain.devices")
    labels = within(part.whole, "spec", "template", "metadata")
    yield PodGroup(part.path, spec, labels, part.count, part.role, moved, notes=(_OVERHEAD,), unknown=unknown)


def _memory(machine_spec: JSON) -> JSON:
    memory = within(machine_spec, "domain", "memory").get("guest")
    return {"memory": memory} if isinstance(memory, str) else {}


def _devices_of_type(part: Part) -> tuple[list[tuple[str, JSON]], tuple[str, ...]]:
    """The devices that the instance type of the machine adds, and what is not known."""
    reference = within(part.whole, "spec", "instancetype")
    name = str(reference.get("name") or "")
    if not name:
        return [], ()
    kind = "VirtualMachineClusterInstancetype"
    if str(reference.get("kind") or "").lower() == "virtualmachineinstancetype":
        kind = "VirtualMachineInstancetype"
    namespace = part.namespace if kind == "VirtualMachineInstancetype" else ""
    found = part.library.find((_INSTANCE_TYPES, kind), namespace, name)
    if found is None:
        return [], (f"{kind} {name}, which may add GPUs, is not among the files",)
    spec = within(found, "spec")
    return [("domain.devices", device) for field in _DEVICES for device in each(spec, field)], ()
