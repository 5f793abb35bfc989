# SPDX-License-Identifier: Apache-2.0
"""The kinds of apps/v1, and Jobs: defaults, rules and columns. `dra_driver.sandbox.workloads` creates their pods."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

from dra_driver.resource.codec import Fields
from dra_driver.scheduling.objects import decode_label_selector

from .. import field_errors as errors
from ..field_errors import FieldError
from ..kinds import Column, Context, Strategy
from ..objects import Object, parse_timestamp, pick
from . import columns
from .columns import AGE, CONTAINERS, IMAGES, NAME, SELECTOR
from .pods import set_spec_defaults, spec_problems

Problems = Iterator[FieldError]

_ROLLING: Final = "RollingUpdate"
_TEMPLATE_GENERATION: Final = "deprecated.daemonset.template.generation"
_DAEMON_COUNTS: Final = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")


def template_spec(spec: Object) -> Object:
    """Return the pod spec in a workload's spec. Missing parts are created."""
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    found: Object = template.setdefault("spec", {})
    return found


def set_deployment_defaults(obj: Object, context: Context) -> None:
    """Set the defaults of a Deployment."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    strategy["type"] = strategy.get("type") or _ROLLING
    if strategy["type"] == _ROLLING:
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    set_spec_defaults(template_spec(spec))


def set_daemon_set_defaults(obj: Object, context: Context) -> None:
    """Set the defaults of a DaemonSet, including an annotation that is no longer used."""
    obj["metadata"].setdefault("annotations", {}).setdefault(_TEMPLATE_GENERATION, "1")
    spec = obj.setdefault("spec", {})
    strategy = spec.setdefault("updateStrategy", {})
    strategy["type"] = strategy.get("type") or _ROLLING
    if strategy["type"] == _ROLLING:
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    spec.setdefault("revisionHistoryLimit", 10)
    set_spec_defaults(template_spec(spec))


def set_replica_set_defaults(obj: Object, context: Context) -> None:
    """Set the defaults of a ReplicaSet."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    set_spec_defaults(template_spec(spec))


def set_stateful_set_defaults(obj: Object, context: Context) -> None:
    """Set the defaults of a StatefulSet."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec["podManagementPolicy"] = spec.get("podManagementPolicy") or "OrderedReady"
    strategy = spec.setdefault("updateStrategy", {})
    strategy["type"] = strategy.get("type") or _ROLLING
    if strategy["type"] == _ROLLING:
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    spec.setdefault("revisionHistoryLimit", 10)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for event in ("whenDeleted", "whenScaled"):
        retention[event] = retention.get(event) or "Retain"
    set_spec_defaults(template_spec(spec))


def _validate(
    noun: str = "deployment", only: tuple[str, ...] = (), allowed: str = ""
) -> Callable[[Object, Object | None, Context], Problems]:
    """Return the validation of a workload. `only` are the fields of the spec that may change; empty: all fields."""

    def validate(new: Object, old: Object | None, context: Context) -> Problems:
        spec = new["spec"]
        yield from _selector_problems(spec, noun)
        yield from spec_problems(template_spec(spec), "spec.template.spec")
        if pick(spec, "template", "spec", "restartPolicy") != "Always":
            policy = pick(spec, "template", "spec", "restartPolicy")
            yield errors.not_supported("spec.template.spec.restartPolicy", policy, ["Always"])
        if spec.get("replicas", 0) < 0:
            yield errors.invalid("spec.replicas", spec["replicas"], "must be greater than or equal to 0")
        if old is None:
            return
        before = old.get("spec", {})
        if spec.get("selector") != before.get("selector"):
            yield errors.invalid("spec.selector", spec.get("selector"), "field is immutable")
        fixed = [field for field in (*spec, *before) if only and field not in (*only, "selector")]
        if any((spec.get(field) or None) != (before.get(field) or None) for field in fixed):
            yield errors.forbidden("spec", allowed)

    return validate


def _selector_problems(spec: Object, noun: str) -> Problems:
    """Yield an error for a selector that is missing, empty, or does not match the template's labels."""
    selector = spec.get("selector")
    if selector is None:
        yield errors.required("spec.selector")
    elif not any(selector.values()):
        yield errors.invalid("spec.selector", {}, f"empty selector is invalid for {noun}")
        return
    labels = pick(spec, "template", "metadata", "labels") or {}
    if not selector or not decode_label_selector(Fields(selector, strict=False)).matches(labels):
        text = "`selector` does not match template `labels`"
        yield errors.invalid("spec.template.metadata.labels", labels, text)


