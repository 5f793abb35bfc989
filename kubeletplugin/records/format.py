# SPDX-License-Identifier: Apache-2.0
"""The format of a record. Version 2 has a list of steps. Version 1, which had only MIG devices to create, can still be
read. Version 3 has steps for settings of GPUs, version 4 has steps for MPS. Version 5 has GPUs for virtual machines,
and the CDI devices of shares are named by the share. Version 6 has NVSwitch partitions, vGPUs, and additional devices.
A version is written only for claims that need it, so that an older plugin can read the other records.

Records are JSON, so that people can read them after an error. They are decoded strictly. The claim comes first, because
it is the most important part of a file that was truncated.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dra_driver.gpu.nvml import ComputeMode, Placement
from dra_driver.gpu.vgpus import VgpuPlace
from dra_driver.kube.resource.codec import DecodeError, Fields
from dra_driver.kube.resource.meta import empty
from dra_driver.names import AdditionalDevice

from ..errors import NewerVersionError
from ..kinds.gpu_settings import LEVELS
from ..kinds.targets import ClaimRef, MachineTarget, MigInstanceIds, MigSlot, Target, VfioGpu, Vgpu, WholeGpu
from ..kinds.vfio.passthrough import NOTHING_EXTRA, Passthrough
from ..plans.plan import Plan, PlannedDevice, steps_for, vfio_step
from ..steps import (
    ComputeModeStep,
    FabricStep,
    InstanceStep,
    LookStep,
    MigModeStep,
    MpsLimits,
    MpsStep,
    Step,
    TimeSliceStep,
    VfioStep,
    VgpuStep,
)
from .files import RecordFiles, RecordFormat, State, read_files

VERSION = 6
_SHARES_NAMED_SINCE = 5
_ADDITIONAL_SINCE = 6
MARKED_SINCE = 2
"""The first version whose MIG instances have marks. Instances of unfinished older claims are recognized only
by place.
"""


_SINCE: Mapping[type, int] = {
    FabricStep: 6,
    VgpuStep: 6,
    VfioStep: 5,
    MpsStep: 4,
    ComputeModeStep: 3,
    TimeSliceStep: 3,
}
"""The version since which there are such steps, where that is not the oldest that is written."""


@dataclass(frozen=True, slots=True)
class Record:
    """A claim's plan and its progress. `instances` are the MIG instances of its devices, by device name, and known only
    while it is prepared. In other states, the hardware shows which of them exist. `version` is the version of the file.
    """

    state: State
    boot_id: str
    plan: Plan
    instances: Mapping[str, MigInstanceIds] = field(default_factory=empty)
    version: int = field(default=VERSION, compare=False)


def encode(record: Record) -> bytes:
    """The record in the oldest version that can represent it, at least 2."""
    claim = record.plan.claim
    value: dict[str, Any] = {
        "version": _version(record.plan),
        "claim": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
        "state": record.state.value,
        "bootID": record.boot_id,
        "pool": record.plan.pool,
        "devices": [_encode_device(device) for device in record.plan.devices],
        "steps": [_encode_step(step, record.plan) for step in record.plan.steps],
        "instances": {
            name: {"gi": ids.gpu_instance, "ci": ids.compute_instance, "uuid": ids.uuid, "made": ids.made}
            for name, ids in record.instances.items()
        },
    }
    return json.dumps(value).encode()


def decode(data: bytes) -> Record:
    """Decode a record of any supported version. Raises NewerVersionError or ValueError."""
    fields = Fields(json.loads(data))
    version = fields.required_integer("version")
    if version > VERSION:
        raise NewerVersionError(f"it has version {version}, and this plugin supports {VERSION}")
    claim = fields.required_object("claim")
    ref = ClaimRef(claim.text("namespace"), claim.text("name"), claim.required_text("uid"))
    instances = fields.raw_object("instances") or {}
    state, boot_id = State(fields.required_text("state")), fields.text("bootID")
    pool, devices = fields.required_text("pool"), fields.objects("devices", _decode_device)
    if version < _SHARES_NAMED_SINCE:
        devices = tuple(replace(one, has_plain_name=one.share_id is not None) for one in devices)
    if version < 2:
        steps = steps_for(devices, set(), set())
    else:
        steps = fields.objects("steps", lambda step: _decode_step(step, devices))
    record = Record(
        state,
        boot_id,
        Plan(ref, pool, devices, steps),
        {name: _decode_ids(Fields(value, f"instances[{name}]", fields)) for name, value in instances.items()},
        version,
    )
    claim.finish()
    fields.finish()
    return record


def _version(plan: Plan) -> int:
    """The oldest version that can represent the plan, at least 2."""
    needed = [_SINCE.get(type(step), 2) for step in plan.steps]
    needed += [_SHARES_NAMED_SINCE for one in plan.devices if one.cdi_name != one.name]
    needed += [_ADDITIONAL_SINCE for one in plan.devices if one.additional_devices]
    return max(needed, default=2)


# Devices


def _encode_device(device: PlannedDevice) -> dict[str, Any]:
    value: dict[str, Any] = {"name": device.name, "request": device.request}
    match device.target:
        case WholeGpu(uuid, minor, pci_address):
            value["gpu"] = {"uuid": uuid, "minor": minor, "pciAddress": pci_address}
        case MigSlot() as slot:
            value["mig"] = {
                "gpuUUID": slot.gpu_uuid,
                "minor": slot.minor,
                "profile": slot.profile,
                "profileID": slot.profile_id,
                "slices": slot.slices,
                "start": slot.placement.start,
                "size": slot.placement.size,
            }
            if slot.pci_address:
                value["mig"]["pciAddress"] = slot.pci_address
        case VfioGpu(gpu_uuid, address, group, minor):
            found = {"gpuUUID": gpu_uuid, "pciAddress": address, "group": group, "minor": minor}
            value["vfio"] = {**found, **_encode_passthrough(device.passthrough)}
        case Vgpu(place, name, start, size, mixed):
            value["vgpu"] = {
                "gpuUUID": place.gpu_uuid,
                "pciAddress": place.address,
                "typeID": place.type_id,
                "mdevUUID": place.mdev,
                "type": name,
                **({} if start is None else {"start": start}),
                "size": size,
                "mixed": mixed,
                **_encode_passthrough(device.passthrough),
            }
    if device.admin:
        value["admin"] = True
    if device.share_id is not None:
        value["shareID"] = device.share_id
    if device.memory_limit is not None:
        value["memoryLimit"] = device.memory_limit
    if device.additional_devices:
        value["additionalDevices"] = list(device.additional_devices)
    return value


def _encode_passthrough(access: Passthrough) -> dict[str, Any]:
    return {
        "preferIommuFD": access.prefer_iommufd,
        "apiDevice": access.api_device,
        "variables": list(access.variables),
    }


def _decode_passthrough(fields: Fields) -> Passthrough:
    return Passthrough(fields.flag("preferIommuFD"), fields.flag("apiDevice"), fields.texts("variables"))


def _decode_device(fields: Fields) -> PlannedDevice:
    gpu, mig, vfio, vgpu = (fields.object(kind) for kind in ("gpu", "mig", "vfio", "vgpu"))
    passthrough = NOTHING_EXTRA
    if gpu is not None:
        target: Target = WholeGpu(gpu.required_text("uuid"), gpu.required_integer("minor"), gpu.text("pciAddress"))
        gpu.finish()
    elif mig is not None:
        target = MigSlot(
            gpu_uuid=mig.required_text("gpuUUID"),
            minor=mig.required_integer("minor"),
            profile=mig.required_text("profile"),
            profile_id=mig.required_integer("profileID"),
            slices=mig.required_integer("slices"),
            placement=Placement(mig.required_integer("start"), mig.required_integer("size")),
            pci_address=mig.text("pciAddress"),
        )
        mig.finish()
    elif vfio is not None:
        target = VfioGpu(
            vfio.required_text("gpuUUID"),
            vfio.required_text("pciAddress"),
            vfio.required_integer("group"),
            vfio.required_integer("minor"),
        )
        passthrough = _decode_passthrough(vfio)
        vfio.finish()
    elif vgpu is not None:
        place = VgpuPlace(
            vgpu.required_text("gpuUUID"),
            vgpu.required_text("pciAddress"),
            vgpu.required_integer("typeID"),
            vgpu.text("mdevUUID"),
        )
        start, size = vgpu.integer("start"), vgpu.required_integer("size")
        target = Vgpu(place, vgpu.required_text("type"), start, size, vgpu.flag("mixed"))
        passthrough = _decode_passthrough(vgpu)
        vgpu.finish()
    else:
        raise fields.error("", "neither gpu nor mig nor vfio nor vgpu")
    device = PlannedDevice(
        name=fields.required_text("name"),
        request=fields.required_text("request"),
        target=target,
        admin=fields.flag("admin"),
        share_id=fields.optional_text("shareID"),
        passthrough=passthrough,
        memory_limit=fields.integer("memoryLimit"),
        additional_devices=tuple(map(AdditionalDevice, fields.texts("additionalDevices"))),
    )
    fields.finish()
    return device


def _decode_ids(fields: Fields) -> MigInstanceIds:
    ids = MigInstanceIds(
        fields.required_integer("gi"), fields.required_integer("ci"), fields.required_text("uuid"), fields.flag("made")
    )
    fields.finish()
    return ids


# Steps. Each kind has a name, and only those values that the devices do not have.


def _encode_step(step: Step, plan: Plan) -> dict[str, Any]:
    match step:
        case MigModeStep(gpu_uuid, on, may_switch):
            return {"kind": "migMode", "gpuUUID": gpu_uuid, "on": on, "maySwitch": may_switch}
        case ComputeModeStep(gpu_uuid, mode):
            return {"kind": "computeMode", "gpuUUID": gpu_uuid, "mode": mode}
        case TimeSliceStep(gpu_uuid, level):
            return {"kind": "timeSlice", "gpuUUID": gpu_uuid, "level": level}
        case InstanceStep(device):
            return {"kind": "instance", "device": device}
        case LookStep(device):
            return {"kind": "look", "device": device}
        case VfioStep(target=target) | VgpuStep(target=target):
            return {"kind": "vfio", "device": next(one.name for one in plan.devices if one.target == target)}
        case FabricStep(partition, modules, gpus):
            return {"kind": "fabric", "partition": partition, "modules": list(modules), "gpus": list(gpus)}
        case MpsStep(devices, share=share, protocol=protocol, limits=limits):
            names = {one.target: one.name for one in plan.devices}
            return {
                "kind": "mps",
                "devices": list(devices),
                "group": [names[target] for target in step.group],
                "share": share,
                "protocol": protocol,
                "percentage": limits.percentage,
                "memory": limits.memory,
                "perDevice": dict(limits.per_device),
                "multiUser": step.multi_user,
                "sharedMemory": step.shared_memory,
                **({"shareID": step.share_id} if step.share_id else {}),
            }
    raise TypeError(f"{step!r} cannot be recorded")


def _decode_step(fields: Fields, devices: Sequence[PlannedDevice]) -> Step:
    targets = {one.name: one.target for one in devices}
    kind = fields.required_text("kind")
    match kind:
        case "migMode":
            step: Step = MigModeStep(fields.required_text("gpuUUID"), fields.flag("on"), fields.flag("maySwitch"))
        case "computeMode":
            step = ComputeModeStep(fields.required_text("gpuUUID"), _value(fields, "mode", tuple(ComputeMode)))
        case "timeSlice":
            step = TimeSliceStep(fields.required_text("gpuUUID"), _value(fields, "level", tuple(LEVELS.values())))
        case "instance":
            step = InstanceStep(*_device_slot(fields, targets))
        case "look":
            step = LookStep(*_device_slot(fields, targets))
        case "vfio":
            step = _vfio(fields, devices)
        case "fabric":
            step = _fabric(fields)
        case "mps":
            step = _mps(fields, targets)
        case _:
            raise fields.error("kind", f"{kind!r} is unknown")
    fields.finish()
    return step


def _value(fields: Fields, field: str, known: Collection[int]) -> int:
    value = fields.required_integer(field)
    if value not in known:
        raise fields.error(field, f"{value} is unknown")
    return value


def _device_slot(fields: Fields, targets: Mapping[str, Target]) -> tuple[str, MigSlot]:
    device = fields.required_text("device")
    target = targets.get(device)
    if not isinstance(target, MigSlot):
        raise DecodeError(fields.path("device"), f"{device!r} is not a MIG device of this record")
    return device, target


def _vfio(fields: Fields, devices: Sequence[PlannedDevice]) -> Step:
    name = fields.required_text("device")
    device = next((one for one in devices if one.name == name), None)
    match device:
        case PlannedDevice(target=VfioGpu()):
            return vfio_step(device, devices)
        case PlannedDevice(target=Vgpu() as vgpu):
            return VgpuStep(vgpu)
    raise DecodeError(fields.path("device"), f"{name!r} is not a GPU for a virtual machine of this record")


def _fabric(fields: Fields) -> Step:
    modules, gpus = fields.array("modules"), fields.texts("gpus")
    if not modules or len(modules) != len(gpus) or any(type(one) is not int for one in modules):
        raise DecodeError(fields.path("modules"), "must have an integer for each of gpus")
    return FabricStep(fields.required_integer("partition"), tuple(modules), gpus)


def _mps(fields: Fields, targets: Mapping[str, Target]) -> Step:
    devices, group = fields.texts("devices"), fields.texts("group")
    usable = {name: one for name, one in targets.items() if not isinstance(one, MachineTarget)}
    unknown = [one for one in (*devices, *group) if one not in usable]
    if unknown or not devices or not set(devices) <= set(group):
        raise DecodeError(fields.path("devices"), f"{', '.join(unknown) or 'they'} are no devices of this record")
    per_device = fields.raw_object("perDevice") or {}
    if not all(isinstance(limit, int) for limit in per_device.values()):
        raise DecodeError(fields.path("perDevice"), "limits must be integers")
    return MpsStep(
        devices=devices,
        targets=tuple(usable[one] for one in devices),
        group=tuple(usable[one] for one in group),
        share=fields.required_text("share"),
        protocol=_value(fields, "protocol", (2, 3)),
        limits=MpsLimits(fields.integer("percentage"), fields.integer("memory"), dict(per_device)),
        multi_user=fields.flag("multiUser"),
        shared_memory=fields.flag("sharedMemory"),
        share_id=fields.text("shareID"),
    )


FORMAT: Final = RecordFormat(encode, decode, lambda record: record.plan.claim)


class Records(RecordFiles[Record]):
    """The record files of claims with GPUs, in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FORMAT)


def read_records(folder: Path) -> tuple[list[Record], dict[str, str]]:
    """The readable records, sorted by claim, and why others cannot be read. Changes nothing."""
    return read_files(folder, FORMAT)
