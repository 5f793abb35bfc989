# SPDX-License-Identifier: Apache-2.0
"""Plans of claims on a node with nothing out of the ordinary."""

from collections.abc import Callable, Mapping
from typing import Final

from dra_driver.gpu.fabric import NO_SWITCHES, SwitchFacts
from dra_driver.gpu.inventory import Gpu, PciGpu
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.policy import NodePolicy
from dra_driver.kube.resource import ResourceClaim
from dra_driver.names import DRIVER_NAME
from kubeletplugin.claims.model import ClaimRef, Plan
from kubeletplugin.drivers import GpuFacts, plan_claim
from kubeletplugin.features.mps.plan import MpsSupport
from kubeletplugin.kinds.vfio.device import SeenGpu
from kubeletplugin.node.gpus import Found

NO_POLICY: Final = NodePolicy()
USUAL_MPS: Final = MpsSupport(protocol_3=False, shared_memory=True)


def make_plan(
    ref: ClaimRef,
    claim: ResourceClaim,
    pool: str,
    find: Callable[[str], Found | None],
    policy: NodePolicy = NO_POLICY,
    *,
    mps: MpsSupport = USUAL_MPS,
    seen: Callable[[PciGpu], SeenGpu] = lambda _: SeenGpu(),
    group: Callable[[PciGpu], tuple[PciGpu, ...]] = lambda gpu: (gpu,),
    variables: Mapping[str, tuple[str, ...]] | None = None,
    switches: SwitchFacts = NO_SWITCHES,
    gpu_with: Callable[[str], Gpu | None] = lambda _: None,
) -> Plan:
    """The plan of a claim on a node that is as usual except for the arguments. `find` has the hardware of a device
    name, `seen` what NVML reports about a GPU, `group` the GPUs of its IOMMU group, the given one first, and `gpu_with`
    the GPU with a UUID, of MIG devices.
    """
    results = claim.allocation.results if claim.allocation is not None else ()
    found = {one.device: find(one.device) for one in results if one.driver == DRIVER_NAME and one.pool == pool}
    parents = {one.gpu_uuid: gpu_with(one.gpu_uuid) for one in found.values() if isinstance(one, MigDevice)}
    groups = {one.address: group(one) for one in found.values() if isinstance(one, PciGpu)}
    facts = GpuFacts(
        pool=pool,
        found=found,
        gpus={uuid: gpu for uuid, gpu in parents.items() if gpu is not None},
        policy=policy,
        mps=mps,
        seen={one.address: seen(one) for gpus in groups.values() for one in gpus},
        groups=groups,
        variables={} if variables is None else variables,
        switches=switches,
    )
    return plan_claim(ref, claim, facts)
