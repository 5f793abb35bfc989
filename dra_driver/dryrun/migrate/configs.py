# SPDX-License-Identifier: Apache-2.0
"""Configurations of NVIDIA's device plugin (`version: v1`) and of mig-parted (`mig-configs`), strictly read.

Facts: github.com/NVIDIA/k8s-device-plugin, api/config/v1 and cmd/nvidia-device-plugin (v0.20.0), and
github.com/NVIDIA/mig-parted, api/spec/v1 (v0.15.0). A flag of the plugin's container counts more than its environment,
and this more than the file. The plugin ignores `resources`, and in `sharing` `devices` and the names in `rename`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...errors import ParseError
from ...kube.resource.codec import DecodeError, Fields
from ...kube.resource.meta import empty
from ...names import AdditionalDevice
from ...process.parsing import load
from ..documents import each, within

PREFIX: Final = "nvidia.com/"
GPU: Final = "nvidia.com/gpu"
SHARED: Final = ".shared"

_STRATEGIES: Final = ("none", "single", "mixed")
_FLAGS: Final[Mapping[str, tuple[str, str]]] = {
    "mig-strategy": ("MIG_STRATEGY", "migStrategy"),
    "(nvidia-)?driver-root": ("NVIDIA_DRIVER_ROOT", "nvidiaDriverRoot"),
    "gdrcopy-enabled": ("GDRCOPY_ENABLED", "gdrcopyEnabled"),
    "gds-enabled": ("GDS_ENABLED", "gdsEnabled"),
    "mofed-enabled": ("MOFED_ENABLED", "mofedEnabled"),
}
"""Flags of the plugin that matter here (patterns): the environment variable, and the field of `flags`."""
_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "plugin": "passDeviceSpecs deviceListStrategy deviceIDStrategy cdiAnnotationPrefix nvidiaCTKPath"
    " containerDriverRoot sharedDevicesAllocationPolicy",
    "gfd": "oneshot noTimestamp sleepInterval outputFile machineTypeFile",
    "": "failOnInitError mpsRoot nvidiaDevRoot useNodeFeatureAPI deviceDiscoveryStrategy",
}
"""Fields of `flags.plugin`, `flags.gfd` and `flags` that change nothing of what a workload gets."""
_ADDITIONAL: Final = {
    "gdsEnabled": AdditionalDevice.GDS,
    "gdrcopyEnabled": AdditionalDevice.GDRCOPY,
    "mofedEnabled": AdditionalDevice.MOFED,
}
_IMEX: Final = (
    "containers get an IMEX channel only by a claim: create a ComputeDomain for each workload on several nodes, and"
    " give its pods a claim of the template that the ComputeDomain names. If nvidia-imex runs on the nodes as a"
    " service, either disable the service, or set resources.computeDomains.imex.mode=hostManaged"
)
_PROFILE: Final = re.compile(rf"{PREFIX}mig-([0-9]+g\.[0-9]+gb)(.*?)({re.escape(SHARED)})?")


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """The settings of the device plugin on a node. `replicas` has the number of shares of each shared resource, by the
    name that it has before it is renamed. `notes` tell what has no counterpart. `packed`: the plugin gives all shares
    of one GPU before those of the next one.
    """

    mig_strategy: str = "none"
    replicas: Mapping[str, int] = field(default_factory=empty)
    mps: bool = False
    renamed: bool = False
    driver_root: str = ""
    health: bool = True
    application_xids: tuple[int, ...] = ()
    additional_devices: tuple[AdditionalDevice, ...] = ()
    notes: tuple[str, ...] = ()
    packed: bool = False


@dataclass(frozen=True, slots=True)
class MigGroup:
    """An entry of a mig-parted configuration: how many MIG devices of each profile the GPUs `devices` (None: all) have,
    or None if their MIG mode is off. `filters` are PCI device ids, of which a GPU must have one unless there are none.
    """

    devices: tuple[int, ...] | None
    filters: tuple[str, ...]
    profiles: Mapping[str, int] | None


def resource_of(profile: str) -> str:
    """The resource of the plugin's strategy `mixed` for a MIG profile: `nvidia.com/mig-1g.5gb.me` for `1g.5gb+me`."""
    return f"{PREFIX}mig-{profile.replace('+', '.')}"


def profile_of(resource: str) -> str | None:
    """The MIG profile of such a resource, also of a shared one. None for other resources."""
    found = _PROFILE.fullmatch(resource)
    return None if found is None else found[1] + re.sub(r"^\.", "+", found[2])


def is_configuration(value: object) -> bool:
    """Whether it is a configuration of the plugin or of mig-parted, as the files themselves are."""
    if not isinstance(value, dict) or "kind" in value:
        return False
    sections = value.keys() & {"flags", "resources", "sharing", "imex"}
    return "mig-configs" in value or ("version" in value and (bool(sections) or len(value) == 1))


def parsed(text: str, where: str) -> Mapping[str, Any] | None:
    """The configuration in a text, None for another text. Raises DecodeError for a broken one."""
    try:
        value = load(text)
    except ParseError as error:
        if re.search(r"^(flags|sharing|mig-configs):", text, re.MULTILINE):
            raise DecodeError(where, str(error)) from None
        return None
    return value if is_configuration(value) else None


def read_mig_configs(value: Mapping[str, Any], where: str) -> dict[str, tuple[MigGroup, ...]]:
    """The configurations of a mig-parted file by name. Raises DecodeError."""
    fields = Fields(value, where)
    _check_version(fields)
    named = fields.required_object("mig-configs")
    found = {name: named.decode_all(name, _group) for name in value["mig-configs"]}
    fields.finish()
    return found