def _ready(obj: Object) -> Any:
    return f"{pick(obj, 'status', 'readyReplicas') or 0}/{pick(obj, 'spec', 'replicas') or 0}"


_STATEFUL_FIELDS: Final = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)
_STATEFUL_TEXT: Final = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)


def _strategy(default: Callable[[Object, Context], None], *, status: Object | None = None, **rules: Any) -> Strategy:
    return Strategy(
        default=default,
        validate=_validate(**rules),
        generation=("spec",),
        first_status=status or {},
        status_keeps_metadata=True,
    )


DEPLOYMENT: Final = _strategy(set_deployment_defaults)
DAEMON_SET: Final = _strategy(set_daemon_set_defaults, status=dict.fromkeys(_DAEMON_COUNTS, 0), noun="daemonset")
REPLICA_SET: Final = _strategy(set_replica_set_defaults, status={"replicas": 0})
STATEFUL_SET: Final = _strategy(
    set_stateful_set_defaults,
    status={"replicas": 0, "availableReplicas": 0},
    noun="statefulset",
    only=_STATEFUL_FIELDS,
    allowed=_STATEFUL_TEXT,
)

DEPLOYMENT_COLUMNS: Final[tuple[Column, ...]] = (
    NAME,
    columns.made("Ready", _ready),
    columns.made("Up-to-date", lambda obj: pick(obj, "status", "updatedReplicas") or 0),
    columns.made("Available", lambda obj: pick(obj, "status", "availableReplicas") or 0),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
)
DAEMON_SET_COLUMNS: Final[tuple[Column, ...]] = (
    NAME,
    columns.number("Desired", "status", "desiredNumberScheduled"),
    columns.number("Current", "status", "currentNumberScheduled"),
    columns.number("Ready", "status", "numberReady"),
    columns.number("Up-to-date", "status", "updatedNumberScheduled"),
    columns.number("Available", "status", "numberAvailable"),
    columns.made("Node Selector", lambda obj: columns.labels(pick(obj, "spec", "template", "spec", "nodeSelector"))),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
)
REPLICA_SET_COLUMNS: Final[tuple[Column, ...]] = (
    NAME,
    columns.number("Desired", "spec", "replicas"),
    columns.number("Current", "status", "replicas"),
    columns.number("Ready", "status", "readyReplicas"),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
)
STATEFUL_SET_COLUMNS: Final[tuple[Column, ...]] = (NAME, columns.made("Ready", _ready), AGE, CONTAINERS, IMAGES)


CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"
JOB_NAME: Final = "batch.kubernetes.io/job-name"
_JOB_POLICIES: Final = ("OnFailure", "Never")
_JOB_FIXED: Final = ("completions", "selector", "template", "completionMode")


def set_job_defaults(obj: Object, context: Context) -> None:
    """Set the defaults of a Job."""
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
    if template.get("restartPolicy") == "Always":
        yield errors.required(field, 'valid values: "OnFailure", "Never"')
    elif template.get("restartPolicy") not in _JOB_POLICIES:
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


def _condition(job: Object, kind: str) -> bool:
    conditions = pick(job, "status", "conditions") or ()
    return any(item.get("type") == kind and item.get("status") == "True" for item in conditions)


def _status(job: Object) -> str:
    for kind in ("Complete", "Failed"):
        if _condition(job, kind):
            return kind
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return "Suspended" if _condition(job, "Suspended") else "Running"


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
