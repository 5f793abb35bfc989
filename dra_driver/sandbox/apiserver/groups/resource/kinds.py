# SPDX-License-Identifier: Apache-2.0
"""The kinds of resource.k8s.io."""

from typing import Any, Final

from ...kinds import Kind, text_at
from ...objects import Object, pick
from ...release import RESOURCE_GROUP, Release
from .. import columns
from ..columns import AGE, NAME, NAME_AND_AGE
from . import claims, classes, conversion, slices

_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")


def _state(claim: Object) -> Any:
    deleting = bool(claim["metadata"].get("deletionTimestamp"))
    states = ["deleted"] if deleting else []
    if pick(claim, "status", "allocation") is not None:
        states.append("allocated")
        if pick(claim, "status", "reservedFor"):
            states.append("reserved")
    elif not deleting:
        states.append("pending")
    return ",".join(states)


def kinds(release: Release) -> tuple[Kind, ...]:
    """All kinds of the group; the release serves some of their versions."""
    selectors = {"spec.driver": text_at("spec", "driver"), "spec.nodeName": text_at("spec", "nodeName")}
    if release.minor >= 37:
        selectors["spec.pool.name"] = text_at("spec", "pool", "name")
    return (
        Kind(
            RESOURCE_GROUP,
            "ResourceSlice",
            "resourceslices",
            _VERSIONS,
            namespaced=False,
            strategy=slices.STRATEGY,
            selectors=selectors,
            to_stored=conversion.slice_to_stored,
            from_stored=conversion.slice_from_stored,
            columns=(
                NAME,
                columns.text("Node", "spec", "nodeName"),
                columns.text("Driver", "spec", "driver"),
                columns.text("Pool", "spec", "pool", "name"),
                AGE,
            ),
        ),
        Kind(
            RESOURCE_GROUP,
            "DeviceClass",
            "deviceclasses",
            _VERSIONS,
            namespaced=False,
            strategy=classes.CLASS,
            columns=NAME_AND_AGE,
        ),
        Kind(
            RESOURCE_GROUP,
            "ResourceClaim",
            "resourceclaims",
            _VERSIONS,
            subresources=("status",),
            strategy=claims.CLAIM,
            to_stored=conversion.claim_to_stored,
            from_stored=conversion.claim_from_stored,
            columns=(NAME, columns.made("State", _state), AGE),
        ),
        Kind(
            RESOURCE_GROUP,
            "ResourceClaimTemplate",
            "resourceclaimtemplates",
            _VERSIONS,
            strategy=claims.TEMPLATE,
            to_stored=conversion.template_to_stored,
            from_stored=conversion.template_from_stored,
            columns=NAME_AND_AGE,
        ),
        Kind(
            RESOURCE_GROUP,
            "DeviceTaintRule",
            "devicetaintrules",
            ("v1", "v1beta2", "v1alpha3"),
            namespaced=False,
            columns=NAME_AND_AGE,
        ),
    )
