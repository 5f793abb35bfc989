# SPDX-License-Identifier: Apache-2.0
"""A CDI spec as immutable values, with its names and its version, and the rules by which runtimes refuse specs.

The fields are those of SPEC.md (1.1.0) of the Container Device Interface. Those that the driver does not use are
left out. An empty string, None, 0 for a device number and an empty tuple mean that a field is absent.

Names are the kind `vendor/class`, device names, and the qualified name `vendor/class=device`. Their characters are
those that the container-device-interface library accepts. The lengths of vendor and class are those of its SPEC.md,
which the library does not check.

`minimum_version` is the lowest `cdiVersion` that the content needs. Runtimes refuse a spec whose version is higher than
their library knows, or lower than its content needs. The rules are those of specs-go/version.go of the
container-device-interface library 1.1.0.

An invalid spec makes every container that requests its devices fail. So `validate` is at least as strict as that
library. In addition it checks rules of SPEC.md that the library leaves to the runtime (absolute paths, lengths).
"""

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import DriverError


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
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount in the container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hook:
    """A program on the host that the OCI runtime runs in the phase `hook_name` of a container's life.

    `args` begins with the name of the program.
    """

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


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
        names = (field.name for field in dataclasses.fields(self))
        return ContainerEdits(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a container can request as `kind=name`."""

    name: str
    container_edits: ContainerEdits


@dataclass(frozen=True, slots=True)
class Spec:
    """Devices of one kind.

    `container_edits` are applied once to a container that requests any of the devices.
    """

    kind: str
    devices: tuple[Device, ...]
    container_edits: ContainerEdits = ContainerEdits()


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


def minimum_version(spec: Spec) -> str:
    """The lowest version with which a runtime accepts `spec`."""
    edits = list(_all_edits(spec))
    if any(edit.additional_gids for edit in edits):
        return "0.7.0"
    if "." in spec.kind.partition("/")[2]:
        return "0.6.0"
    if any("0" <= device.name[:1] <= "9" for device in spec.devices) or any(
        node.host_path for edit in edits for node in edit.device_nodes
    ):
        return "0.5.0"
    return "0.3.0"


def _all_edits(spec: Spec) -> Iterator[ContainerEdits]:
    yield spec.container_edits
    for device in spec.devices:
        yield device.container_edits


HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
DEVICE_TYPES = ("b", "c", "u", "p")

_UINT32 = range(1 << 32)
_DEVICE_NUMBER = range(1 << 63)
_FILE_MODE = range(0o10000)


def validate(spec: Spec) -> tuple[Problem, ...]:
    """All violated rules. Empty if `spec` is valid."""
    return tuple(_spec(spec))


def _spec(spec: Spec) -> Iterator[Problem]:
    try:
        split_kind(spec.kind)
    except ValueError as error:
        yield Problem("kind", str(error))
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
        if device.container_edits == ContainerEdits():
            yield Problem(f"{path}.containerEdits", "must not be empty")
        yield from _edits(device.container_edits, f"{path}.containerEdits")


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
    yield from _in_range(node.gid, _UINT32, f"{path}.gid")


def _mount(mount: Mount, path: str) -> Iterator[Problem]:
    yield from _absolute(mount.host_path, f"{path}.hostPath")
    yield from _absolute(mount.container_path, f"{path}.containerPath")


def _hook(hook: Hook, path: str) -> Iterator[Problem]:
    if hook.hook_name not in HOOK_NAMES:
        yield Problem(f"{path}.hookName", f"{hook.hook_name!r} is not one of {', '.join(HOOK_NAMES)}")
    yield from _absolute(hook.path, f"{path}.path")
    yield from _env(hook.env, f"{path}.env")


def _absolute(value: str, path: str) -> Iterator[Problem]:
    if not value:
        yield Problem(path, "is required")
    elif not value.startswith("/"):
        yield Problem(path, f"{value!r} is not an absolute path")


def _in_range(value: int | None, allowed: range, path: str) -> Iterator[Problem]:
    if value is not None and value not in allowed:
        yield Problem(path, f"must be from {allowed.start} to {allowed.stop - 1}, not {value}")


def dumps(spec: Spec) -> bytes:
    """`spec` as a JSON document, which YAML parsers can read too, with the lowest possible `cdiVersion`. It is not
    validated.
    """
    return json.dumps({"cdiVersion": minimum_version(spec)} | _encode(spec), indent=2).encode() + b"\n"


def _encode(value: Any) -> Any:
    """Dataclasses as objects: a field has the same name in camelCase, and is left out if it has its default value."""
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    items = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
    return {_camel_case(field.name): _encode(item) for field, item in items if item != field.default}


@functools.cache
def _camel_case(name: str) -> str:
    return re.sub("_([a-z])", lambda match: match[1].upper(), name)
