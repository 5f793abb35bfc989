# SPDX-License-Identifier: Apache-2.0
"""What enforces the shares of a device: MPS, or the memory limits of the NVIDIA driver.

The controller publishes a device with shares only if they can be enforced as the policy says. The kubelet plugin
decides in the same way when a claim is prepared. MPS has limits from compute capability 7.0 on (Volta). Memory limits
need driver 615 or newer and a whole GPU: NVML refuses them for MIG devices.
"""

from ...errors import UnenforceableError
from ...kube.resource import AllocatedDevice
from ..inventory import Gpu
from ..policy import Enforcement, NodePolicy

_MPS_LIMITS_SINCE = 7, 0
_MEBIBYTE = 1 << 20


def enforcement(gpu: Gpu, is_mig: bool, policy: NodePolicy) -> Enforcement:
    """What enforces the shares of the GPU, or of its MIG devices: never AUTO. Raises UnenforceableError."""
    wanted = policy.for_gpu(gpu).enforce
    if wanted is Enforcement.NONE:
        return wanted
    candidates = (Enforcement.MEMORY_LIMITS, Enforcement.MPS) if wanted is Enforcement.AUTO else (wanted,)
    problems = []
    for candidate in candidates:
        problem = (
            _mps_problem(gpu, policy) if candidate is Enforcement.MPS else _memory_limits_problem(gpu, is_mig, policy)
        )
        if problem is None:
            return candidate
        problems.append(f"{candidate}: {problem}")
    raise UnenforceableError("; ".join(problems))


def memory_share(result: AllocatedDevice) -> int | None:
    """The memory of a share, in MiB: what the scheduler counted. None if it counted none."""
    consumed = result.consumed_capacity.get("memory")
    return None if consumed is None else consumed.value // _MEBIBYTE


def percentage_share(result: AllocatedDevice, most: int) -> int | None:
    """The percentage of the multiprocessors of a share, rounded up, if the device has `most` shares."""
    consumed = result.consumed_capacity.get("shares")
    return None if consumed is None else min(100, -(-100 * consumed.value // most))


def _mps_problem(gpu: Gpu, policy: NodePolicy) -> str | None:
    if not policy.mps:
        return "dra-mps is not enabled (the chart's value mps.enabled)"
    capability = gpu.compute_capability
    if capability is None or capability < _MPS_LIMITS_SINCE:
        known = "unknown" if capability is None else ".".join(map(str, capability))
        return f"MPS has limits from compute capability 7.0 on, and that of the GPU is {known}"
    return None


def _memory_limits_problem(gpu: Gpu, is_mig: bool, policy: NodePolicy) -> str | None:
    if is_mig:
        return "the NVIDIA driver does not limit the memory of MIG devices"
    if not gpu.memory_limits:
        return "the NVIDIA driver has no memory limits for this GPU (they need driver 615 or newer)"
    if not policy.memory_limits:
        return "this node cannot set the limits (see dra-kubeletplugin check)"
    return None
