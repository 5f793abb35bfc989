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
from .groups import FormPart, PodGroup, field_at, joined, merged

_IMAGE: Final = "set-by-the-controller"
_DEVICES: Final = ("gpus", "hostDevices")
_INSTANCE_TYPES: Final = "instancetype.kubevirt.io"
_TEMPLATE: Final = ".template.spec"
"""The path of a machine in the spec of its VirtualMachine."""
_OVERHEAD: Final = "the cpu and memory that KubeVirt adds for the machine itself are not considered"


def devices_of(machine_spec: JSON) -> Iterator[tuple[str, JSON]]:
    """The GPUs and other devices of a machine (the spec of a VirtualMachineInstance), with their paths in it."""
    devices = within(machine_spec, "domain", "devices")
    for field in _DEVICES:
        for index, device in enumerate(each(devices, field)):
            yield f"domain.devices.{field}[{index}]", device


def machine(part: FormPart) -> Iterator[PodGroup]:
    """The pod of a virtual machine."""
    owner = field_at(part.whole, part.path.removesuffix(_TEMPLATE)) or {}
    of_type, unknown = _instance_type(part, owner)
    found = [("domain.devices", device) for field in _DEVICES for device in each(of_type, field)]
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
        "requests": {**_memory(of_type), **_memory(within(part.value, "domain")), **within(of_domain, "requests")},
    }
    if uses:
        resources["claims"] = uses
    placed = {name: of_type[name] for name in ("nodeSelector", "schedulerName") if of_type.get(name)}
    spec = merged(placed, part.value)
    spec = {name: field for name, field in spec.items() if name in POD_FIELDS and name not in ("volumes", "hostname")}
    spec["containers"] = [{"name": "compute", "image": _IMAGE, "resources": resources}]
    moved["containers[0].resources"] = joined(part.path, "domain.devices")
    labels = within(owner, "template", "metadata")
    yield PodGroup(part.path, spec, labels, part.count, part.role, moved, notes=(_OVERHEAD,), unknown=unknown)


def _memory(owner: JSON) -> JSON:
    """The request for the memory of the guest: of a machine's domain, or of an instance type."""
    memory = within(owner, "memory").get("guest")
    return {"memory": memory} if isinstance(memory, str) else {}


def _instance_type(part: FormPart, owner: JSON) -> tuple[JSON, tuple[str, ...]]:
    """The spec of the instance type of the machine, and what is not known. `owner` is the spec of the VirtualMachine.

    An instance type adds GPUs, host devices and memory, and says on which nodes the machine may be.
    """
    reference = within(owner, "instancetype")
    name = str(reference.get("name") or "")
    if not name:
        volume = reference.get("inferFromVolume")
        return {}, (f"its instance type, which may add GPUs, is that of volume {volume}",) if volume else ()
    kind = "VirtualMachineClusterInstancetype"
    if str(reference.get("kind") or "").lower().removesuffix("s") == "virtualmachineinstancetype":
        kind = "VirtualMachineInstancetype"
    namespace = part.namespace if kind == "VirtualMachineInstancetype" else ""
    key = (_INSTANCE_TYPES, kind)
    found = part.library.find(key, namespace, name)
    if found is None:
        return {}, (f"{kind} {name}, which may add GPUs, {part.library.reason(key, namespace, name)}",)
    return within(found, "spec"), ()
