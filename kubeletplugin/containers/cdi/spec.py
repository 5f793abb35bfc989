# SPDX-License-Identifier: Apache-2.0
"""A CDI spec as immutable values, with its names and its version, and the rules by which runtimes refuse specs.

The fields are those of SPEC.md (1.1.0) of the Container Device Interface. Fields that the driver does not use are left
out. An empty string, None, 0 for a device number and an empty tuple mean that a field is absent.

Names are the kind `vendor/class`, device names, and the qualified name `vendor/class=device`. Device names have the
characters that the container-device-interface library accepts.

`minimum_version` is the lowest `cdiVersion` that the content needs. Runtimes refuse a spec whose version is higher than
their library knows, or lower than its content needs. The rules are those of specs-go/version.go of the
container-device-interface library 1.1.0.

An invalid spec makes every container that requests its devices fail. So `validate` checks what comes from elsewhere:
names of devices, and paths, which follow from flags. Everything else is a constant of this driver or an answer of the
kernel.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")


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
        return ContainerEdits(
            self.env + other.env,
            self.device_nodes + other.device_nodes,
            self.mounts + other.mounts,
            self.hooks + other.hooks,
            self.additional_gids + other.additional_gids,
        )


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """A device that a container can request as `kind=name`."""

    name: str
    container_edits: ContainerEdits


@dataclass(frozen=True, slots=True)
class Spec:
    """Devices of one kind.

    `container_edits` are applied once to a container that requests any of the devices.
    """

    kind: str
    devices: tuple[CdiDevice, ...]
    container_edits: ContainerEdits = ContainerEdits()


def is_device_name(name: str) -> bool:
    """Whether `name` is valid as the name of a device."""
    return _DEVICE.fullmatch(name) is not None


def qualified_name(kind: str, device: str) -> str:
    """The name that a container requests: `vendor/class=device`. Raises ValueError if the device's is not valid."""
    if not is_device_name(device):
        raise ValueError(_wrong_name(device))
    return f"{kind}={device}"


def _wrong_name(device: str) -> str:
    rule = "letters, digits, '_', '.', ':' and '-', beginning and ending with a letter or digit"
    return f"{device!r} is not a CDI device name: {rule}"


def minimum_version(spec: Spec) -> str:
    """The lowest version with which a runtime accepts `spec`."""
    if has_group_ids(spec):
        return "0.7.0"
    if any("0" <= device.name[:1] <= "9" for device in spec.devices) or any(
        node.host_path for edit in _all_edits(spec) for node in edit.device_nodes
    ):
        return "0.5.0"
    return "0.3.0"


def has_group_ids(spec: Spec) -> bool:
    """Whether containers get additional groups, which needs cdiVersion 0.7.0."""
    return any(edit.additional_gids for edit in _all_edits(spec))


def without_group_ids(spec: Spec) -> Spec:
    """The spec for a runtime that cannot read additional groups. The owners of device nodes stay."""
    return dataclasses.replace(
        spec,
        devices=tuple(
            dataclasses.replace(device, container_edits=dataclasses.replace(device.container_edits, additional_gids=()))
            for device in spec.devices
        ),
        container_edits=dataclasses.replace(spec.container_edits, additional_gids=()),
    )


def _all_edits(spec: Spec) -> list[ContainerEdits]:
    return [spec.container_edits, *[device.container_edits for device in spec.devices]]


def validate(spec: Spec) -> list[str]:
    """Why a runtime would refuse the spec. Empty if it is valid."""
    problems = [_wrong_name(device.name) for device in spec.devices if not is_device_name(device.name)]
    problems += [
        f"device {device.name} has no edits" for device in spec.devices if device.container_edits == ContainerEdits()
    ]
    paths = (path for edits in _all_edits(spec) for path in _paths(edits))
    return problems + [f"{path!r} is not an absolute path" for path in paths if not path.startswith("/")]


def _paths(edits: ContainerEdits) -> Iterator[str]:
    for node in edits.device_nodes:
        yield node.path
        yield node.host_path or node.path
    for mount in edits.mounts:
        yield mount.host_path
        yield mount.container_path
    for hook in edits.hooks:
        yield hook.path


def dumps(spec: Spec) -> bytes:
    """`spec` as a JSON document, which YAML parsers can read too, with the lowest possible `cdiVersion`. It is not
    validated.
    """
    return json.dumps({"cdiVersion": minimum_version(spec)} | _encode(spec)).encode() + b"\n"


def _encode(value: Any) -> Any:
    """Dataclasses as objects: a field has the same name in camelCase, and is left out if it has its default value."""
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, str | int):
        return value
    encoded = {}
    kind: Any = type(value)
    for attribute, name, default in _members(kind):
        item = getattr(value, attribute)
        if item != default:
            encoded[name] = _encode(item)
    return encoded


@functools.cache
def _members(kind: Any) -> tuple[tuple[str, str, Any], ...]:
    """The attribute, the name in JSON, and the default value of each field of a dataclass."""
    return tuple((field.name, _camel_case(field.name), field.default) for field in dataclasses.fields(kind))


def _camel_case(name: str) -> str:
    return re.sub("_([a-z])", lambda match: match[1].upper(), name)
