# SPDX-License-Identifier: Apache-2.0
"""The kinds of apps/v1, and Jobs: defaults, rules and columns. `dra_driver.sandbox.workloads` creates their pods."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from dra_driver.kube.resource.codec import Fields
from dra_driver.scheduler.pods.objects import decode_label_selector

from .. import field_errors as errors
from ..field_errors import FieldError
from ..kinds import Column, Context, KindStrategy
from ..objects import Object, fill, parse_timestamp, pick
from . import columns
from .columns import AGE, CONTAINERS, IMAGES, NAME, SELECTOR
from .pods import set_spec_defaults, spec_problems

Problems = Iterator[FieldError]

_ROLLING: Final = "RollingUpdate"
_DAEMON_COUNTS: Final = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")

_AGE_AND_WIDE: Final = (AGE, CONTAINERS, IMAGES, SELECTOR)

DAEMON_SET_COLUMNS: Final[tuple[Column, ...]] = (
    NAME,
    columns.number("Desired", "status", "desiredNumberScheduled"),
    columns.number("Current", "status", "currentNumberScheduled"),
    columns.number("Ready", "status", "numberReady"),
    columns.number("Up-to-date", "status", "updatedNumberScheduled"),
    columns.number("Available", "status", "numberAvailable"),
    columns.made("Node Selector", lambda obj: columns.labels(pick(obj, "spec", "template", "spec", "nodeSelector"))),
    *_AGE_AND_WIDE,
)
REPLICA_SET_COLUMNS: Final[tuple[Column, ...]] = (
    NAME,
    columns.number("Desired", "spec", "replicas"),
    columns.number("Current", "status", "replicas"),
    columns.number("Ready", "status", "readyReplicas"),
    *_AGE_AND_WIDE,
)

CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"
JOB_NAME: Final = "batch.kubernetes.io/job-name"
_JOB_POLICIES: Final = ("OnFailure", "Never")
_JOB_FIXED: Final = ("completions", "selector", "template", "completionMode")


def template_spec(spec: Object) -> Object:
    """Return the pod spec in a workload's spec. Missing parts are created."""
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    found: Object = template.setdefault("spec", {})
    return found


def _defaults(
    strategy: str = "", rolling: Mapping[str, Any] = MappingProxyType({}), **fields: Any
) -> Callable[[Object, Context], None]:
    """Return a function that sets the defaults of a workload's spec.

    `strategy` is the field with the update strategy, `rolling` are the defaults of a rolling update.
    """

    def set_defaults(obj: Object, context: Context) -> None:
        spec = obj.setdefault("spec", {})
        fill(spec, **fields)
        if strategy:
            chosen = spec.setdefault(strategy, {})
            fill(chosen, type=_ROLLING)
            if chosen["type"] == _ROLLING:
                fill(chosen.setdefault("rollingUpdate", {}), **rolling)
        set_spec_defaults(template_spec(spec))

    return set_defaults


def validate(new: Object, old: Object | None, context: Context) -> Problems:
    """Yield the problems of a workload, or with its change."""
    spec = new["spec"]
    yield from _selector_problems(spec)
    yield from spec_problems(template_spec(spec), "spec.template.spec")
    policy = pick(spec, "template", "spec", "restartPolicy")
    if policy != "Always":
        yield errors.not_supported("spec.template.spec.restartPolicy", policy, ["Always"])
    if spec.get("replicas", 0) < 0:
        yield errors.invalid("spec.replicas", spec["replicas"], "must be greater than or equal to 0")
    if old is not None and spec.get("selector") != pick(old, "spec", "selector"):
        yield errors.invalid("spec.selector", spec.get("selector"), "field is immutable")


def _selector_problems(spec: Object) -> Problems:
    """Yield an error for a selector that is empty, or does not match the template's labels."""
    selector = spec.get("selector")
    if selector is not None and not any(selector.values()):
        yield errors.invalid("spec.selector", {}, "must not be empty")
        return
    labels = pick(spec, "template", "metadata", "labels") or {}
    if not selector or not decode_label_selector(Fields(selector, strict=False)).matches(labels):
        text = "`selector` does not match template `labels`"
        yield errors.invalid("spec.template.metadata.labels", labels, text)


def _ready(obj: Object) -> Any:
    return f"{pick(obj, 'status', 'readyReplicas') or 0}/{pick(obj, 'spec', 'replicas') or 0}"


