# SPDX-License-Identifier: Apache-2.0
"""Device allocation as kube-scheduler does it: a pure function from a cluster and claims to an answer per node.

From pools to an answer: `survey` says what a node sees (`pools`, `nodes`, `usage`), `options` which
devices may serve each request (`selectors`, `taints`, `capacity`), `search` which of them do
(`counters`, `shares`, `constraints`), `results` what the scheduler writes. `likeness` finds the nodes that need
no search of their own, `observer` is told which check removed which device.

Follows Kubernetes 1.36.2 (k8s.io/dynamic-resource-allocation/structured and the DynamicResources
plugin), its defects included; tests/golden/allocation/README.md states the rules.
"""

from .allocate import allocate, allocate_all, new_share_id
from .cluster import Cluster
from .features import ISSUES, RELEASES, Features, Quirks, Variant
from .growing import Growing
from .observer import Check, Observer, Recorder, Refusal, Slot
from .outcome import ErrorKind, NodeOutcome
from .outcomes import Group, Outcomes
from .selectors import Compile, Predicate

__all__ = [
    "ISSUES",
    "RELEASES",
    "Check",
    "Cluster",
    "Compile",
    "ErrorKind",
    "Features",
    "Group",
    "Growing",
    "NodeOutcome",
    "Observer",
    "Outcomes",
    "Predicate",
    "Quirks",
    "Recorder",
    "Refusal",
    "Slot",
    "Variant",
    "allocate",
    "allocate_all",
    "new_share_id",
]