def _group(fields: Fields) -> MigGroup:
    devices, filters = fields.take("devices"), fields.take("device-filter")
    if devices != "all" and not (isinstance(devices, list) and all(type(device) is int for device in devices)):
        raise fields.error("devices", f"must be all or a list of indexes, not {devices!r}")
    enabled, profiles = fields.flag("mig-enabled"), dict(fields.raw_object("mig-devices") or {})
    for name, count in profiles.items():
        if type(count) is not int or count < 0:
            raise fields.error(f"mig-devices[{name}]", f"must be a number of MIG devices, not {count!r}")
    listed = filters if isinstance(filters, list) else [filters] if filters else []
    indexes = None if devices == "all" else tuple(devices)
    return MigGroup(indexes, tuple(str(index).lower() for index in listed), profiles if enabled else None)


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables of a container that have a value of their own."""
    return {str(variable.get("name")): str(variable.get("value") or "") for variable in each(container, "env")}


def words(container: Mapping[str, Any]) -> list[str]:
    """The command line of a container, as far as it does not come from its image."""
    lists = (container.get(name) for name in ("command", "args"))
    return [str(word) for item in lists if isinstance(item, list) for word in item]


def read_plugin(value: Mapping[str, Any], where: str, container: Mapping[str, Any]) -> PluginConfig:
    """The plugin's configuration, of a file (or an empty mapping) and of the plugin's container. Raises DecodeError."""
    fields, variables = Fields(value, where), environment(container)
    _check_version(fields)
    flags = _flags(fields, container, variables)
    strategy = flags.text("migStrategy") or "none"
    if strategy not in _STRATEGIES:
        raise flags.error("migStrategy", f"must be {', '.join(_STRATEGIES)}, not {strategy!r}")
    root = flags.text("nvidiaDriverRoot")
    additional = tuple(device for name, device in _ADDITIONAL.items() if flags.flag(name))
    for section, names in _WITHOUT_EFFECT.items():
        known = flags.object(section) or Fields({}) if section else flags
        known.ignore(*names.split())
        known.finish()
    sharing = fields.object("sharing") or Fields({})
    slicing, mps = sharing.object("timeSlicing"), sharing.object("mps")
    sharing.finish()
    if slicing is not None and mps is not None:
        raise fields.error("sharing", "time-slicing and MPS exclude each other")
    if mps is not None and strategy == "mixed":
        raise flags.error("migStrategy", "the device plugin refuses mixed together with sharing.mps")
    renamed, replicas = _sharing(mps or slicing)
    imex = fields.object("imex") or Fields({})
    notes = (_IMEX,) if imex.array("channelIDs") else ()
    imex.ignore("required")
    imex.finish()
    fields.ignore("resources")
    fields.finish()
    disabled = variables.get("DP_DISABLE_HEALTHCHECKS", "").lower()
    return PluginConfig(
        strategy,
        replicas,
        mps is not None,
        renamed,
        "" if root == "/" else root,
        health=not ("xids" in disabled or disabled == "all"),
        application_xids=tuple(int(number) for number in re.findall("[0-9]+", disabled)),
        additional_devices=additional,
        notes=notes,
        packed=_allocation_policy(value, container, variables) == "packed",
    )


def _allocation_policy(
    value: Mapping[str, Any], container: Mapping[str, Any], variables: Mapping[str, str]
) -> str | None:
    """How the plugin chooses among shares: `packed`, or else `distributed`, its default."""
    given = re.search(r"--?shared-devices-allocation-policy[= ](\S+)", " ".join(words(container)))
    if given is not None:
        return given[1]
    in_file = within(value, "flags", "plugin").get("sharedDevicesAllocationPolicy")
    return variables.get("SHARED_DEVICES_ALLOCATION_POLICY") or in_file


def _check_version(fields: Fields) -> None:
    if (version := fields.text("version", "v1")) != "v1":
        raise fields.error("version", f"{version!r} is unknown: only configurations of version v1 can be read")


def _flags(fields: Fields, container: Mapping[str, Any], variables: Mapping[str, str]) -> Fields:
    """The section `flags`, with the flags and the environment of the container in it."""
    found = dict(fields.raw_object("flags") or {})
    line = " ".join(words(container))
    for flag, (variable, name) in _FLAGS.items():
        given = re.search(rf"(?:^|\s)--?{flag}(?:[= ](?P<value>[^\s-]\S*))?(?=\s|$)", line)
        text = (given["value"] or "true") if given is not None else variables.get(variable)
        if text:
            found[name] = text == "true" if name in _ADDITIONAL else text
    return Fields(found, "flags", fields)


def _sharing(fields: Fields | None) -> tuple[bool, Mapping[str, int]]:
    """Whether shared resources are renamed, and the number of shares of each resource."""
    if fields is None:
        return False, {}

    def replicated(entry: Fields) -> tuple[str, int]:
        name, replicas = entry.required_text("name"), entry.required_integer("replicas")
        if replicas < 2:
            raise entry.error("replicas", f"must be 2 or more, not {replicas}")
        entry.ignore("rename", "devices")
        return name if name.startswith(PREFIX) else PREFIX + name, replicas

    renamed, replicas = fields.flag("renameByDefault"), dict(fields.decode_all("resources", replicated))
    if not replicas:
        raise fields.error("resources", "is required")
    fields.ignore("failRequestsGreaterThanOne")
    fields.finish()
    return renamed, replicas
