# SPDX-License-Identifier: Apache-2.0
"""DeviceClass: gated fields and validation."""

from typing import Final

from dra_driver.resource import limits

from ... import field_errors as errors
from ...kinds import Context, Strategy
from ...objects import Object
from . import gates, rules
from .rules import Problems


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


CLASS: Final = Strategy(
    prepare=prepare_class,
    validate=validate_class,
    generation=("spec",),
    returns_deleted=True,
    checks_required=False,
)
