# SPDX-License-Identifier: Apache-2.0
"""Device allocation as kube-scheduler does it: a pure function from a cluster and claims to an answer per node.

In the order in which an allocation passes through the modules: `survey` collects what one node sees of the cluster
(`pools`, `nodes`), `candidates` finds the devices that may serve each request (`selectors`, `capacity`), `search` picks
devices (`counters`, `shares`, `constraints`), and `allocate` writes the allocation as the scheduler does. `equivalence`
finds nodes with the same search problem, so that the problem is solved once. `observer` records which check removed
which device. A `Cluster` keeps the indexes that it computed. After claims are allocated or released, `Cluster.after`
computes only those of their pools again. `parts` splits a cluster whose nodes share no pool. Before all that,
`taintrules` adds the taints of DeviceTaintRules to the slices.

Follows Kubernetes 1.36.2 (k8s.io/dynamic-resource-allocation/structured and the DynamicResources
plugin), its defects included; tests/golden/allocation/README.md states the rules.
"""

from .allocate import allocate, allocate_all, equivalent_nodes
from .cluster import Cluster
from .features import ISSUES, RELEASES, Defects, Features
from .observer import Check, DeviceRefusal, Recorder, Slot
from .option import Growing
from .outcome import ErrorKind, Group, NodeOutcome, Outcomes
from .parts import parts, separate
from .selectors import Predicate
from .taintrules import with_taint_rules

__all__ = [
    "ISSUES",
    "RELEASES",
    "Check",
    "Cluster",
    "Defects",
    "DeviceRefusal",
    "ErrorKind",
    "Features",
    "Group",
    "Growing",
    "NodeOutcome",
    "Outcomes",
    "Predicate",
    "Recorder",
    "Slot",
    "allocate",
    "allocate_all",
    "equivalent_nodes",
    "parts",
    "separate",
    "with_taint_rules",
]
