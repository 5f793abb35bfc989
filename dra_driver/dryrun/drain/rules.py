# SPDX-License-Identifier: Apache-2.0
"""The objects that take devices out of use: DeviceTaintRules, or rules of the driver's policy.

The selector of a DeviceTaintRule has a driver, a pool and a device, and nothing else from Kubernetes 1.35 on. So there
is a rule for each pool of which all devices are selected, and else for each device.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ...kube.releases import is_since
from ...kube.resource import DeviceTaint, DeviceTaintRule, DeviceTaintSelector, ObjectMeta
from ...kube.resource.codec import TAINT_RULE_VERSIONS, encode_taint_rule
from ...names import DRIVER_NAME
from ...process.command import InputError
from ...scheduler.allocator import Features
from ..report import listed
from .targets import PCI_BUS_ID, PublishedDevice, PublishedDevices

JSON = dict[str, Any]

DRAIN_KEY: Final = "gpu.nvidia.com/drain"
"""The key of the taint, unless the user names another one."""
_VERSIONS: Final = dict(zip(("1.37", "1.36", "1.33"), TAINT_RULE_VERSIONS, strict=True))
"""The version of DeviceTaintRules that each release, and those after it, serve; the newest release first."""
_NO_NAME: Final = re.compile(r"[^a-z0-9.-]+|(?<=\.)[.-]+|-+(?=\.)")
_LONGEST_NAME: Final = 200


def version_of(features: Features, *, asked: bool) -> str:
    """The version of DeviceTaintRules that a release serves, empty if it serves none. Up to 1.36 they have to be
    switched on, and `asked` says whether they are.
    """
    if not features.device_taint_rules or not (asked or features.is_since("1.37")):
        return ""
    return next((version for first, version in _VERSIONS.items() if is_since(features.release, first)), "")


def rules_for(
    devices: Sequence[PublishedDevice], published: PublishedDevices, taint: DeviceTaint
) -> list[DeviceTaintRule]:
    """The rules that give the taint to these devices, and to no others of the cluster."""
    by_pool: dict[tuple[str, str], list[PublishedDevice]] = {}
    for device in devices:
        by_pool.setdefault((device.driver, device.pool), []).append(device)
    return [
        DeviceTaintRule(ObjectMeta(name=_name(selector)), taint, selector)
        for (driver, pool), selected in by_pool.items()
        for selector in _selectors(driver, pool, selected, whole=len(selected) == len(published.by_pool[driver, pool]))
    ]


def _selectors(
    driver: str, pool: str, devices: Sequence[PublishedDevice], *, whole: bool
) -> Iterator[DeviceTaintSelector]:
    if whole:
        yield DeviceTaintSelector(driver, pool)
        return
    for device in devices:
        yield DeviceTaintSelector(driver, pool, device.device.name)


def _name(selector: DeviceTaintSelector) -> str:
    """The name of the rule, which depends on its selector alone: so the way back has the same names."""
    driver = "" if selector.driver == DRIVER_NAME else selector.driver
    plain = "-".join(part for part in ("drain", driver, selector.pool, selector.device) if part)
    name = _NO_NAME.sub("-", plain.lower()).strip("-.")[:_LONGEST_NAME].strip("-.")
    if name == plain:
        return name
    return f"{name}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


def encoded_rule(rule: DeviceTaintRule, version: str) -> JSON:
    """A rule in the version of the API that the cluster serves."""
    return {**encode_taint_rule(rule), "apiVersion": version}


def policy_for(devices: Sequence[PublishedDevice]) -> JSON:
    """Values of the driver's chart that exclude the GPUs of these devices: rules for the end of the policy. Raises
    InputError for devices of other drivers, and for GPUs without a UUID.
    """
    others = sorted({device.driver for device in devices} - {DRIVER_NAME})
    if others:
        raise InputError(
            "the cluster has no DeviceTaintRules, and the driver's policy does not exclude devices of"
            f" {listed(others)}: restrict the selection to {DRIVER_NAME}"
        )
    found: dict[tuple[str, str], dict[str, None]] = {}
    for device in devices:
        field, value = _identity(device)
        found.setdefault((device.node, field), {})[value] = None
    rules = [
        {"match": {"nodes": [node], field: list(values)}, "publish": False} for (node, field), values in found.items()
    ]
    return {"policy": {"gpus": rules}}


def _identity(published: PublishedDevice) -> tuple[str, str]:
    """The field of the policy that selects the GPU of a device, and its value. Raises InputError."""
    attributes = published.device.attributes
    uuid, address = attributes.get("parentUUID") or attributes.get("uuid"), attributes.get(PCI_BUS_ID)
    if attributes.get("type") == "vfio" and isinstance(address, str):
        return "pciBusIDs", address
    if isinstance(uuid, str):
        return "uuids", uuid
    raise InputError(f"{published}: the device has no UUID of a GPU, which the driver's policy needs")
