# SPDX-License-Identifier: Apache-2.0
"""API versions of manifests: whether the releases serve them.

An object in a cluster has no version of its own: every version that is served shows it. Only who writes it names one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ...kube.releases import VERSIONS_OF_KINDS, ApiVersion, minor_of
from .difference import Aspect, Difference, Effect
from .sides import Side, Sides

_SERVED: Final = "served"


def version_differences(objects: Iterable[Mapping[str, Any]], sides: Sides) -> Iterator[Difference]:
    """The differences about the versions of manifests (JSON), one for each version, kind and namespace."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for value in objects:
        namespace = str((value.get("metadata") or {}).get("namespace") or "")
        counts[namespace, str(value.get("apiVersion")), str(value.get("kind"))] += 1
    for (namespace, api_version, kind), count in sorted(counts.items()):
        group, _, version = api_version.rpartition("/")
        known = VERSIONS_OF_KINDS.get((group, kind), {})
        if version not in known:
            continue
        before, after = _state(known[version], sides.now), _state(known[version], sides.then)
        if before == after:
            continue
        newest = next((name for name, served in known.items() if served.first <= minor_of(sides.then.release)), "")
        effect = Effect.CHANGES
        if _is_refused(known[version], sides.then) != _is_refused(known[version], sides.now):
            effect = Effect.BREAKS if _is_refused(known[version], sides.then) else Effect.HELPS
        if effect is not Effect.HELPS and newest not in ("", version):
            after += f": use {group}/{newest}"
        yield Difference(Aspect.VERSION, effect, f"{api_version} {kind}", before, after, namespace, count=count)


def _is_refused(version: ApiVersion, side: Side) -> bool:
    """Whether no API server of the release serves the version."""
    minor = minor_of(side.release)
    return minor < version.first or (version.gone is not None and minor >= version.gone)


def _state(version: ApiVersion, side: Side) -> str:
    minor = minor_of(side.release)
    if minor < version.first:
        return f"served from Kubernetes 1.{version.first} on"
    if version.gone is not None and minor >= version.gone:
        return "not served any more"
    said = _SERVED if version.on is not None and minor >= version.on else "served where --runtime-config asks for it"
    if version.deprecated is not None and minor >= version.deprecated:
        said += ", deprecated"
    return said
