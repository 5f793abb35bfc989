# SPDX-License-Identifier: Apache-2.0
"""Whether a pod can be scheduled: kube-scheduler's filters as pure functions from a snapshot and a pod.

`load` makes a `Snapshot` of a cluster's objects (`decode`, `storage`, `policies`, `objects`). `admission` does the part
of the API server, and `quota` decides whether the pod is admitted. `fit` runs the filters in the scheduler's order:
`node_filters` (with NodeResourcesFit), `volumes`, `topology`, and `devices`, which calls
`dra_driver.scheduler.allocator`. `preemption` finds the pods that the scheduler would remove. `outcome` has the answers
and the text of the scheduler's event. `evictions` finds the pods that have to leave tainted devices.

Follows kube-scheduler and kube-apiserver 1.36 with default plugins and feature gates, texts included;
tests/golden/scheduling/README.md states the rules.
"""

from .admission import Admitted, Policies, admit_pod
from .decode import PodDecoder
from .devices import Given
from .evictions import Cause, Eviction, evictions, taints_of_rules
from .fit import Attempt
from .form import POD_FIELDS, UNKNOWN_FIELD, form_errors, has_form, pod_spec_errors
from .load import READ, Reader
from .node_filters import Shortage
from .objects import ClusterNode, Pod
from .outcome import Refusal
from .preemption import Victims
from .quota import Quotas
from .snapshot import Site, Snapshot

__all__ = [
    "POD_FIELDS",
    "READ",
    "UNKNOWN_FIELD",
    "Admitted",
    "Attempt",
    "Cause",
    "ClusterNode",
    "Eviction",
    "Given",
    "Pod",
    "PodDecoder",
    "Policies",
    "Quotas",
    "Reader",
    "Refusal",
    "Shortage",
    "Site",
    "Snapshot",
    "Victims",
    "admit_pod",
    "evictions",
    "form_errors",
    "has_form",
    "pod_spec_errors",
    "taints_of_rules",
]
