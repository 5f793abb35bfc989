# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices: defaults, gated fields, and validation.

The rules are those of `dra_driver.kube.resource.validation`, which the controller applies before it sends a slice. So
the verdicts are those of kube-apiserver, and the texts are this project's own.
"""

from collections.abc import Iterable
from typing import Any, Final

from dra_driver.kube.resource.codec import V1, DecodeError, decode_slice
from dra_driver.kube.resource.device import COUNTERS_APART_SINCE, SliceFeatures
from dra_driver.kube.resource.validation import slice_problems

from ... import field_errors as errors
from ...kinds import Context, KindStrategy
from ...objects import Object, timestamp
from . import rules, versions
from .rules import Problems


def set_defaults(obj: Object, context: Context) -> None:
    """Set the time of taints without one."""
    for device in obj.get("spec", {}).get("devices", ()):
        for taint in device.get("taints", ()):
            taint.setdefault("timeAdded", timestamp(context.now))


def prepare(new: Object, old: Object | None, context: Context) -> None:
    """Drop fields behind disabled feature gates."""
    versions.drop_disabled(new, old, versions.SLICE, context.release)


def warn(new: Object, context: Context) -> Iterable[str]:
    """Warn of a driver name with upper-case letters."""
    driver = new.get("spec", {}).get("driver", "")
    if driver != driver.lower():
        yield f'spec.driver: driver names should be lowercase; "{driver}" contains uppercase characters'


def validate(new: Object, old: Object | None, context: Context) -> Problems:
    """Yield the problems of a slice, or with its change."""
    if old is not None:
        yield from _immutable_problems(new.get("spec", {}), old.get("spec", {}))
    yield from _partition_type_problems(new.get("spec", {}), (old or {}).get("spec", {}), context)
    features = SliceFeatures(counters_beside_devices=context.release.minor < COUNTERS_APART_SINCE)
    try:
        problems = slice_problems(decode_slice(new, V1, strict=False), features)
    except DecodeError as error:
        yield rules.form_problem(error)
        return
    for problem in problems:
        yield errors.FieldError("FieldValueInvalid", problem.path, f"Invalid value: {problem.message}")


def _partition_type_problems(spec: Object, old: Object, context: Context) -> Problems:
    """The field is refused, not dropped, while its gate is disabled."""
    gate, field = "DRAPartitionableDevicesType", "partitionTypeAttribute"
    if spec.get(field) is not None and old.get(field) is None and not context.release.enabled(gate):
        yield errors.forbidden(f"spec.{field}", f"the {gate} feature gate is disabled")


def _immutable_problems(spec: Object, old: Object) -> Problems:
    for path in (("pool", "name"), ("driver",), ("nodeName",)):
        before: Any = old
        after: Any = spec
        for part in path:
            before, after = before.get(part), after.get(part)
            before, after = (({} if value is None else value) if part == "pool" else value for value in (before, after))
        if before != after:
            yield errors.invalid(f"spec.{'.'.join(path)}", after, "field is immutable")


STRATEGY: Final = KindStrategy(
    default=set_defaults,
    prepare=prepare,
    validate=validate,
    warn=warn,
    generation=("spec",),
    returns_deleted=True,
    checks_required=False,
)
