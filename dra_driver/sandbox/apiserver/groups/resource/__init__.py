# SPDX-License-Identifier: Apache-2.0
"""The kinds of resource.k8s.io, and the rules of DeviceClasses.

Objects are stored in the form of v1 and converted in requests and answers. The rules follow
pkg/apis/resource/validation and pkg/registry/resource of k8s.io/kubernetes 1.36.
"""

from functools import partial
from typing import Any, Final

from dra_driver.kube.releases import has_rule
from dra_driver.kube.resource import limits
from dra_driver.kube.resource.codec import V1, DecodeError, decode_class
from dra_driver.kube.resource.names import is_label_key

from ... import field_errors as errors
from ...kinds import Context, KindStrategy, ServedKind, text_at
from ...objects import Object, pick, timestamp
from ...opaque import without_texts
from ...release import RESOURCE_GROUP, Release
from .. import columns
from ..columns import AGE, NAME
from . import claims, rules, slices, versions
from .rules import Problems

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


def kinds(release: Release) -> tuple[ServedKind, ...]:
    """Return all kinds of the group. The release serves some of their versions."""
    selectors = {"spec.driver": text_at("spec", "driver"), "spec.nodeName": text_at("spec", "nodeName")}
    if has_rule(f"1.{release.minor}", "slices_are_selected_by_pool"):
        selectors["spec.pool.name"] = text_at("spec", "pool", "name")
    slice_columns = (
        NAME,
        columns.text("Node", "spec", "nodeName"),
        columns.text("Driver", "spec", "driver"),
        columns.text("Pool", "spec", "pool", "name"),
        AGE,
    )
    taint_rule_versions = ("v1", "v1beta2", "v1alpha3")
    kind = partial(ServedKind, RESOURCE_GROUP)
    return (
        kind(
            *("ResourceSlice", "resourceslices", _VERSIONS),
            namespaced=False,
            strategy=slices.STRATEGY,
            selectors=selectors,
            to_stored=versions.slice_to_stored,
            from_stored=versions.slice_from_stored,
            columns=slice_columns,
        ),
        kind("DeviceClass", "deviceclasses", _VERSIONS, namespaced=False, strategy=CLASS),
        kind(
            *("ResourceClaim", "resourceclaims", _VERSIONS),
            strategy=claims.CLAIM,
            to_stored=versions.claim_to_stored,
            from_stored=versions.claim_from_stored,
            columns=(NAME, columns.made("State", _state), AGE),
        ),
        kind(
            *("ResourceClaimTemplate", "resourceclaimtemplates", _VERSIONS),
            strategy=claims.TEMPLATE,
            to_stored=versions.template_to_stored,
            from_stored=versions.template_from_stored,
        ),
        kind(
            *("DeviceTaintRule", "devicetaintrules", taint_rule_versions),
            namespaced=False,
            strategy=TAINT_RULE,
        ),
    )


def prepare_class(new: Object, old: Object | None, context: Context) -> None:
    """Drop fields behind disabled feature gates."""
    versions.drop_disabled(new, old, versions.CLASS, context.release)


def validate_class(new: Object, old: Object | None, context: Context) -> Problems:
    """Yield the problems of a DeviceClass."""
    try:
        found = decode_class(without_texts(new), V1, strict=False)
    except DecodeError as error:
        yield rules.form_problem(error)
        return
    yield from rules.selector_problems(found.selectors, "spec.selectors", context)
    yield from rules.length_problems(found.config, limits.CONFIGS_PER_CLAIM, "spec.config")
    yield from rules.configuration_problems(found.config, "spec.config")
    name = found.extended_resource_name
    if name and ("/" not in name or not is_label_key(name) or "kubernetes.io/" in name):
        text = "must be an extended resource: DOMAIN/NAME with a domain outside of kubernetes.io"
        yield errors.invalid("spec.extendedResourceName", name, text)


CLASS: Final = KindStrategy(
    prepare=prepare_class,
    validate=validate_class,
    generation=("spec",),
    returns_deleted=True,
    checks_required=False,
)


def set_time_of_taint(new: Object, context: Context) -> None:
    """Set the time of a rule's taint without one."""
    taint = new.get("spec", {}).get("taint")
    if isinstance(taint, dict):
        taint.setdefault("timeAdded", timestamp(context.now))


TAINT_RULE: Final = KindStrategy(default=set_time_of_taint, generation=("spec",))
