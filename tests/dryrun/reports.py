# SPDX-License-Identifier: Apache-2.0
"""Reports to print, made of real verdicts on built-in nodes."""

from typing import Any

from dra_driver.dryrun.evaluate import evaluate
from dra_driver.dryrun.nodetypes import built_in_nodes
from dra_driver.dryrun.report import Report
from dra_driver.dryrun.workload import Demand
from dra_driver.kube.resource import ResourceClaim, ResourceSlice
from dra_driver.kube.resource.codec import V1, decode_claim
from dra_driver.scheduler.allocator import Features
from tests.dryrun.clusters import with_defaults

NODES = ("h100x8", "h100x8-mig")
PROFILE = "device.attributes['gpu.nvidia.com'].profile"


def claim(name: str, expression: str, count: int = 1, device_class: str = "mig.nvidia.com") -> ResourceClaim:
    selectors = [{"cel": {"expression": expression}}]
    exactly = {"deviceClassName": device_class, "count": count, "selectors": selectors}
    value: dict[str, Any] = {"metadata": {"name": name, "namespace": "ns"}}
    value["spec"] = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    return decode_claim(value, V1)


def report(*claims: ResourceClaim, where: str = "two built-in nodes") -> Report:
    """What becomes of each claim, one after the other, on a node with MIG and one without."""
    slices = [one for one in built_in_nodes() if isinstance(one, ResourceSlice) and one.node_name in NODES]
    objects = with_defaults(slices)
    demands = [Demand(f"ResourceClaim {one.metadata}", (one,)) for one in claims]
    return Report.of(evaluate(demands, objects, Features()), objects, where, Features())


def every_kind() -> Report:
    """A whole GPU, MIG devices, a claim for which there is no room, and one that nothing can evaluate."""
    return report(
        claim("whole", "true", device_class="gpu.nvidia.com"),
        claim("halves", f"{PROFILE} == '3g.40gb'", 3),
        claim("crowded", f"{PROFILE} == '7g.80gb'", 7),
        claim("broken", "device.attributes['gpu.nvidia.com'].nothing == 1"),
    )
