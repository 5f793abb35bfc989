# SPDX-License-Identifier: Apache-2.0
"""What nvidia-smi says of a node, and where an inventory says something else.

Read are `nvidia-smi -q -x`, `--query-gpu`, `-L`, `mig -lgip` and `mig -lgipp`, in the form that drivers since 535 give.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from dra_driver.gpu.inventory import Gpu, Inventory, MigProfile
from dra_driver.gpu.nvml import Placement

NvidiaSmi = Callable[..., str]
"""Runs nvidia-smi with these arguments, gives what it prints."""

_MIB = 1 << 20
_CAPABILITIES = "--query-gpu=uuid,compute_cap", "--format=csv,noheader"
_LISTED_GPU = re.compile(r"GPU \d+: .* \(UUID: (?P<uuid>GPU-[^)]+)\)")
_LISTED_MIG = re.compile(r"\s+MIG .* \(UUID: (?P<uuid>MIG-[^)]+)\)")
_PROFILE = re.compile(
    r"\|\s+(?P<gpu>\d+)\s+MIG (?P<name>\S+)\s+(?P<id>\d+)\s+\d+/(?P<instances>\d+)\s+(?P<gib>[\d.]+)\s+\w+"
    r"\s+(?P<sm>\d+)\s+(?P<dec>\d+)\s+(?P<enc>\d+)\s+\|\s*\n"
    r"\|\s+(?P<ce>\d+)\s+(?P<jpeg>\d+)\s+(?P<ofa>\d+)\s+\|"
)
_PLACEMENT = re.compile(
    r"GPU\s+(?P<gpu>\d+) Profile ID\s+(?P<id>\d+) Placements?\s*: \{(?P<starts>[\d,]+)\}:(?P<size>\d+)"
)


@dataclass(frozen=True)
class SmiProfile:
    """A MIG profile as nvidia-smi lists it; memory in GiB with two digits behind the point."""

    name: str
    instances: int
    gib: str
    multiprocessors: int
    decoders: int
    encoders: int
    copy_engines: int
    jpeg_engines: int
    ofa_engines: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True)
class SmiGpu:
    """One GPU as nvidia-smi describes it. `facts` are the texts of its XML element by path, where there is one."""

    uuid: str
    facts: Mapping[str, str]
    capability: str
    mig_uuids: frozenset[str]
    profiles: Mapping[int, SmiProfile] = field(default_factory=dict)


@dataclass(frozen=True)
class SmiNode:
    """The GPUs in nvidia-smi's order."""

    driver_version: str
    cuda_version: str
    gpus: tuple[SmiGpu, ...]


def read_smi(nvidia_smi: NvidiaSmi) -> SmiNode:
    """What nvidia-smi says."""
    log = ElementTree.fromstring(nvidia_smi("-q", "-x"))
    capabilities = dict(line.split(", ") for line in nvidia_smi(*_CAPABILITIES).splitlines())
    migs = _mig_uuids(nvidia_smi("-L"))
    gpus = log.findall("gpu")
    profiles: dict[int, dict[int, SmiProfile]] = {}
    if any(gpu.findtext("mig_mode/current_mig") == "Enabled" for gpu in gpus):
        profiles = _profiles(nvidia_smi("mig", "-lgip"), nvidia_smi("mig", "-lgipp"))
    return SmiNode(
        driver_version=log.findtext("driver_version", ""),
        cuda_version=log.findtext("cuda_version", ""),
        gpus=tuple(
            SmiGpu(
                uuid=(uuid := gpu.findtext("uuid", "")),
                facts=dict(_texts(gpu)),
                capability=capabilities[uuid],
                mig_uuids=frozenset(migs[uuid]),
                profiles=profiles.get(index, {}),
            )
            for index, gpu in enumerate(gpus)
        ),
    )


def differences(inventory: Inventory, smi: SmiNode) -> list[str]:
    """Where the inventory says something else than nvidia-smi, one line each."""
    return [
        f"{what}: {ours!r} is not nvidia-smi's {theirs!r}"
        for what, ours, theirs in _pairs(inventory, smi)
        if ours != theirs
    ]


def device_node_differences(inventory: Inventory, dev: Path, majors: str) -> list[str]:
    """Where the device nodes of the GPUs in `dev` are not as they should be. `majors` is the text of /proc/devices."""
    found = re.search(r"^\s*(\d+) nvidia(-frontend)?$", majors, re.MULTILINE)
    if found is None:
        return ["/proc/devices: nvidia is not listed"]
    wrong = []
    for gpu in inventory.gpus:
        path = dev / f"nvidia{gpu.minor}"
        try:
            status = path.stat()
        except FileNotFoundError:
            wrong.append(f"{path.name}: does not exist")
            continue
        numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
        if not stat.S_ISCHR(status.st_mode):
            wrong.append(f"{path.name}: is no character device")
        elif numbers != (int(found[1]), gpu.minor):
            wrong.append(f"{path.name}: is {numbers}, not {(int(found[1]), gpu.minor)}")
    return wrong


