# SPDX-License-Identifier: Apache-2.0
"""The policy file: its YAML form, which is strictly read, and reading the file again when it changes.

gpus:
- match:                        # all given fields must match; models and nodes are globs; without `match`: every GPU
    models: ["NVIDIA A100*"]
    indexes: [0, 1]             # as nvidia-smi counts; they shift when a GPU is given to a virtual machine
    uuids: [GPU-8f6f2a54-…]
    pciBusIDs: ["0000:3b:00.0"]
    nodes: ["gpu-a*"]
  publish: true
  mig: dynamic                  # auto, static, dynamic
  passthrough: true             # false, true, only (the GPU is a vfio device and nothing else)
  vgpuTypes: [12Q]              # on hosts with NVIDIA's vGPU manager; several types need heterogeneous mode
  health: true
  shares: disabled              # disabled, unlimited, memory, or the number of claims that may share a device
                                # or {mode: memory, enforce: auto}; enforce is none, mps, memory-limits or auto
  bindingConditions: false      # true: the pod of a claim is bound only after the kubelet plugin has agreed
health:
  applicationXIDs: [137]
  effect: NoSchedule            # NoSchedule, NoExecute, None
  withdrawAfterSeconds: 300
  clearAfterSeconds: 3600       # default: findings that need a reset are kept until a reset
  quietAfterSeconds: 600
listTypeAttributes: false
"""

import enum
import logging
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from ...errors import ParseError, PolicyError
from ...kube.resource import TaintEffect
from ...kube.resource.codec import DecodeError, Fields
from ...names import AdditionalDevice
from ...process.parsing import decode_text, load
from .rules import Enforcement, GpuRule, HealthPolicy, MigPolicy, NodePolicy, PassthroughMode, ShareMode

log = logging.getLogger(__name__)

E = TypeVar("E", bound=enum.StrEnum)

_ADDRESS = re.compile(r"(?P<domain>[0-9a-fA-F]{4,8}):(?P<rest>[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")

_MOST_SHARES: Final = 1_000_000
_MOST_SECONDS: Final = 366 * 24 * 3600  # a year

_NOTHING_TO_ENFORCE: Final[Mapping[ShareMode | int, str]] = {
    ShareMode.DISABLED: "with mode disabled, there are no shares",
    ShareMode.UNLIMITED: "with mode unlimited, a claim need not request memory, so it would have no limit",
}


def load_policy(path: Path) -> NodePolicy:
    """Read the policy of all nodes from a file. An empty file is the default policy. Raises PolicyError."""
    source = f"policy file {path}"
    try:
        return parse_policy(decode_text(path.read_bytes()), source)
    except OSError as error:
        raise PolicyError(f"{source} cannot be read: {error.strerror}") from None
    except ParseError as error:
        raise PolicyError(f"{source}:{error}") from None


def parse_policy(text: str, source: str = "policy") -> NodePolicy:
    """Read a policy from a text. `source` names the text in errors. Raises PolicyError."""
    try:
        value = load(text)
        return Fields({} if value is None else value).decoded_by(_policy)
    except ParseError as error:
        raise PolicyError(f"{source}:{error}") from None
    except DecodeError as error:
        raise PolicyError(f"{source}: {error}") from None


def _policy(fields: Fields) -> NodePolicy:
    if "policy" in fields:
        said = "is the name of the chart's value, and a policy file has only its content: leave out `policy:`"
        raise fields.error("policy", said)
    return NodePolicy(
        rules=fields.decode_all("gpus", _rule),
        health=fields.decode_one("health", _health) or HealthPolicy(),
        list_type_attributes=fields.flag("listTypeAttributes"),
    )


def _rule(fields: Fields) -> GpuRule:
    match = fields.object("match") or Fields({}, "match", fields)
    shares, enforce = _shares(fields)
    rule = GpuRule(
        models=match.texts("models"),
        indexes=_integers(match, "indexes", 0),
        uuids=match.texts("uuids"),
        pci_addresses=tuple(_address(match, text, at) for at, text in enumerate(match.texts("pciBusIDs"))),
        nodes=match.texts("nodes"),
        publish=_flag(fields, "publish"),
        mig=_word(fields, "mig", MigPolicy),
        passthrough=_passthrough(fields),
        vgpu_types=fields.texts("vgpuTypes") if "vgpuTypes" in fields else None,
        health=_flag(fields, "health"),
        shares=shares,
        enforce=enforce,
        binding_conditions=_flag(fields, "bindingConditions"),
        additional_devices=_additional(fields),
    )
    match.finish()
    return rule


def _additional(fields: Fields) -> tuple[AdditionalDevice, ...] | None:
    if "additionalDevices" not in fields:
        return None
    for index, value in enumerate(found := fields.texts("additionalDevices")):
        if value not in tuple(AdditionalDevice):
            raise fields.error(f"additionalDevices[{index}]", f"must be {' or '.join(AdditionalDevice)}, not {value!r}")
    return tuple(map(AdditionalDevice, found))


