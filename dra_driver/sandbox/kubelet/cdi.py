# SPDX-License-Identifier: Apache-2.0
"""CDI specs and the devices of a node, as a container runtime reads them.

This module is written from the CDI specification and the behaviour of the runtimes' library. It shares no code with the
module that writes specs, so each tests the other. An unknown field, an unknown version, a version that is older than
the content, or a malformed edit makes the whole file invalid. The fields netDevices and intelRdt, which the driver does
not write, count as unknown.

If a name occurs twice, the device is unavailable. An invalid file makes only its own devices unavailable. YAML files,
which the driver does not write, are not read.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

_NAME = r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_KIND = re.compile(rf"({_NAME})/({_NAME})")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")


class CdiError(Exception):
    """A CDI spec is invalid, or devices cannot be injected. The text is the runtime's where it has one."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node. A missing type or major is that of `host_path` (or `path`) on the host."""

    path: str = ""
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount of `host_path`."""

    host_path: str = ""
    container_path: str = ""
    options: tuple[str, ...] = ()
    type: str = ""


@dataclass(frozen=True, slots=True)
class Hook:
    """An OCI hook. `args` includes the program's name. `timeout` is in seconds."""

    hook_name: str = ""
    path: str = ""
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


@dataclass(frozen=True, slots=True)
class Edits:
    """The changes that a device or a spec makes to a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    additional_gids: tuple[int, ...] = ()

    def __add__(self, other: "Edits") -> "Edits":
        """Return these edits followed by the other edits."""
        return Edits(
            self.env + other.env,
            self.device_nodes + other.device_nodes,
            self.hooks + other.hooks,
            self.mounts + other.mounts,
            self.additional_gids + other.additional_gids,
        )


@dataclass(frozen=True, slots=True)
class Device:
    """A named device of a spec."""

    name: str = ""
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    edits: Edits = Edits()


@dataclass(frozen=True, slots=True)
class Spec:
    """A CDI spec. `edits` apply once to every container that gets any of its devices."""

    version: str = ""
    kind: str = ""
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    devices: tuple[Device, ...] = ()
    edits: Edits = Edits()


def load(text: str) -> Spec:
    """Parse a spec. Raises CdiError."""
    try:
        raw = json.loads(text, object_pairs_hook=_unique)
    except ValueError as error:
        raise CdiError(f"failed to unmarshal CDI Spec: {error}") from error
    spec = _spec(raw, "spec")
    _check(spec)
    return spec


def minimum_version(spec: Spec) -> str:
    """Return the oldest version of CDI that has everything the spec uses."""
    all_edits = [spec.edits, *(device.edits for device in spec.devices)]
    needs = {
        "0.7.0": any(edits.additional_gids for edits in all_edits),
        "0.6.0": bool(spec.annotations)
        or any(device.annotations for device in spec.devices)
        or "." in spec.kind.partition("/")[2],
        "0.5.0": any(node.host_path for edits in all_edits for node in edits.device_nodes)
        or any(device.name[:1].isdigit() for device in spec.devices),
        "0.4.0": any(mount.type for edits in all_edits for mount in edits.mounts),
    }
    return next((version for version, needed in needs.items() if needed), "0.3.0")


def _check(spec: Spec) -> None:
    version = spec.version.removeprefix("v")
    if version not in VERSIONS:
        raise CdiError(f'invalid CDI Spec: invalid version "{spec.version}"')
    least = minimum_version(spec)
    if VERSIONS.index(version) < VERSIONS.index(least):
        raise CdiError(f"invalid CDI Spec: the spec version must be at least v{least}")
    if not _KIND.fullmatch(spec.kind):
        raise CdiError(f'invalid CDI Spec: kind "{spec.kind}" is not VENDOR/CLASS, both beginning with a letter')
    _check_edits(spec.edits)
    if not spec.devices:
        raise CdiError("invalid CDI Spec: invalid spec, no devices")
    seen = set()
    for device in spec.devices:
        if not _DEVICE_NAME.fullmatch(device.name):
            raise CdiError(f'invalid CDI Spec: invalid device name "{device.name}"')
        if device.name in seen:
            raise CdiError(f'invalid CDI Spec: invalid spec, multiple device "{device.name}"')
        seen.add(device.name)
        if device.edits == Edits():
            raise CdiError(f'invalid CDI Spec: device "{device.name}": invalid device, empty device edits')
        _check_edits(device.edits)


def _check_edits(edits: Edits) -> None:
    _check_env(edits.env)
    for node in edits.device_nodes:
        if not node.path:
            raise CdiError("invalid CDI Spec: invalid (empty) device path")
        if node.type not in ("", "b", "c", "u", "p"):
            raise CdiError(f'invalid CDI Spec: device "{node.path}": invalid type "{node.type}"')
        if node.permissions.strip("rwm"):
            raise CdiError(f'invalid CDI Spec: device "{node.path}": invalid permissions "{node.permissions}"')
    for hook in edits.hooks:
        if hook.hook_name not in HOOK_NAMES:
            raise CdiError(f'invalid CDI Spec: invalid hook name "{hook.hook_name}"')
        if not hook.path.startswith("/"):
            raise CdiError(f'invalid CDI Spec: hook "{hook.hook_name}": path "{hook.path}" is not absolute')
        _check_env(hook.env)
    for mount in edits.mounts:
        if not mount.host_path or not mount.container_path:
            raise CdiError("invalid CDI Spec: invalid mount, empty host or container path")


def _check_env(env: Iterable[str]) -> None:
    for entry in env:
        if entry.find("=") <= 0:
            raise CdiError(f'invalid CDI Spec: invalid environment variable "{entry}"')


_T = TypeVar("_T")
_Reader = Callable[[Any, str], Any]
"""A function that reads a parsed JSON value. The string is the position in the document."""


def _read(raw: Any, where: str, table: Mapping[str, tuple[str, _Reader]]) -> dict[str, Any]:
    """Return the fields of a JSON object under the names of a dataclass. Null counts as absent."""
    if not isinstance(raw, dict):
        raise CdiError(f"failed to unmarshal CDI Spec: {where} is not an object")
    for key in raw:
        if key not in table:
            raise CdiError(f'failed to unmarshal CDI Spec: {where}: unknown field "{key}"')
    return {table[key][0]: table[key][1](value, f"{where}.{key}") for key, value in raw.items() if value is not None}


def _scalar(kind: type, description: str) -> _Reader:
    def read(raw: Any, where: str) -> Any:
        if type(raw) is not kind:  # isinstance would accept a bool as an int
            raise CdiError(f"failed to unmarshal CDI Spec: {where} is not {description}")
        return raw

    return read


_string, _integer = _scalar(str, "a string"), _scalar(int, "an integer")


def _natural(raw: Any, where: str) -> Any:
    if _integer(raw, where) < 0:
        raise CdiError(f"failed to unmarshal CDI Spec: {where} is negative")
    return raw


def _list_of(read: _Reader) -> _Reader:
    def read_all(raw: Any, where: str) -> Any:
        if not isinstance(raw, list):
            raise CdiError(f"failed to unmarshal CDI Spec: {where} is not a list")
        return tuple(read(value, f"{where}[{index}]") for index, value in enumerate(raw))

    return read_all


def _strings_by_name(raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise CdiError(f"failed to unmarshal CDI Spec: {where} is not an object")
    return {key: _string(value, f"{where}.{key}") for key, value in raw.items()}


def _object(
    made: Callable[..., _T], renamed: Mapping[str, str] = MappingProxyType({}), /, **fields: _Reader
) -> Callable[[Any, str], _T]:
    """Return a reader of a dataclass. Absent fields have their defaults, which `_check` validates.

    JSON has the names of `fields` in camel case, except those in `renamed`.
    """
    table = {renamed.get(name, _camel_case(name)): (name, read) for name, read in fields.items()}
    return lambda raw, where: made(**_read(raw, where, table))


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.title() for other in others)


_strings = _list_of(_string)
_device_node = _object(
    DeviceNode,
    **dict.fromkeys(("path", "host_path", "type", "permissions"), _string),
    **dict.fromkeys(("major", "minor"), _integer),
    **dict.fromkeys(("file_mode", "uid", "gid"), _natural),
)
_mount = _object(Mount, host_path=_string, container_path=_string, options=_strings, type=_string)
_hook = _object(Hook, hook_name=_string, path=_string, args=_strings, env=_strings, timeout=_integer)
_edits = _object(
    Edits,
    env=_strings,
    device_nodes=_list_of(_device_node),
    hooks=_list_of(_hook),
    mounts=_list_of(_mount),
    additional_gids=_list_of(_natural),
)
_RENAMED = {"version": "cdiVersion", "edits": "containerEdits"}
_device = _object(Device, _RENAMED, name=_string, annotations=_strings_by_name, edits=_edits)
_spec = _object(
    Spec,
    _RENAMED,
    version=_string,
    kind=_string,
    annotations=_strings_by_name,
    devices=_list_of(_device),
    edits=_edits,
)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError(f"duplicate key among {[key for key, _ in pairs]}")
    return result


@dataclass(frozen=True, slots=True)
class Registry:
    """The devices by qualified name, each with its spec, and what is wrong with the files."""

    devices: Mapping[str, tuple[Spec, Device]]
    errors: tuple[str, ...]


def scan(directory: Path) -> Registry:
    """Return the devices in a directory."""
    found: dict[str, list[tuple[Path, Spec, Device]]] = {}
    errors = []
    for path in sorted(directory.glob("*.json")):
        try:
            spec = load(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue  # removed after the directory was read
        except (OSError, UnicodeDecodeError, CdiError) as error:
            errors.append(f'failed to load CDI Spec "{path}": {error}')
            continue
        for device in spec.devices:
            found.setdefault(f"{spec.kind}={device.name}", []).append((path, spec, device))
    for name, places in found.items():
        if len(places) > 1:
            files = ", ".join(f'"{path}"' for path, _, _ in places)
            errors.append(f'conflicting device "{name}" (specs {files})')
    devices = {name: (spec, device) for name, [(_, spec, device), *others] in found.items() if not others}
    return Registry(devices, tuple(errors))


def inject(registry: Registry, names: Iterable[str]) -> Edits:
    """Return the edits of these devices. Repeated names count once, as in containerd. Raises CdiError."""
    wanted = tuple(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in registry.devices]
    if unknown:
        raise CdiError(f"unresolvable CDI devices {', '.join(unknown)}")
    edits, seen = Edits(), list[Spec]()
    for name in wanted:
        spec, device = registry.devices[name]
        if spec not in seen:
            seen.append(spec)
            edits += spec.edits
        edits += device.edits
    return edits
