# SPDX-License-Identifier: Apache-2.0
"""Whether a pod can be scheduled: kube-scheduler's filters as pure functions from a snapshot and a pod.

From objects to an answer: `reading` makes a `Snapshot` of them (`decode`, `storage`, `policies`, `objects`),
`admission` does the API server's part (`limits`, `validation`), `quota` says whether the pod is admitted. `fit` runs
the filters in the scheduler's order: `node_filters`, `noderesources`, `volumes`, `volume_binding`, `spread`,
`pod_affinity` and `devices`, which asks `dra_driver.allocation`. `preemption` says whom the scheduler would remove,
`event` in which words it reports.

Follows kube-scheduler and kube-apiserver 1.36 with default plugins and feature gates, texts included;
tests/golden/scheduling/README.md states the rules.
"""

from .admission import Admitted, Policies, admit_pod
from .decode import PodDecoder
from .devices import Given
from .fit import AfterFilters, Attempt
from .noderesources import Shortage
from .objects import ClusterNode, Pod
from .outcome import Code, Refusal
from .policies import Quota
from .preemption import Preemption, Victims
from .quota import Decision, Quotas
from .reading import READ, Reader
from .snapshot import Site, Snapshot

__all__ = [
    "READ",
    "Admitted",
    "AfterFilters",
    "Attempt",
    "ClusterNode",
    "Code",
    "Decision",
    "Given",
    "Pod",
    "PodDecoder",
    "Policies",
    "Preemption",
    "Quota",
    "Quotas",
    "Reader",
    "Refusal",
    "Shortage",
    "Site",
    "Snapshot",
    "Victims",
    "admit_pod",
]
