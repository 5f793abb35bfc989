# SPDX-License-Identifier: Apache-2.0
"""A CDI spec as immutable values, with its names, its version, and the error for an invalid one.

The fields are those of SPEC.md (1.1.0) of the Container Device Interface. Its `netDevices` and `intelRdt` are left
out, because no GPU needs them. An empty string, None, 0 for a device number and an empty tuple mean that a field is
absent.

Names are the kind `vendor/class`, device names, and the qualified name `vendor/class=device`. Their characters are
those that the container-device-interface library accepts. The lengths of vendor and class are those of its SPEC.md,
which the library does not check.

`minimum_version` is the lowest `cdiVersion` that the content needs. Runtimes refuse a spec whose version is higher than
their library knows, or lower than what it uses. The rules are those of specs-go/version.go of the
container-device-interface library 1.1.0.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ..errors import DriverError

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


@dataclass(frozen=True, slots=True)
class Problem:
    """One violated rule. `path` is the JSON path of the field, empty for the whole document."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SpecError(DriverError, ValueError):
    """The spec is not one that a runtime would load. `problems` is never empty."""

    def __init__(self, problems: Iterable[Problem], source: str = "CDI spec") -> None:
        self.problems = tuple(problems)
        super().__init__(f"{source}: {'; '.join(str(problem) for problem in self.problems)}")


VENDOR_LENGTH = 253
CLASS_LENGTH = 63

_KIND_PART = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def is_vendor(name: str) -> bool:
    """Whether `name` can stand before the slash of a kind."""
    return len(name) <= VENDOR_LENGTH and _KIND_PART.fullmatch(name) is not None


def is_class(name: str) -> bool:
    """Whether `name` can stand after the slash of a kind."""
    return len(name) <= CLASS_LENGTH and _KIND_PART.fullmatch(name) is not None


def is_device_name(name: str) -> bool:
    """Whether `name` can name a device of a spec."""
    return _DEVICE.fullmatch(name) is not None


def split_kind(kind: str) -> tuple[str, str]:
    """Vendor and class of `kind`. ValueError when it is not of the form vendor/class."""
    vendor, slash, device_class = kind.partition("/")
    if not (slash and is_vendor(vendor) and is_class(device_class)):
        raise ValueError(
            f"{kind!r} is not a CDI kind: vendor/class, each of letters, digits, '_', '.' and '-', "
            f"beginning with a letter and ending with a letter or digit, of at most {VENDOR_LENGTH} "
            f"and {CLASS_LENGTH} characters"
        )
    return vendor, device_class


def qualified_name(kind: str, device: str) -> str:
    """What a container asks for: `vendor/class=device`. ValueError when a part is not a CDI name."""
    split_kind(kind)
    if not is_device_name(device):
        raise ValueError(
            f"{device!r} is not a CDI device name: letters, digits, '_', '.', ':' and '-', "
            "beginning and ending with a letter or digit"
        )
    return f"{kind}={device}"


def split_qualified_name(name: str) -> tuple[str, str]:
    """Kind and device name of a qualified name. ValueError when it is not one."""
    kind, equals, device = name.partition("=")
    if not equals:
        raise ValueError(f"{name!r} is not a qualified CDI device name: vendor/class=device")
    qualified_name(kind, device)
    return kind, device


VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Every released version, oldest first."""

FLOOR = "0.3.0"
"""No content needs less than this, and nothing below it is accepted."""


def minimum_version(spec: Spec) -> str:
    """The lowest version under which a runtime accepts `spec`."""
    edits = list(_all_edits(spec))
    if any(edit.additional_gids for edit in edits):
        return "0.7.0"
    if spec.annotations or any(device.annotations for device in spec.devices) or "." in spec.kind.partition("/")[2]:
        return "0.6.0"
    if any("0" <= device.name[:1] <= "9" for device in spec.devices) or any(
        node.host_path for edit in edits for node in edit.device_nodes
    ):
        return "0.5.0"
    if any(mount.type for edit in edits for mount in edit.mounts):
        return "0.4.0"
    return FLOOR


def _all_edits(spec: Spec) -> Iterator[ContainerEdits]:
    yield spec.container_edits
    for device in spec.devices:
        yield device.container_edits
