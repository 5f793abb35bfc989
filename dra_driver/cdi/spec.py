# SPDX-License-Identifier: Apache-2.0
"""A CDI spec as immutable values: what a container runtime changes in a container that asks for a device.

The fields are those of SPEC.md (1.1.0) of the Container Device Interface. Its `netDevices` and `intelRdt` are left
out: no GPU needs them. An empty string, None, 0 for a device number and an empty tuple mean that a field is absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_NO_ANNOTATIONS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node in the container.

    The runtime looks up what is absent (`type`, `major`) at `host_path`, or else at `path`, when it creates the
    container, and fails when no device is there. With type and major given, no node need exist on the host.
    """

    path: str
    host_path: str = ""
    type: str = ""
    """`c` or `u` (character), `b` (block), `p` (pipe)."""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    """Permission bits of the node."""
    permissions: str = ""
    """What the container's device cgroup allows: of `r`, `w` and `m` (mknod); all three when absent."""
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount in the container. `type` is absent for bind mounts."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


@dataclass(frozen=True, slots=True)
class Hook:
    """A program of the host that the OCI runtime runs at the stage `hook_name` of a container's life.

    `args` begins with the program's own name. `timeout` is in seconds.
    """

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """Changes to a container. `env` holds `NAME=value`."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()

    def __add__(self, other: "ContainerEdits") -> "ContainerEdits":
        """These edits, then those of `other`."""
        return ContainerEdits(
            env=self.env + other.env,
            device_nodes=self.device_nodes + other.device_nodes,
            mounts=self.mounts + other.mounts,
            hooks=self.hooks + other.hooks,
            additional_gids=self.additional_gids + other.additional_gids,
        )

    def __bool__(self) -> bool:
        """Whether anything is changed at all."""
        return bool(self.env or self.device_nodes or self.mounts or self.hooks or self.additional_gids)


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a container can ask for by `kind=name`."""

    name: str
    container_edits: ContainerEdits
    annotations: Mapping[str, str] = field(default_factory=lambda: _NO_ANNOTATIONS)


@dataclass(frozen=True, slots=True)
class Spec:
    """Devices of one kind.

    `container_edits` are made once in a container that asks for any of the devices. Without a `cdi_version`, the
    lowest one that the content needs is written, so that the oldest possible runtime can read the spec.
    """

    kind: str
    devices: tuple[Device, ...]
    container_edits: ContainerEdits = ContainerEdits()
    annotations: Mapping[str, str] = field(default_factory=lambda: _NO_ANNOTATIONS)
    cdi_version: str = ""
