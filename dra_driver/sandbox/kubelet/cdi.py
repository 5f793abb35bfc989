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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

_NAME = r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_KIND = re.compile(rf"({_NAME})/({_NAME})")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")


Unsigned = Annotated[int, "not negative"]

_EXPECTED = {str: "a string", int: "an integer", list: "a list", dict: "an object"}
_RENAMED = {"version": "cdiVersion", "edits": "containerEdits"}


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
    file_mode: Unsigned = 0
    permissions: str = ""
    uid: Unsigned = 0
    gid: Unsigned = 0


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
    timeout: int = 0


@dataclass(frozen=True, slots=True)
class Edits:
    """The changes that a device or a spec makes to a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    additional_gids: tuple[Unsigned, ...] = ()

    def __add__(self, other: "Edits") -> "Edits":
        """Return these edits followed by the other edits."""
        return Edits(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


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
    spec: Spec = _decode(Spec, raw, "spec")
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


def _decode(kind: Any, raw: Any, where: str) -> Any:
    """Return a parsed JSON value as `kind`, which is one of the types above or the type of one of their fields.

    Fields that are absent or null have their defaults, which `_check` validates. `where` is the position in the
    document. Raises CdiError.
    """
    origin, is_object, given = get_origin(kind), is_dataclass(kind), type(raw)
    wanted = {tuple: list, Mapping: dict, Annotated: int}.get(origin, dict if is_object else kind)
    if given is not wanted:  # isinstance would accept a bool as an int
        raise CdiError(f"failed to unmarshal CDI Spec: {where} is not {_EXPECTED[wanted]}")
    if origin is tuple:
        (item, _) = get_args(kind)
        return tuple(_decode(item, value, f"{where}[{index}]") for index, value in enumerate(raw))
    if origin is Mapping:
        return {key: _decode(str, value, f"{where}.{key}") for key, value in raw.items()}
    if origin is Annotated and raw < 0:
        raise CdiError(f"failed to unmarshal CDI Spec: {where} is negative")
    if not is_object:
        return raw
    known = _fields(kind)
    for key in raw:
        if key not in known:
            raise CdiError(f'failed to unmarshal CDI Spec: {where}: unknown field "{key}"')
    present = {key: value for key, value in raw.items() if value is not None}
    return kind(**{known[key][0]: _decode(known[key][1], value, f"{where}.{key}") for key, value in present.items()})


@cache
def _fields(kind: type) -> Mapping[str, tuple[str, Any]]:
    """Return the fields of a dataclass and their types by the names in JSON: in camel case, except `_RENAMED`."""
    hints = get_type_hints(kind, include_extras=True)
    return {_RENAMED.get(name, _camel_case(name)): (name, hint) for name, hint in hints.items()}


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.title() for other in others)


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
