# SPDX-License-Identifier: Apache-2.0
"""The API versions and feature gates of Kubernetes releases.

They are those of `kube.releases`. Some feature gates make the API server drop or refuse fields.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from ...kube.releases import API_VERSIONS, NEWEST_MINOR, OLDEST_MINOR, default_gates

RESOURCE_GROUP: Final = "resource.k8s.io"

# For each version of resource.k8s.io: the first release that has it, and the first one that serves it by default.
_NEVER: Final = NEWEST_MINOR + 1
_RESOURCE_VERSIONS: Final[Mapping[str, tuple[int, int]]] = {
    **{name: (version.first, version.on or _NEVER) for name, version in API_VERSIONS.items()},
    "v1alpha3": (33, _NEVER),
}


class ReleaseError(ValueError):
    """The release, feature gate or API version does not exist."""


@dataclass(frozen=True, slots=True)
class Release:
    """A Kubernetes release (1.`minor`) with its feature gates and the versions of resource.k8s.io that it serves."""

    minor: int
    gates: Mapping[str, bool]
    resource_versions: tuple[str, ...] = field(default=())

    def enabled(self, gate: str) -> bool:
        """Return whether the feature gate is enabled. A gate that the release does not know is disabled."""
        return self.gates.get(gate, False)

    def serves(self, group: str, version: str) -> bool:
        """Return whether this version of the group is served, if the release has it."""
        return group != RESOURCE_GROUP or version in self.resource_versions

    def deprecation(self, group: str, version: str, kind: str) -> str:
        """Return the warning for requests in a deprecated version. Empty if the version is not deprecated."""
        known = API_VERSIONS.get(version) if group == RESOURCE_GROUP else None
        if known is None or known.deprecated is None or self.minor < known.deprecated:
            return ""
        return f"{group}/{version} {kind} is deprecated in v1.{known.deprecated}+, unavailable in v1.{known.gone}+"


def release(
    minor: int, gates: Mapping[str, bool] | None = None, resource_versions: Iterable[str] | None = None
) -> Release:
    """Return Kubernetes 1.`minor` with these feature gates.

    `resource_versions` are the versions of resource.k8s.io to serve. None: the default of the release (before 1.34, it
    serves none). Raises ReleaseError if the release does not have a gate or version.
    """
    if not OLDEST_MINOR <= minor <= NEWEST_MINOR:
        raise ReleaseError(f"Kubernetes 1.{minor} is not one of 1.{OLDEST_MINOR} to 1.{NEWEST_MINOR}")
    effective = default_gates(f"1.{minor}")
    for gate, value in (gates or {}).items():
        if gate not in effective:
            raise ReleaseError(f"Kubernetes 1.{minor} has no feature gate {gate}; it has {', '.join(effective)}")
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