def _health(fields: Fields) -> HealthPolicy:
    usual = HealthPolicy()
    return HealthPolicy(
        application_xids=frozenset(_integers(fields, "applicationXIDs", 1)),
        effect=_word(fields, "effect", TaintEffect) or usual.effect,
        withdraw_after=_seconds(fields, "withdrawAfterSeconds", usual.withdraw_after) or 0.0,
        clear_after=_seconds(fields, "clearAfterSeconds", usual.clear_after),
        quiet_after=_seconds(fields, "quietAfterSeconds", usual.quiet_after) or 0.0,
    )


def _flag(fields: Fields, field: str) -> bool | None:
    return fields.flag(field) if field in fields else None


def _passthrough(fields: Fields) -> PassthroughMode | bool | None:
    value = fields.take("passthrough")
    if value is None or type(value) is bool:
        return value
    if value == PassthroughMode.ONLY:
        return PassthroughMode.ONLY
    raise fields.error("passthrough", f"must be true, false or {PassthroughMode.ONLY}, not {value!r}")


def _word(fields: Fields, field: str, words: type[E]) -> E | None:
    word = fields.optional_text(field)
    if word is None:
        return None
    try:
        return words(word)
    except ValueError:
        raise fields.error(field, f"must be {' or '.join(words)}, not {word!r}") from None


def _shares(fields: Fields) -> tuple[ShareMode | int | None, Enforcement | None]:
    """How claims share a device, and what enforces it."""
    value = fields.take("shares")
    if value is None:
        return None, None
    if not isinstance(value, dict):
        return _mode(fields, "shares", value), None
    nested = Fields(value, "shares", fields)
    mode = _mode(nested, "mode", nested.take("mode"))
    enforce = _word(nested, "enforce", Enforcement)
    nested.finish()
    if enforce not in (None, Enforcement.NONE) and mode in _NOTHING_TO_ENFORCE:
        raise nested.error("enforce", f"{enforce} needs mode memory or a number: {_NOTHING_TO_ENFORCE[mode]}")
    return mode, enforce


def _mode(fields: Fields, field: str, value: object) -> ShareMode | int:
    if type(value) is int and 1 <= value <= _MOST_SHARES:
        return value
    if type(value) is str and value in tuple(ShareMode):
        return ShareMode(value)
    raise fields.error(
        field, f"must be {', '.join(ShareMode)} or a number of claims from 1 to {_MOST_SHARES}, not {value!r}"
    )


def _integers(fields: Fields, field: str, least: int) -> tuple[int, ...]:
    values = fields.array(field)
    for index, value in enumerate(values):
        if type(value) is not int or not least <= value < 1 << 63:
            raise fields.error(f"{field}[{index}]", f"must be a whole number from {least} on, not {value!r}")
    return tuple(values)


def _seconds(fields: Fields, field: str, usual: float | None) -> float | None:
    value = fields.take(field)
    if value is None:
        return usual
    if type(value) not in (int, float) or not 0 <= value <= _MOST_SECONDS:
        raise fields.error(field, f"must be a number of seconds from 0 to {_MOST_SECONDS} (a year), not {value!r}")
    return float(value)


def _address(fields: Fields, text: str, index: int) -> str:
    """The address as in sysfs: lower case, with a domain of four digits unless it needs more."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise fields.error(f"pciBusIDs[{index}]", f"{text!r} is not a PCI address such as 0000:3b:00.0")
    return f"{int(match['domain'], 16):04x}:{match['rest'].lower()}"


class PolicyFile:
    """The policy of one node, from a file. May be used by several threads.

    `current` notices each change of the file: written in place, replaced, or switched behind a symbolic link, as
    kubelet does with ConfigMaps.
    """

    def __init__(self, path: Path, node_name: str) -> None:
        self._path = path
        self._node_name = node_name
        self._lock = threading.Lock()
        self._version: tuple[int, ...] | None = None
        self._policy: NodePolicy | None = None
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the file cannot be used at the moment, or None."""
        return self._problem

    def current(self) -> NodePolicy:
        """The policy of the file, or its last valid policy. Raises PolicyError if the file was never valid."""
        with self._lock:
            version = self._look()
            if version is None or version != self._version or self._policy is None:
                self._read(version)
            if self._policy is None:
                raise PolicyError(self._problem or "")
            return self._policy

    def _look(self) -> tuple[int, ...] | None:
        """A value that changes with the file's content. None if there is no file."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self, version: tuple[int, ...] | None) -> None:
        first = self._policy is None
        try:
            policy = load_policy(self._path).on_node(self._node_name)
        except PolicyError as error:
            if str(error) != self._problem and not first:
                log.error("%s; the last valid policy stays in effect", error)
            self._problem = str(error)
        else:
            if not first and (self._problem is not None or policy != self._policy):
                log.info("the policy changed", extra={"file": str(self._path)})
            self._policy, self._problem = policy, None
        self._version = version
