# SPDX-License-Identifier: Apache-2.0
"""Whether the object's kind exists, and whether its apiVersion is served, deprecated or gone.

The releases are those of the API lifecycle markers of k8s.io/api (1.37).
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ...resource.codec import GROUP
from .finding import Issue, error, warning
from .subject import DECODED_KINDS, Context, Subject, is_device_api

NOT_SERVED = error("api-version-not-served", "The release does not serve this version of resource.k8s.io.")
DEPRECATED = warning("deprecated-api-version", "Clusters do not serve this version unless asked to, and it will go.")
UNKNOWN_KIND = error("unknown-kind", "resource.k8s.io has no such kind.")
RULES = (NOT_SERVED, DEPRECATED, UNKNOWN_KIND)

_WITH_REQUESTS: Final = ("ResourceClaim", "ResourceClaimTemplate")
_OTHER_KINDS: Final = ("DeviceTaintRule", "ResourcePoolStatusRequest")
"""Kinds that exist and are not checked further."""


@dataclass(frozen=True, slots=True)
class _Lifecycle:
    """Minor versions of Kubernetes: the first that serves it, that which deprecates it, the first without it."""

    first: int
    deprecated: int | None = None
    gone: int | None = None


_VERSIONS: Final[Mapping[str, _Lifecycle]] = {
    "v1": _Lifecycle(34),
    "v1beta2": _Lifecycle(33, 36, 39),
    "v1beta1": _Lifecycle(32, 35, 38),
    "v1alpha3": _Lifecycle(31, gone=34),
}
_FIRST_WITH_V1: Final = 34


def check_version(subject: Subject, context: Context) -> Iterator[Issue]:
    """The object's apiVersion and kind in the release."""
    source = subject.source
    if not is_device_api(source) or source.kind in _OTHER_KINDS:
        return
    if source.kind not in DECODED_KINDS:
        close = difflib.get_close_matches(source.kind, (*DECODED_KINDS, *_OTHER_KINDS), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"use {', '.join(DECODED_KINDS)}"
        yield Issue(UNKNOWN_KIND, "kind", f"{GROUP} has no kind {source.kind!r}; {hint}")
        return
    name = source.api_version.partition("/")[2]
    best = _best(context.minor)
    moved = best == "v1" and name != "v1beta2" and source.kind in _WITH_REQUESTS
    change = "" if not moved else "; what a request asks for goes under 'exactly' there"
    version = _VERSIONS.get(name)
    if version is None:
        yield Issue(NOT_SERVED, "apiVersion", f"{source.api_version} does not exist: use {GROUP}/{best}{change}")
    elif context.minor < version.first:
        problem = f"{source.api_version} is served from Kubernetes 1.{version.first} on: for {context.release} use"
        yield Issue(NOT_SERVED, "apiVersion", f"{problem} {GROUP}/{best}")
    elif version.gone is not None and context.minor >= version.gone:
        problem = f"{source.api_version} is gone since Kubernetes 1.{version.gone}: use"
        yield Issue(NOT_SERVED, "apiVersion", f"{problem} {GROUP}/{best}{change}")
    elif name != "v1" and context.minor >= _FIRST_WITH_V1:
        yield Issue(
            DEPRECATED,
            "apiVersion",
            f"{source.api_version} is served only where --runtime-config asks for it{_outlook(version)}:"
            f" use {GROUP}/v1{change}",
        )


def _best(release: int) -> str:
    return next(name for name, version in _VERSIONS.items() if version.first <= release)


def _outlook(version: _Lifecycle) -> str:
    return f", is deprecated since 1.{version.deprecated} and will be gone in 1.{version.gone}"
