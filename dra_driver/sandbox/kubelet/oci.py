# SPDX-License-Identifier: Apache-2.0
"""What a container is created with once its CDI devices are injected, and the OCI config that says so."""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .cdi import HOOK_NAMES, CdiError, DeviceNode, Edits, Hook, IntelRdt, Mount, NetDevice


@dataclass(frozen=True, slots=True)
class DeviceStat:
    """What a path on the host is, as a device: type c, b or p, and its numbers."""

    type: str
    major: int
    minor: int


def stat_device(path: str) -> DeviceStat:
    """What the device node at `path` is, links not followed. Raises CdiError for anything else."""
    try:
        status = os.lstat(path)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise CdiError(f'failed to stat CDI host device "{path}": {reason}') from error
    kinds = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"}
    kind = kinds.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        raise CdiError(f'failed to stat CDI host device "{path}": not a device node')
    return DeviceStat(kind, os.major(status.st_rdev), os.minor(status.st_rdev))


def stat_stand_in(path: str) -> DeviceStat:
    """The same, but an ordinary file counts as a character device: a node where none can be made."""
    file = Path(path)
    return DeviceStat("c", 0, 0) if file.is_file() and not file.is_symlink() else stat_device(path)


@dataclass(frozen=True, slots=True)
class OciDevice:
    """A device node in the container."""

    path: str
    host_path: str
    type: str
    major: int
    minor: int
    access: str
    """What the cgroup allows, of `rwm`; empty where cgroups have no say."""
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What a container is created with. `hooks` are by OCI name, in the order they run."""

    env: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    devices: tuple[OciDevice, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: Mapping[str, tuple[Hook, ...]] = field(default_factory=lambda: MappingProxyType({}))
    net_devices: tuple[NetDevice, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()
    cdi_devices: tuple[str, ...] = ()

    def variable(self, name: str) -> str | None:
        """The value of an environment variable."""
        return next((value for key, _, value in (e.partition("=") for e in self.env) if key == name), None)


def apply(edits: Edits, base: ContainerSpec, device_stat: Callable[[str], DeviceStat]) -> ContainerSpec:
    """`base` with the edits in it. What it has of the same name or path is replaced. Raises CdiError."""
    env = {entry.partition("=")[0]: entry for entry in (*base.env, *edits.env)}
    devices = _by_last((device.path, device) for device in base.devices)
    devices |= _by_last((node.path, _device(node, device_stat)) for node in edits.device_nodes)
    mounts = _by_last((mount.container_path, mount) for mount in (*base.mounts, *edits.mounts))
    return ContainerSpec(
        env=tuple(env.values()),
        args=base.args,
        devices=tuple(devices.values()),
        mounts=tuple(sorted(mounts.values(), key=_depth)) if edits.mounts else tuple(mounts.values()),
        hooks={
            name: hooks
            for name in HOOK_NAMES
            if (hooks := (*base.hooks.get(name, ()), *(h for h in edits.hooks if h.hook_name == name)))
        },
        net_devices=(*base.net_devices, *edits.net_devices),
        intel_rdt=edits.intel_rdt or base.intel_rdt,
        additional_gids=tuple(dict.fromkeys((*base.additional_gids, *(gid for gid in edits.additional_gids if gid)))),
        cdi_devices=base.cdi_devices,
    )


def _by_last(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A later entry takes the earlier one's name, but its own place."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        result.pop(key, None)
        result[key] = value
    return result


def _depth(mount: Mount) -> int:
    return os.path.normpath(mount.container_path).count("/")


def _device(node: DeviceNode, device_stat: Callable[[str], DeviceStat]) -> OciDevice:
    host_path = node.host_path or node.path
    kind, major, minor, file_mode = node.type, node.major, node.minor, node.file_mode
    if not kind or (not major and kind != "p"):
        found = device_stat(host_path)
        if kind and kind != found.type:
            raise CdiError(f'CDI device ("{node.path}", "{host_path}"), host type mismatch ({kind}, {found.type})')
        kind = found.type
        if not major and kind != "p":
            major, minor = found.major, found.minor
    access = (node.permissions or "rwm") if kind in ("b", "c") else ""
    return OciDevice(node.path, host_path, kind, major, minor, access, file_mode, node.uid, node.gid)


def problems_on_host(spec: ContainerSpec) -> tuple[str, ...]:
    """Why a container could not start on this host: mounts without a source, hooks without a program."""
    mounts = [
        f'error mounting "{mount.host_path}" to rootfs at "{mount.container_path}": no such file or directory'
        for mount in spec.mounts
        if mount.host_path.startswith("/") and not Path(mount.host_path).exists()
    ]
    hooks = [
        f'error running {name} hook "{hook.path}": no such program'
        for name, all_hooks in spec.hooks.items()
        for hook in all_hooks
        if not os.access(hook.path, os.X_OK)
    ]
    return (*mounts, *hooks)


def to_json(spec: ContainerSpec) -> Mapping[str, Any]:
    """An OCI runtime config with what is known here; the parts that every container has alike are left out."""
    linux: dict[str, Any] = {
        "devices": [_device_json(device) for device in spec.devices],
        "resources": {
            "devices": [
                {"allow": True, "type": d.type, "major": d.major, "minor": d.minor, "access": d.access}
                for d in spec.devices
                if d.access
            ]
        },
    }
    if spec.net_devices:
        linux["netDevices"] = {device.host_interface_name: {"name": device.name} for device in spec.net_devices}
    if rdt := spec.intel_rdt:
        linux["intelRdt"] = _present(
            closID=rdt.clos_id,
            l3CacheSchema=rdt.l3_cache_schema,
            memBwSchema=rdt.mem_bw_schema,
            schemata=list(rdt.schemata),
            enableMonitoring=rdt.enable_monitoring,
        )
    return {
        "ociVersion": "1.2.0",
        "process": {
            "args": list(spec.args),
            "env": list(spec.env),
            "user": _present(additionalGids=list(spec.additional_gids)) | {"uid": 0, "gid": 0},
        },
        "mounts": [
            {"destination": mount.container_path, "source": mount.host_path}
            | _present(type=mount.type, options=list(mount.options))
            for mount in spec.mounts
        ],
        "hooks": {name: [_hook_json(hook) for hook in hooks] for name, hooks in spec.hooks.items()},
        "linux": linux,
    }


def _device_json(device: OciDevice) -> Mapping[str, Any]:
    required = {"path": device.path, "type": device.type, "major": device.major, "minor": device.minor}
    optional = {"fileMode": device.file_mode, "uid": device.uid, "gid": device.gid}
    return required | {key: value for key, value in optional.items() if value is not None}


def _hook_json(hook: Hook) -> Mapping[str, Any]:
    return {"path": hook.path} | _present(args=list(hook.args), env=list(hook.env), timeout=hook.timeout)


def _present(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}
