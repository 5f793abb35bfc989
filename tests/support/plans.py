# SPDX-License-Identifier: Apache-2.0
"""Plans of claims on a node with nothing out of the ordinary."""

from collections.abc import Callable
from typing import Any, Final

from dra_driver.gpu.fabric import NO_SWITCHES
from dra_driver.gpu.policy import NodePolicy
from dra_driver.kube.resource import ResourceClaim
from kubeletplugin.kinds.targets import ClaimRef, Found
from kubeletplugin.kinds.vfio.passthrough import SeenGpu
from kubeletplugin.plans import plan
from kubeletplugin.plans.plan import Plan
from kubeletplugin.plans.sharing import MpsSupport

NO_POLICY: Final = NodePolicy()
USUAL: Final[dict[str, Any]] = {
    "mps": MpsSupport(protocol_3=False, shared_memory=True),
    "seen": lambda _: SeenGpu(),
    "variables": {},
    "switches": NO_SWITCHES,
    "group": lambda gpu: (gpu,),
    "gpu_with": lambda _: None,
}


def make_plan(
    ref: ClaimRef,
    claim: ResourceClaim,
    pool: str,
    find: Callable[[str], Found | None],
    policy: NodePolicy = NO_POLICY,
    **unusual: Any,
) -> Plan:
    """As the function of this name, for a node that is as usual except for what is said."""
    return plan.make_plan(ref, claim, pool, find, policy, **{**USUAL, **unusual})
