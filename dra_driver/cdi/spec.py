# SPDX-License-Identifier: Apache-2.0
"""A CDI spec as immutable values, with its names and its version, and the rules by which runtimes refuse specs.

The fields are those of SPEC.md (1.1.0) of the Container Device Interface. Its `netDevices` and `intelRdt` are left out,
because no GPU needs them. An empty string, None, 0 for a device number and an empty tuple mean that a field is absent.

Names are the kind `vendor/class`, device names, and the qualified name `vendor/class=device`. Their characters are
those that the container-device-interface library accepts. The lengths of vendor and class are those of its SPEC.md,
which the library does not check.

`minimum_version` is the lowest `cdiVersion` that the content needs. Runtimes refuse a spec whose version is higher than
their library knows, or lower than its content needs. The rules are those of specs-go/version.go of the
container-device-interface library 1.1.0.

An invalid spec makes every container that requests its devices fail. So `validate` is at least as strict as that
library. In addition it checks rules of SPEC.md that the library leaves to the runtime (absolute paths, positive
timeouts, lengths).
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

    If `type` or `major` is absent, the runtime reads it from the node `host_path`, or else `path`, when it creates the
    container, and fails if there is no such node. With type and major, the host need not have the node.
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
    """The permissions in the container's device cgroup: some of `r`, `w` and `m` (mknod). All three if absent."""
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
    """A program on the host that the OCI runtime runs in the phase `hook_name` of a container's life.

    `args` begins with the name of the program. `timeout` is in seconds.
    """

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """Changes of a container. Entries of `env` have the form `NAME=value`."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()

    def __add__(self, other: "ContainerEdits") -> "ContainerEdits":
        """These edits, followed by those of `other`."""
        return ContainerEdits(
            env=self.env + other.env,
            device_nodes=self.device_nodes + other.device_nodes,
            mounts=self.mounts + other.mounts,
            hooks=self.hooks + other.hooks,
            additional_gids=self.additional_gids + other.additional_gids,
        )

    def __bool__(self) -> bool:
        """Whether there are any edits."""
        return bool(self.env or self.device_nodes or self.mounts or self.hooks or self.additional_gids)


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a container can request as `kind=name`."""

    name: str
    container_edits: ContainerEdits
    annotations: Mapping[str, str] = field(default_factory=lambda: _NO_ANNOTATIONS)


@dataclass(frozen=True, slots=True)
class Spec:
    """Devices of one kind.

    `container_edits` are applied once to a container that requests any of the devices. Without `cdi_version`, the
    lowest version that the content needs is written, so that the oldest possible runtime can read the spec.
    """

    kind: str
    devices: tuple[Device, ...]
    container_edits: ContainerEdits = ContainerEdits()
    annotations: Mapping[str, str] = field(default_factory=lambda: _NO_ANNOTATIONS)
    cdi_version: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """A violated rule. `path` is the JSON path of the field, and empty for the whole document."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SpecError(DriverError, ValueError):
    """A runtime would not load the spec. `problems` is never empty."""

    def __init__(self, problems: Iterable[Problem], source: str = "CDI spec") -> None:
        self.problems = tuple(problems)
        super().__init__(f"{source}: {'; '.join(str(problem) for problem in self.problems)}")


VENDOR_LENGTH = 253
CLASS_LENGTH = 63

_KIND_PART = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def is_vendor(name: str) -> bool:
    """Whether `name` is valid before the slash of a kind."""
    return len(name) <= VENDOR_LENGTH and _KIND_PART.fullmatch(name) is not None


def is_class(name: str) -> bool:
    """Whether `name` is valid after the slash of a kind."""
    return len(name) <= CLASS_LENGTH and _KIND_PART.fullmatch(name) is not None


def is_device_name(name: str) -> bool:
    """Whether `name` is valid as the name of a device."""
    return _DEVICE.fullmatch(name) is not None


def split_kind(kind: str) -> tuple[str, str]:
    """The vendor and class of `kind`. Raises ValueError if it does not have the form vendor/class."""
    vendor, slash, device_class = kind.partition("/")
    if not (slash and is_vendor(vendor) and is_class(device_class)):
        raise ValueError(
            f"{kind!r} is not a CDI kind: vendor/class, each of letters, digits, '_', '.' and '-', "
            f"beginning with a letter and ending with a letter or digit, of at most {VENDOR_LENGTH} "
            f"and {CLASS_LENGTH} characters"
        )
    return vendor, device_class


def qualified_name(kind: str, device: str) -> str:
    """The name that a container requests: `vendor/class=device`. Raises ValueError if a part is not valid."""
    split_kind(kind)
    if not is_device_name(device):
        raise ValueError(
            f"{device!r} is not a CDI device name: letters, digits, '_', '.', ':' and '-', "
            "beginning and ending with a letter or digit"
        )
    return f"{kind}={device}"


VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Every released version, oldest first."""

FLOOR = "0.3.0"
"""The lowest version that any content needs. Lower ones are not accepted."""


def minimum_version(spec: Spec) -> str:
    """The lowest version with which a runtime accepts `spec`."""
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


HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
DEVICE_TYPES = ("b", "c", "u", "p")

_UINT32 = range(1 << 32)
_DEVICE_NUMBER = range(1 << 63)
_FILE_MODE = range(0o10000)
_ANNOTATIONS_BYTES = 256 * 1024
_ANNOTATION_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")


def validate(spec: Spec) -> tuple[Problem, ...]:
    """All violated rules. Empty if `spec` is valid."""
    return tuple(_spec(spec))