def _pairs(inventory: Inventory, smi: SmiNode) -> Iterator[tuple[str, object, object]]:
    """(What, the inventory's, nvidia-smi's) of everything that both know."""
    yield "driver version", inventory.driver_version, smi.driver_version
    cuda = inventory.cuda_driver_version
    yield "CUDA version", None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}", smi.cuda_version
    yield "UUIDs", [gpu.uuid for gpu in inventory.gpus], [gpu.uuid for gpu in smi.gpus]
    theirs = {gpu.uuid: gpu for gpu in smi.gpus}
    for gpu in inventory.gpus:
        if gpu.uuid in theirs:
            for what, ours, other in _gpu_pairs(gpu, theirs[gpu.uuid]):
                yield f"GPU {gpu.index}: {what}", ours, other


def _gpu_pairs(gpu: Gpu, smi: SmiGpu) -> Iterator[tuple[str, object, object]]:
    ours: dict[str, object] = {
        "product_name": gpu.product_name,
        "product_architecture": gpu.architecture,
        "minor_number": str(gpu.minor),
        "pci/pci_bus_id": _bus_id(gpu.pci_address),
        "fb_memory_usage/total": "N/A" if gpu.memory is None else f"{gpu.memory // _MIB} MiB",
        "gpu_module_id": str(gpu.module_id or 0),
        "addressing_mode": gpu.addressing_mode or "N/A",
        "mig_mode/current_mig": "N/A" if gpu.mig_mode is None else _switch(gpu.mig_mode.current),
        "mig_mode/pending_mig": "N/A" if gpu.mig_mode is None else _switch(gpu.mig_mode.pending),
    }
    for path, value in ours.items():
        if path in smi.facts:  # older drivers print less
            yield path, value, smi.facts[path]
    capability = gpu.compute_capability
    yield "compute_cap", None if capability is None else "{}.{}".format(*capability), smi.capability
    yield "MIG devices", _compute_instances(gpu), set(smi.mig_uuids)
    if gpu.in_mig_mode:
        profiles = {profile.info.id: _profile(profile) for profile in gpu.mig_profiles}
        yield "MIG profiles", sorted(profiles), sorted(smi.profiles)
        for number in profiles.keys() & smi.profiles.keys():
            yield f"MIG profile {number}", profiles[number], smi.profiles[number]


def _compute_instances(gpu: Gpu) -> set[str]:
    """The UUIDs of all compute instances."""
    return {one.uuid for one in gpu.mig_instances}.union(*(one.uuids for one in gpu.partial_instances))


def _profile(profile: MigProfile) -> SmiProfile:
    info = profile.info
    return SmiProfile(
        name=profile.name,
        instances=info.instance_count,
        gib=f"{info.memory_mib / 1024:.2f}",
        multiprocessors=info.multiprocessors,
        decoders=info.decoders,
        encoders=info.encoders,
        copy_engines=info.copy_engines,
        jpeg_engines=info.jpeg_engines,
        ofa_engines=info.ofa_engines,
        placements=profile.placements,
    )


def _switch(on: bool) -> str:
    return "Enabled" if on else "Disabled"


def _bus_id(address: str | None) -> str | None:
    """`00000000:3B:00.0` for `0000:3b:00.0`."""
    if address is None:
        return None
    domain, _, rest = address.partition(":")
    return f"{int(domain, 16):08X}:{rest.upper()}"


def _texts(element: ElementTree.Element, path: str = "") -> Iterator[tuple[str, str]]:
    """The texts of all elements below that have no others in them, by path."""
    for child in element:
        below = f"{path}/{child.tag}" if path else child.tag
        if len(child):
            yield from _texts(child, below)
        else:
            yield below, (child.text or "").strip()


def _mig_uuids(listing: str) -> dict[str, list[str]]:
    """The UUIDs of MIG devices by that of their GPU, from `nvidia-smi -L`."""
    found: dict[str, list[str]] = {}
    devices: list[str] = []
    for line in listing.splitlines():
        if gpu := _LISTED_GPU.fullmatch(line):
            devices = found.setdefault(gpu["uuid"], [])
        elif mig := _LISTED_MIG.fullmatch(line):
            devices.append(mig["uuid"])
    return found


def _profiles(profiles: str, placements: str) -> dict[int, dict[int, SmiProfile]]:
    """The profiles by GPU index and profile id, from `mig -lgip` and `mig -lgipp`."""
    places = {
        (int(one["gpu"]), int(one["id"])): tuple(
            Placement(int(start), int(one["size"])) for start in one["starts"].split(",")
        )
        for one in _PLACEMENT.finditer(placements)
    }
    found: dict[int, dict[int, SmiProfile]] = {}
    for one in _PROFILE.finditer(profiles):
        gpu, number = int(one["gpu"]), int(one["id"])
        found.setdefault(gpu, {})[number] = SmiProfile(
            name=one["name"],
            instances=int(one["instances"]),
            gib=one["gib"],
            multiprocessors=int(one["sm"]),
            decoders=int(one["dec"]),
            encoders=int(one["enc"]),
            copy_engines=int(one["ce"]),
            jpeg_engines=int(one["jpeg"]),
            ofa_engines=int(one["ofa"]),
            placements=places.get((gpu, number), ()),
        )
    return found
