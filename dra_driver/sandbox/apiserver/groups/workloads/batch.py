# SPDX-License-Identifier: Apache-2.0
"""batch/v1: Job."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from ... import field_errors as errors
from ...field_errors import FieldError
from ...kinds import Column, Context, Strategy
from ...objects import Object, parse_timestamp, pick
from .. import columns
from ..columns import AGE, CONTAINERS, IMAGES, NAME, SELECTOR
from ..core.pods import set_spec_defaults, spec_problems
from .apps import template_spec

Problems = Iterator[FieldError]

CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"
JOB_NAME: Final = "batch.kubernetes.io/job-name"
_JOB_POLICIES: Final = ("OnFailure", "Never")
_JOB_FIXED: Final = ("completions", "selector", "template", "completionMode")


def set_job_defaults(obj: Object, context: Context) -> None:
    """Counts, modes, and the template's."""
    spec = obj.setdefault("spec", {})
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec["completionMode"] = spec.get("completionMode") or "NonIndexed"
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    policy = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    spec["podReplacementPolicy"] = spec.get("podReplacementPolicy") or policy
    set_spec_defaults(template_spec(spec))


def prepare_job(new: Object, old: Object | None, context: Context) -> None:
    """A new job selects its pods by its own UID."""
    spec = new["spec"]
    if old is not None or spec.get("manualSelector"):
        return
    uid, name = new["metadata"]["uid"], new["metadata"].get("name", "")
    labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
    for key, value in (
        (CONTROLLER_UID, uid),
        ("controller-uid", uid),
        (JOB_NAME, name),
        ("job-name", name),
    ):
        labels.setdefault(key, value)
    if not spec.get("selector"):
        spec["selector"] = {"matchLabels": {CONTROLLER_UID: uid}}
    if not new["metadata"].get("labels"):
        new["metadata"]["labels"] = dict(labels)


def validate_job(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a job, or with its change."""
    spec = new["spec"]
    yield from _template_problems(spec, "spec")
    for field in ("completions", "parallelism", "backoffLimit"):
        if (spec.get(field) or 0) < 0:
            yield errors.invalid(f"spec.{field}", spec[field], "must be greater than or equal to 0")
    if old is None:
        return
    before = old.get("spec", {})
    for field in _JOB_FIXED:
        if spec.get(field) != before.get(field):
            yield errors.invalid(f"spec.{field}", spec.get(field), "field is immutable")


def _template_problems(spec: Object, path: str) -> Problems:
    template = template_spec(spec)
    yield from spec_problems(template, f"{path}.template.spec")
    if template.get("restartPolicy") not in _JOB_POLICIES:
        field = f"{path}.template.spec.restartPolicy"
        yield (
            FieldError("FieldValueRequired", field, 'Required value: valid values: "OnFailure", "Never"')
            if template.get("restartPolicy") == "Always"
            else errors.not_supported(field, template.get("restartPolicy"), _JOB_POLICIES)
        )


def _condition(job: Object, kind: str) -> bool:
    conditions = pick(job, "status", "conditions") or ()
    return any(item.get("type") == kind and item.get("status") == "True" for item in conditions)


def _status(job: Object) -> str:
    for kind in ("Complete", "Failed"):
        if _condition(job, kind):
            return kind
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for kind, shown in (("Suspended", "Suspended"), ("FailureTarget", "FailureTarget")):
        if _condition(job, kind):
            return shown
    return "SuccessCriteriaMet" if _condition(job, "SuccessCriteriaMet") else "Running"


def _completions(job: Object) -> str:
    done, wanted = pick(job, "status", "succeeded") or 0, pick(job, "spec", "completions")
    if wanted is not None:
        return f"{done}/{wanted}"
    parallelism = pick(job, "spec", "parallelism") or 0
    return f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"


def _duration(job: Object, now: datetime) -> Any:
    start, end = pick(job, "status", "startTime"), pick(job, "status", "completionTime")
    if not start:
        return ""
    return columns.since(start, parse_timestamp(end) if end else now)


JOB: Final = Strategy(
    default=set_job_defaults,
    prepare=prepare_job,
    validate=validate_job,
    generation=("spec",),
    first_status={},
    status_keeps_metadata=True,
    orphans_dependents=True,
)
JOB_COLUMNS: Final[tuple[Column, ...]] = (
    NAME,
    columns.made("Status", _status),
    columns.made("Completions", _completions),
    Column("Duration", _duration),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
)
