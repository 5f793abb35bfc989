# SPDX-License-Identifier: Apache-2.0
"""The parts of a cluster that concern one node each. Where nodes share no pool, each part can be decided alone."""

from collections import defaultdict
from collections.abc import Iterable

from .cluster import Cluster


def separate(cluster: Cluster) -> bool:
    """Whether each pool belongs to one node only."""
    owners: dict[tuple[str, str], str] = {}
    return all(
        slice_.node_name and owners.setdefault((slice_.driver, slice_.pool.name), slice_.node_name) == slice_.node_name
        for slice_ in cluster.slices
    )


def parts(cluster: Cluster, names: Iterable[str]) -> dict[str, Cluster]:
    """The part of the cluster that concerns each node, if all pools are separate."""
    owner = {(slice_.driver, slice_.pool.name): slice_.node_name for slice_ in cluster.slices}
    slices, claims = defaultdict(list), defaultdict(list)
    for slice_ in cluster.slices:
        slices[slice_.node_name].append(slice_)
    for claim in cluster.claims:
        results = claim.allocation.results if claim.allocation is not None else ()
        for node in {owner.get((result.driver, result.pool)) for result in results}:
            claims[node].append(claim)
    return {
        name: Cluster(tuple(slices[name]), cluster.classes, (cluster.node_by_name[name],), tuple(claims[name]))
        for name in names
    }
