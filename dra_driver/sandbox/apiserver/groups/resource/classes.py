# SPDX-License-Identifier: Apache-2.0
"""DeviceClass and DeviceTaintRule: small cluster-scoped kinds of resource.k8s.io."""

from typing import Final

from dra_driver.resource import limits

from ... import field_errors as errors
from ...kinds import Context, Strategy
from ...objects import Object, timestamp
from .. import meta
from . import gates, rules
from .rules import Problems

_CONDITIONS: Final = 8


def prepare_class(new: Object, old: Object | None, context: Context) -> None:
    """Drops fields behind disabled gates."""
    gates.drop_disabled(new, old, gates.CLASS, context.release)


def validate_class(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a DeviceClass."""
    spec = new.get("spec", {})
    unchanged = old is not None and old.get("spec", {}).get("selectors") == spec.get("selectors")
    if not unchanged:
        yield from rules.selector_problems(spec.get("selectors", ()), "spec.selectors", context)
    yield from rules.list_problems(
        spec.get("config", ()), limits.CONFIGS_PER_CLAIM, rules.device_configuration_problems, "spec.config"
    )
    name = spec.get("extendedResourceName")
    if name is not None and not rules.is_extended_resource_name(name):
        yield errors.invalid("spec.extendedResourceName", name, "must be a valid extended resource name")


def set_taint_rule_defaults(obj: Object, context: Context) -> None:
    """The time of the taint."""
    taint = obj.get("spec", {}).get("taint")
    if isinstance(taint, dict):
        taint.setdefault("timeAdded", timestamp(context.now))


def prepare_taint_rule(new: Object, old: Object | None, context: Context) -> None:
    """A changed effect begins now, unless the client says when."""
    if old is None:
        return
    taint, before = new.get("spec", {}).get("taint", {}), old.get("spec", {}).get("taint", {})
    if taint.get("effect") != before.get("effect") and taint.get("timeAdded") == before.get("timeAdded"):
        taint["timeAdded"] = timestamp(context.now)


def validate_taint_rule(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a DeviceTaintRule."""
    spec = new.get("spec", {})
    selector, path = spec.get("deviceSelector") or {}, "spec.deviceSelector"
    for field, check in (
        ("driver", rules.driver_problems),
        ("pool", rules.pool_problems),
        ("device", rules.label_problems),
    ):
        if selector.get(field) is not None:
            yield from check(selector[field], f"{path}.{field}")
    yield from rules.taint_problems(spec.get("taint", {}), "spec.taint", context)


def validate_taint_rule_status(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a DeviceTaintRule's status."""
    conditions = (new.get("status") or {}).get("conditions") or []
    if len(conditions) > _CONDITIONS:
        yield errors.too_many("status.conditions", len(conditions), _CONDITIONS)
    yield from meta.condition_problems(conditions, "status.conditions")


CLASS: Final = Strategy(
    prepare=prepare_class,
    validate=validate_class,
    generation=("spec",),
    returns_deleted=True,
    checks_required=False,
)
TAINT_RULE: Final = Strategy(
    default=set_taint_rule_defaults,
    prepare=prepare_taint_rule,
    validate=validate_taint_rule,
    validate_status=validate_taint_rule_status,
    generation=("spec",),
    first_status={},
    returns_deleted=True,
    checks_required=False,
)
