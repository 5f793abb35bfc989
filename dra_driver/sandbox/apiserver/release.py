# SPDX-License-Identifier: Apache-2.0
"""What one Kubernetes release serves and which feature gates it starts with.

Facts of k8s.io/kubernetes 1.32 to 1.37, as far as the kinds here depend on them: the versions
of resource.k8s.io, and the gates that make the API server drop or refuse fields.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

OLDEST: Final = 32
NEWEST: Final = 37
RESOURCE_GROUP: Final = "resource.k8s.io"

# Gate -> (minor release, default from then on). A release before the first does not know the gate.
_GATES: Final[Mapping[str, tuple[tuple[int, bool], ...]]] = {
    "DRAAdminAccess": ((32, False), (34, True)),
    "DRAConsumableCapacity": ((34, False), (36, True)),
    "DRADerivedAttributes": ((37, False),),
    "DRADeviceBindingConditions": ((34, False), (36, True)),
    "DRADeviceCompatibilityGroups": ((37, False),),
    "DRADeviceTaintRules": ((35, False), (37, True)),
    "DRADeviceTaints": ((33, False), (36, True)),
    "DRAExtendedResource": ((34, False), (36, True)),
    "DRAFractionalCapacityRange": ((37, True),),
    "DRAListTypeAttributes": ((36, False),),
    "DRANodeAllocatableResources": ((36, False),),
    "DRAOptionalNodeOperations": ((37, False),),
    "DRAPartitionableDevices": ((33, False), (36, True)),
    "DRAPartitionableDevicesType": ((37, False),),
    "DRAPrioritizedList": ((33, False), (34, True)),
    "DRAResourceClaimDeviceStatus": ((32, False), (33, True)),
    "DRAResourceClaimGranularStatusAuthorization": ((36, True),),
}

# Version of resource.k8s.io -> (first release that has it, first release that serves it unasked).
_NEVER: Final = NEWEST + 1
_RESOURCE_VERSIONS: Final[Mapping[str, tuple[int, int]]] = {
    "v1": (34, 34),
    "v1beta2": (33, _NEVER),
    "v1beta1": (32, _NEVER),
    "v1alpha3": (33, _NEVER),
}
_TAINT_RULE_SINCE: Final = {"v1alpha3": 33, "v1beta2": 36, "v1": 37}
_DEPRECATIONS: Final = {"v1beta1": (35, 38), "v1beta2": (36, 39)}


class ReleaseError(ValueError):
    """A release, gate or API version that does not exist."""


@dataclass(frozen=True, slots=True)
class Release:
    """Kubernetes 1.`minor` with its feature gates and the resource.k8s.io versions that it serves."""

    minor: int
    gates: Mapping[str, bool]
    resource_versions: tuple[str, ...] = field(default=())

    def enabled(self, gate: str) -> bool:
        """Whether the gate is on; a gate that the release does not know is off."""
        return self.gates.get(gate, False)

    def serves(self, group: str, version: str, kind: str) -> bool:
        """Whether the release serves this kind in this version."""
        if group != RESOURCE_GROUP:
            return True
        if kind == "DeviceTaintRule" and self.minor < _TAINT_RULE_SINCE.get(version, _NEVER):
            return False
        return version in self.resource_versions

    def deprecation(self, group: str, version: str, kind: str) -> str:
        """The warning that comes with every request in a deprecated version; else empty."""
        since, removed = _DEPRECATIONS.get(version, (_NEVER, 0))
        if group != RESOURCE_GROUP or self.minor < since:
            return ""
        return f"{group}/{version} {kind} is deprecated in v1.{since}+, unavailable in v1.{removed}+"

    @property
    def admin_access_label(self) -> str:
        """The namespace label that admin access needs; empty before there was one."""
        if self.minor >= 34:
            return "resource.kubernetes.io/admin-access"
        return "resource.k8s.io/admin-access" if self.minor == 33 else ""


def release(
    minor: int, gates: Mapping[str, bool] | None = None, resource_versions: Iterable[str] | None = None
) -> Release:
    """Kubernetes 1.`minor`, with gates changed from their defaults.

    `resource_versions` names the versions of resource.k8s.io to serve; None serves those that the
    release serves unasked (none before 1.34). Raises ReleaseError on anything that it does not have.
    """
    if not OLDEST <= minor <= NEWEST:
        raise ReleaseError(f"Kubernetes 1.{minor} is not one of 1.{OLDEST} to 1.{NEWEST}")
    effective = {}
    for gate, steps in _GATES.items():
        defaults = [default for since, default in steps if since <= minor]
        if defaults:
            effective[gate] = defaults[-1]
    for gate, value in (gates or {}).items():
        if gate not in effective:
            raise ReleaseError(f"Kubernetes 1.{minor} has no feature gate {gate}; known are {', '.join(effective)}")
        effective[gate] = value
    return Release(minor, MappingProxyType(effective), _served(minor, resource_versions))


def _served(minor: int, asked: Iterable[str] | None) -> tuple[str, ...]:
    if asked is None:
        return tuple(version for version, (_, unasked) in _RESOURCE_VERSIONS.items() if minor >= unasked)
    chosen = set(asked)
    known = [version for version, (since, _) in _RESOURCE_VERSIONS.items() if minor >= since]
    unknown = chosen - set(known)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise ReleaseError(f"Kubernetes 1.{minor} has no {RESOURCE_GROUP}/{names}; it has {', '.join(known)}")
    return tuple(version for version in known if version in chosen)