def _spec(spec: Spec) -> Iterator[Problem]:
    yield from _version(spec)
    try:
        split_kind(spec.kind)
    except ValueError as error:
        yield Problem("kind", str(error))
    yield from _annotations(spec.annotations, "annotations")
    yield from _edits(spec.container_edits, "containerEdits")
    if not spec.devices:
        yield Problem("devices", "must have at least one device")
    seen: set[str] = set()
    for index, device in enumerate(spec.devices):
        path = f"devices[{index}]"
        if not is_device_name(device.name):
            yield Problem(
                f"{path}.name",
                f"{device.name!r} is not a device name: letters, digits, '_', '.', ':' and '-', "
                "beginning and ending with a letter or digit",
            )
        if device.name in seen:
            yield Problem(f"{path}.name", f"{device.name!r} is used twice")
        seen.add(device.name)
        yield from _annotations(device.annotations, f"{path}.annotations")
        if not device.container_edits:
            yield Problem(f"{path}.containerEdits", "must not be empty")
        yield from _edits(device.container_edits, f"{path}.containerEdits")


def _version(spec: Spec) -> Iterator[Problem]:
    if not spec.cdi_version:
        return
    version = spec.cdi_version.removeprefix("v")
    if version not in VERSIONS:
        yield Problem("cdiVersion", f"{spec.cdi_version!r} is not one of {', '.join(VERSIONS)}")
    elif VERSIONS.index(version) < VERSIONS.index(minimum := minimum_version(spec)):
        why = "no older one is accepted" if minimum == FLOOR else f"the content needs {minimum}"
        yield Problem("cdiVersion", f"{spec.cdi_version!r} is too old: {why}")


def _annotations(annotations: Mapping[str, str], path: str) -> Iterator[Problem]:
    for key in annotations:
        prefix, slash, name = key.rpartition("/")
        prefix_fits = len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix.lower()) if slash else True
        if not (prefix_fits and _ANNOTATION_NAME.fullmatch(name)):
            yield Problem(
                f"{path}[{key}]", "is not an annotation key: a name of at most 63, after a DNS domain and '/'"
            )
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _ANNOTATIONS_BYTES:
        yield Problem(path, f"is longer than {_ANNOTATIONS_BYTES} bytes")


def _edits(edits: ContainerEdits, path: str) -> Iterator[Problem]:
    yield from _env(edits.env, f"{path}.env")
    for index, node in enumerate(edits.device_nodes):
        yield from _device_node(node, f"{path}.deviceNodes[{index}]")
    for index, mount in enumerate(edits.mounts):
        yield from _mount(mount, f"{path}.mounts[{index}]")
    for index, hook in enumerate(edits.hooks):
        yield from _hook(hook, f"{path}.hooks[{index}]")
    for index, gid in enumerate(edits.additional_gids):
        yield from _in_range(gid, _UINT32, f"{path}.additionalGids[{index}]")


def _env(env: tuple[str, ...], path: str) -> Iterator[Problem]:
    for index, entry in enumerate(env):
        if entry.find("=") <= 0:
            yield Problem(f"{path}[{index}]", f"{entry!r} is not of the form NAME=value")


def _device_node(node: DeviceNode, path: str) -> Iterator[Problem]:
    yield from _absolute(node.path, f"{path}.path")
    if node.host_path:
        yield from _absolute(node.host_path, f"{path}.hostPath")
    if node.type and node.type not in DEVICE_TYPES:
        yield Problem(f"{path}.type", f"{node.type!r} is not one of {', '.join(DEVICE_TYPES)}")
    if node.permissions.strip("rwm"):
        yield Problem(f"{path}.permissions", f"{node.permissions!r} has other letters than r, w and m")
    yield from _in_range(node.major, _DEVICE_NUMBER, f"{path}.major")
    yield from _in_range(node.minor, _DEVICE_NUMBER, f"{path}.minor")
    yield from _in_range(node.file_mode, _FILE_MODE, f"{path}.fileMode")
    yield from _in_range(node.uid, _UINT32, f"{path}.uid")
    yield from _in_range(node.gid, _UINT32, f"{path}.gid")


def _mount(mount: Mount, path: str) -> Iterator[Problem]:
    # The source of tmpfs and similar types is a name, not a path.
    if mount.type in ("", "none", "bind"):
        yield from _absolute(mount.host_path, f"{path}.hostPath")
    elif not mount.host_path:
        yield Problem(f"{path}.hostPath", "is required")
    yield from _absolute(mount.container_path, f"{path}.containerPath")


def _hook(hook: Hook, path: str) -> Iterator[Problem]:
    if hook.hook_name not in HOOK_NAMES:
        yield Problem(f"{path}.hookName", f"{hook.hook_name!r} is not one of {', '.join(HOOK_NAMES)}")
    yield from _absolute(hook.path, f"{path}.path")
    yield from _env(hook.env, f"{path}.env")
    if hook.timeout is not None and hook.timeout <= 0:
        yield Problem(f"{path}.timeout", f"must be a positive number of seconds, not {hook.timeout}")


def _absolute(value: str, path: str) -> Iterator[Problem]:
    if not value:
        yield Problem(path, "is required")
    elif not value.startswith("/"):
        yield Problem(path, f"{value!r} is not an absolute path")


def _in_range(value: int | None, allowed: range, path: str) -> Iterator[Problem]:
    if value is not None and value not in allowed:
        yield Problem(path, f"must be from {allowed.start} to {allowed.stop - 1}, not {value}")
