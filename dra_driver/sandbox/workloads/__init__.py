# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the controllers of kube-controller-manager that make pods: one file for each kind of workload.

`owned` has what they share. Each controller's `step` compares all objects of its kind with their pods and does what is
missing; `ControlLoop` calls it again after every change. Objects of a deleted owner are removed by the API server's
garbage collector. Not here: CronJobs, adoption of pods that a selector finds, ControllerRevisions (so `kubectl rollout
undo` works for Deployments only), volume claims of StatefulSets, and limits of time (`activeDeadlineSeconds`,
`ttlSecondsAfterFinished`, `minReadySeconds`, `progressDeadlineSeconds`).
"""

from .daemonsets import DaemonSets
from .deployments import Deployments, ReplicaSets
from .jobs import Jobs
from .statefulsets import StatefulSets

__all__ = ["DaemonSets", "Deployments", "Jobs", "ReplicaSets", "StatefulSets"]
