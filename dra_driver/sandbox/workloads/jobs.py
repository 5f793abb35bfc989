# SPDX-License-Identifier: Apache-2.0
"""Jobs: pods until enough of them have succeeded.

Containers of the sandbox run no programs that could end. Therefore a Job's pods succeed after `SHORT_RUN` seconds,
unless the template has another value.
"""

import time

from ...kube.kinds import JOBS, PODS
from ..kubelet.model import RUN_SECONDS, SHORT_RUN
from ..kubelet.podstatus import timestamp
from ..loop import JSON, is_alive, with_condition
from .owned import Workloads, count_ready

_INDEX = "batch.kubernetes.io/job-completion-index"


class Jobs(Workloads):
    """Runs pods, up to the Job's parallelism, until the Job is complete or has failed too often."""

    kind = JOBS
    name = "Job"

    def sync(self, workload: JSON, pods: list[JSON]) -> None:
        """See `Workloads.sync`."""
        spec, before = workload["spec"], workload.get("status") or {}
        conditions = before.get("conditions") or []
        if any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions):
            return
        alive = [pod for pod in pods if is_alive(pod)]
        succeeded = [pod for pod in pods if _phase(pod) == "Succeeded"]
        failed = sum(1 for pod in pods if _phase(pod) == "Failed")
        status = {
            "active": len(alive),
            "ready": count_ready(alive),
            "succeeded": len(_indexes(succeeded)) if _indexed(spec) else len(succeeded),
            "failed": failed,
            "startTime": before.get("startTime") or timestamp(time.time()),
            "conditions": conditions or None,
        }
        if failed > spec["backoffLimit"]:
            text = "Job has reached the specified backoff limit"
            status["conditions"] = with_condition(conditions, "Failed", True, "BackoffLimitExceeded", text)
        elif _is_complete(spec, status):
            text = "Reached expected number of succeeded pods"
            status["conditions"] = with_condition(conditions, "Complete", True, "CompletionsReached", text)
            status["completionTime"] = timestamp(time.time())
        elif spec.get("suspend"):
            text = "Job suspended"
            status["conditions"] = with_condition(conditions, "Suspended", True, "JobSuspended", text)
        else:
            if conditions:
                status["conditions"] = with_condition(conditions, "Suspended", False, "JobResumed", "Job resumed")
            self._run(workload, alive, succeeded)
            self.write_status(workload, status)
            return
        self.delete(PODS, alive)
        self.write_status(workload, status)

    def _run(self, workload: JSON, alive: list[JSON], succeeded: list[JSON]) -> None:
        """Create the pods that may run now, and delete surplus pods."""
        spec = workload["spec"]
        annotations = {RUN_SECONDS: SHORT_RUN, **(spec["template"]["metadata"].get("annotations") or {})}
        if _indexed(spec):
            waiting = [index for index in range(spec["completions"]) if index not in _indexes([*alive, *succeeded])]
            for index in waiting[: max(0, spec["parallelism"] - len(alive))]:
                numbered = {_INDEX: str(index)}
                name = {"hostname": f"{workload['metadata']['name']}-{index}"}
                self.create_pod(workload, spec=name, labels=numbered, annotations={**annotations, **numbered})
            return
        left = spec["completions"] - len(succeeded) if spec.get("completions") is not None else spec["parallelism"]
        wanted = min(spec["parallelism"], left)
        if spec.get("completions") is None and succeeded:
            wanted = len(alive)  # a pod that succeeded has found no more work, and the other pods may finish
        for _ in range(wanted - len(alive)):
            self.create_pod(workload, annotations=annotations)
        self.delete(PODS, alive[max(0, wanted) :])


def _phase(pod: JSON) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _indexed(spec: JSON) -> bool:
    return bool(spec["completionMode"] == "Indexed")


def _indexes(pods: list[JSON]) -> set[int]:
    """Return the completion indexes of an indexed Job's pods."""
    return {int(pod["metadata"]["annotations"][_INDEX]) for pod in pods}


def _is_complete(spec: JSON, status: JSON) -> bool:
    if spec.get("completions") is None:
        return bool(status["succeeded"] and not status["active"])
    return bool(status["succeeded"] >= spec["completions"])
