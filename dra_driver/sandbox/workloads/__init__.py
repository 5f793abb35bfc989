# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the workload controllers of kube-controller-manager.

`owned` has the base class. The `step` of a controller compares all objects of its kind with their pods and does what is
missing. `ControlLoop` calls it after every change. The API server's garbage collector deletes the objects of a deleted
owner. Not implemented: CronJobs, adoption of pods, ControllerRevisions (so `kubectl rollout undo` works only for
Deployments), volume claims of StatefulSets, and time limits (`activeDeadlineSeconds`, `ttlSecondsAfterFinished`,
`minReadySeconds`, `progressDeadlineSeconds`).
"""

from .daemonsets import DaemonSets
from .deployments import Deployments, ReplicaSets
from .jobs import Jobs
from .statefulsets import StatefulSets

__all__ = ["DaemonSets", "Deployments", "Jobs", "ReplicaSets", "StatefulSets"]
