# SPDX-License-Identifier: Apache-2.0
"""What the cluster's caretaker counts."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from dra_driver.metrics import PREFIX

from .leftovers import REASONS


class Metrics:
    """The numbers of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, namespace=PREFIX, registry=registry)
        counter = partial(Counter, namespace=PREFIX, registry=registry)
        self.leader = gauge("cluster_leader", "1 in the process that does the work, 0 in one that stands by.")
        self.removed = counter("leftover_slices_removed", "ResourceSlices removed, by why.", ["reason"])
        self.leftovers = gauge(
            "leftover_objects", "Slices and claims of nodes that are gone, those in their grace period included."
        )
        self.strays = gauge(
            "claims_on_missing_nodes",
            "Claims that are still allocated from a node that is gone after the grace period.",
        )
        for reason in REASONS:
            self.removed.labels(reason)