def _strategy(default: Callable[[Object, Context], None], **status: Any) -> KindStrategy:
    return KindStrategy(
        default=default, validate=validate, generation=("spec",), first_status=status, status_keeps_metadata=True
    )


DEPLOYMENT: Final = _strategy(
    _defaults(
        "strategy",
        {"maxUnavailable": "25%", "maxSurge": "25%"},
        replicas=1,
        revisionHistoryLimit=10,
        progressDeadlineSeconds=600,
    )
)
DAEMON_SET: Final = _strategy(
    _defaults("updateStrategy", {"maxUnavailable": 1, "maxSurge": 0}, revisionHistoryLimit=10),
    **dict.fromkeys(_DAEMON_COUNTS, 0),
)
REPLICA_SET: Final = _strategy(_defaults(replicas=1), replicas=0)
STATEFUL_SET: Final = _strategy(
    _defaults(
        "updateStrategy", {"partition": 0}, replicas=1, podManagementPolicy="OrderedReady", revisionHistoryLimit=10
    ),
    replicas=0,
    availableReplicas=0,
)

DEPLOYMENT_COLUMNS: Final[tuple[Column, ...]] = (
    NAME,
    columns.made("Ready", _ready),
    columns.made("Up-to-date", lambda obj: pick(obj, "status", "updatedReplicas") or 0),
    columns.made("Available", lambda obj: pick(obj, "status", "availableReplicas") or 0),
    *_AGE_AND_WIDE,
)
STATEFUL_SET_COLUMNS: Final[tuple[Column, ...]] = (NAME, columns.made("Ready", _ready), *_AGE_AND_WIDE)


def set_job_defaults(obj: Object, context: Context) -> None:
    """Set the defaults of a Job."""
    spec = obj.setdefault("spec", {})
    if spec.get("parallelism") is None:
        fill(spec, completions=1)
    fill(spec, parallelism=1, backoffLimit=6, completionMode="NonIndexed", suspend=False, manualSelector=False)
    set_spec_defaults(template_spec(spec))


def prepare_job(new: Object, old: Object | None, context: Context) -> None:
    """Set the selector of a new Job, which is the Job's UID, and the labels of its pods."""
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
    """Yield the problems of a job, or with its change."""
    spec = new["spec"]
    template, field = template_spec(spec), "spec.template.spec.restartPolicy"
    yield from spec_problems(template, "spec.template.spec")
    if template.get("restartPolicy") not in _JOB_POLICIES:
        yield errors.not_supported(field, template.get("restartPolicy"), _JOB_POLICIES)
    for field in ("completions", "parallelism", "backoffLimit"):
        if (spec.get(field) or 0) < 0:
            yield errors.invalid(f"spec.{field}", spec[field], "must be greater than or equal to 0")
    if old is None:
        return
    before = old.get("spec", {})
    for field in _JOB_FIXED:
        if spec.get(field) != before.get(field):
            yield errors.invalid(f"spec.{field}", spec.get(field), "field is immutable")


def _status(job: Object) -> str:
    done = {item.get("type") for item in pick(job, "status", "conditions") or () if item.get("status") == "True"}
    return next((kind for kind in ("Complete", "Failed", "Suspended") if kind in done), "Running")


def _completions(job: Object) -> str:
    return f"{pick(job, 'status', 'succeeded') or 0}/{pick(job, 'spec', 'completions') or 1}"


def _duration(job: Object, now: datetime) -> Any:
    start, end = pick(job, "status", "startTime"), pick(job, "status", "completionTime")
    if not start:
        return ""
    return columns.since(start, parse_timestamp(end) if end else now)


JOB: Final = KindStrategy(
    default=set_job_defaults,
    prepare=prepare_job,
    validate=validate_job,
    generation=("spec",),
    first_status={},
    status_keeps_metadata=True,
)
CRON_JOB_COLUMNS: Final[tuple[Column, ...]] = (
    NAME,
    columns.text("Schedule", "spec", "schedule"),
    columns.text("Timezone", "spec", "timeZone", absent=columns.NONE),
    columns.made("Suspend", lambda cron_job: str(bool(pick(cron_job, "spec", "suspend")))),
    columns.count("Active", "status", "active"),
    columns.made("Last Schedule", lambda cron_job: columns.NONE),  # there is no controller that would start a Job
    columns.AGE,
)
JOB_COLUMNS: Final[tuple[Column, ...]] = (
    NAME,
    columns.made("Status", _status),
    columns.made("Completions", _completions),
    Column("Duration", _duration),
    *_AGE_AND_WIDE,
)
