# SPDX-License-Identifier: Apache-2.0
"""Groups of pods that kube-scheduler places as a whole: Workload, PodGroup and `spec.schedulingGroup` of pods.

`objects` decodes the kinds. `verdict` is the scheduler's own answer: it places the pods one after the other on a
`board` and never goes back. `shapes` finds pods and nodes that are interchangeable.
"""

from .board import Preference
from .objects import GroupClaim, Member, PodGroup, Policy, Workload, decode_pod_group, decode_policy, decode_workload
from .verdict import Gang, GroupVerdict, PodResult, Status, schedule

__all__ = [
    "Gang",
    "GroupClaim",
    "GroupVerdict",
    "Member",
    "PodGroup",
    "PodResult",
    "Policy",
    "Preference",
    "Status",
    "Workload",
    "decode_pod_group",
    "decode_policy",
    "decode_workload",
    "schedule",
]
