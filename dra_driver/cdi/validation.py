# SPDX-License-Identifier: Apache-2.0
"""What a container runtime would refuse in a spec, found before it is written.

One bad spec makes every container that asks for its devices fail, so the check is at least as strict as the
container-device-interface library 1.1.0: it adds what SPEC.md says and the library leaves to the runtime
(absolute paths, positive timeouts, lengths).
"""

import re
from collections.abc import Iterator, Mapping

from .spec import (
    FLOOR,
    VERSIONS,
    ContainerEdits,
    DeviceNode,
    Hook,
    Mount,
    Problem,
    Spec,
    is_device_name,
    minimum_version,
    split_kind,
)

HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
DEVICE_TYPES = ("b", "c", "u", "p")

_UINT32 = range(1 << 32)
_DEVICE_NUMBER = range(1 << 63)
_FILE_MODE = range(0o10000)
_ANNOTATIONS_BYTES = 256 * 1024
_ANNOTATION_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")


def validate(spec: Spec) -> tuple[Problem, ...]:
    """Everything that a runtime would hold against `spec`; empty when it is valid."""
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
    # the source of tmpfs and the like is a name, not a path
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
