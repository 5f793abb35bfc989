# SPDX-License-Identifier: Apache-2.0
"""Groups of pods that kube-scheduler places as a whole: Workload, PodGroup and `spec.schedulingGroup` of pods.

`objects` decodes the kinds. `verdict` is the scheduler's own answer: it places the pods one after the other on a
`board` and never goes back. `joint` finds an assignment of all pods at once, or proves that there is none: `shapes`
finds pods and nodes that are interchangeable, `packing` distributes them, `room` tells whether one node holds several
pods, and `assignment` checks the result by the rules for single pods.
"""

from .assignment import GangPlacement, devices_of
from .board import Preference
from .joint import SECONDS, JointAnswer, assign
from .objects import (
    GangMember,
    GroupClaim,
    PodGroup,
    Policy,
    Workload,
    decode_pod_group,
    decode_policy,
    decode_workload,
)
from .verdict import Gang, GangStatus, GroupVerdict, PodResult, schedule

__all__ = [
    "SECONDS",
    "Gang",
    "GangMember",
    "GangPlacement",
    "GangStatus",
    "GroupClaim",
    "GroupVerdict",
    "JointAnswer",
    "PodGroup",
    "PodResult",
    "Policy",
    "Preference",
    "Workload",
    "assign",
    "decode_pod_group",
    "decode_policy",
    "decode_workload",
    "devices_of",
    "schedule",
]
