# SPDX-License-Identifier: Apache-2.0
"""From the configurations of a claim's devices to the steps that set up sharing. Pure.

Devices with the same entry of the configuration are a group. Time-slicing is a setting of each GPU. MPS has one daemon
for the whole GPUs of a group, and one for each MIG device. Protocol 3 of MPS, which newer drivers support, is used
where it is sufficient: for whole GPUs with the same limits.

A share that MPS enforces has a step of its own, whose limits are what the scheduler counted for the share. A
configuration can only lower them. All shares of a device have one daemon.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dra_driver.config import Chosen, MpsConfig, Sharing, Strategy, VfioDeviceConfig
from dra_driver.errors import UnenforceableError
from dra_driver.gpu.devices.enforcement import enforcement, memory_share, percentage_share
from dra_driver.gpu.inventory import Gpu
from dra_driver.gpu.nvml import ComputeMode
from dra_driver.gpu.policy import Enforcement, NodePolicy
from dra_driver.kube.resource import AllocatedDevice, Quantity

from ..errors import PrepareError
from ..kinds.gpu_settings import LEVELS
from ..kinds.targets import ContainerTarget, WholeGpu
from ..steps import ComputeModeStep, MpsLimits, MpsStep, Step, TimeSliceStep, share_key

_MULTI_USER_SINCE = 7, 0
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class MpsSupport:
    """What the node supports: protocol 3 of its NVIDIA driver, and the daemon's /dev/shm for clients."""

    protocol_3: bool
    shared_memory: bool


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """The limits of a share that MPS enforces: MiB of memory, and the percentage of the multiprocessors, if any."""

    share_id: str
    memory: int
    percentage: int | None = None


@dataclass(frozen=True, slots=True)
class Configured:
    """A device with its configuration. `gpu` is the GPU that the device is, or is a part of."""

    name: str
    target: ContainerTarget
    gpu: Gpu
    chosen: Chosen
    share: ShareLimits | None = None

    @property
    def sharing(self) -> Sharing | None:
        """The sharing in the configuration, or MPS for a share that MPS enforces. Devices for virtual machines have
        none.
        """
        config = self.chosen.config
        sharing = None if isinstance(config, VfioDeviceConfig) else config.sharing
        if self.share is None:
            return sharing
        if sharing is not None and sharing.strategy is not Strategy.MPS:
            raise PrepareError(
                f"{self.chosen.place}.sharing.strategy: {sharing.strategy} is not possible for device {self.name},"
                " because the node's policy enforces its shares with MPS; remove sharing, or use MPS"
            )
        return sharing or Sharing(Strategy.MPS, mps=MpsConfig())


def enforced(
    result: AllocatedDevice, gpu: Gpu, is_mig: bool, policy: NodePolicy
) -> tuple[Enforcement, ShareLimits | None]:
    """What enforces the share of an allocated device, and its limits, if any. Raises PrepareError."""
    if result.share_id is None:
        return Enforcement.NONE, None
    try:
        by = enforcement(gpu, is_mig, policy)
    except UnenforceableError as error:
        raise PrepareError(f"the share of device {result.device} cannot be enforced: {error}") from None
    if by is Enforcement.NONE:
        return by, None
    memory, shares = memory_share(result), policy.for_gpu(gpu).shares
    if not memory:
        raise PrepareError(
            f"the share of device {result.device} has no memory that could be enforced: the policy was changed after"
            " the claim was allocated; delete the pod to have it scheduled again"
        )
    percentage = percentage_share(result, shares) if isinstance(shares, int) else None
    return by, ShareLimits(result.share_id, memory, percentage)


def setting_steps(configured: Iterable[Configured]) -> tuple[Step, ...]:
    """The settings of whole GPUs: the time-slice interval, and the compute mode, which admits several processes, or
    only the servers of MPS. Raises PrepareError.
    """
    steps: list[Step] = []
    for one in configured:
        if one.sharing is None or not isinstance(one.target, WholeGpu):
            continue
        if one.sharing.strategy is Strategy.MPS:
            steps.append(ComputeModeStep(one.gpu.uuid, ComputeMode.EXCLUSIVE_PROCESS))
        else:
            steps.append(ComputeModeStep(one.gpu.uuid, ComputeMode.DEFAULT))
            steps.append(TimeSliceStep(one.gpu.uuid, LEVELS[one.sharing.interval]))
    return tuple(steps)


def mps_steps(configured: Sequence[Configured], claim_uid: str, support: MpsSupport) -> tuple[MpsStep, ...]:
    """A step for each daemon that the claim needs. Raises PrepareError."""
    steps: list[MpsStep] = []
    groups: dict[str, list[Configured]] = {}
    for one in configured:
        if one.share is not None:
            config, key = _config(one), share_key(claim_uid, len(steps))
            _check(one.chosen.place, [one], config)
            steps.append(_step([one], [one], _lowered(one.share, _limits(config)), key, support))
        elif one.sharing is not None and one.sharing.strategy is Strategy.MPS:
            groups.setdefault(one.chosen.place, []).append(one)
    for place, group in groups.items():
        config = _config(group[0])
        _check(place, group, config)
        whole = [one for one in group if isinstance(one.target, WholeGpu)]
        for served in [whole] if whole else [[one] for one in _each_once(group)]:
            steps.append(_step(served, group, _limits(config), share_key(claim_uid, len(steps)), support))
    return tuple(steps)


def _step(
    served: Sequence[Configured], group: Sequence[Configured], limits: MpsLimits, key: str, support: MpsSupport
) -> MpsStep:
    """The step for a daemon, or for a share that MPS enforces. Claims of several users have shares, so the daemon of a
    share serves all users.
    """
    devices = {one.name: one.target for one in served}
    uniform = all(isinstance(one, WholeGpu) for one in devices.values()) and not limits.per_device
    share = served[0].share
    return MpsStep(
        devices=tuple(devices),
        targets=tuple(devices.values()),
        group=tuple(one.target for one in _each_once(group)),
        share=key,
        protocol=3 if support.protocol_3 and uniform else 2,
        limits=limits,
        multi_user=share is not None or _config(group[0]).multi_user,
        shared_memory=support.shared_memory,
        share_id="" if share is None else share.share_id,
    )


def _limits(config: MpsConfig) -> MpsLimits:
    memory = None if config.pinned_memory_limit is None else _mebibytes(config.pinned_memory_limit)
    per_device = {key: _mebibytes(limit) for key, limit in config.per_device_memory_limits.items()}
    return MpsLimits(config.active_thread_percentage, memory, per_device)


def _lowered(share: ShareLimits, configured: MpsLimits) -> MpsLimits:
    """The limits of a share, where the configured ones are not lower."""
    percentages = [given for given in (configured.percentage, share.percentage) if given is not None]
    memory = share.memory if configured.memory is None else min(share.memory, configured.memory)
    per_device = {key: min(share.memory, limit) for key, limit in configured.per_device.items()}
    return MpsLimits(min(percentages, default=None), memory, per_device)


def _check(place: str, group: Sequence[Configured], config: MpsConfig) -> None:
    """Raises PrepareError if the devices cannot be served in this way, as far as that is known before MIG devices are
    created.
    """
    path = f"{place}.sharing.mpsConfig"
    for one in group:
        capability = one.gpu.compute_capability
        if config.multi_user and (capability is None or capability < _MULTI_USER_SINCE):
            known = "unknown" if capability is None else ".".join(map(str, capability))
            raise PrepareError(
                f"{path}.multiUser: the compute capability of GPU {one.gpu.uuid} is {known}, and MPS serves several"
                " users from 7.0 on"
            )
    devices = _each_once(group)
    uuids = {one.target.uuid for one in devices if isinstance(one.target, WholeGpu)}
    for key in config.per_device_memory_limits:
        is_known = int(key) < len(devices) if key.isdigit() else key in uuids or not uuids
        if not is_known:
            raise PrepareError(
                f"{path}.defaultPerDevicePinnedMemoryLimit[{key}]: it is for no device that this configuration"
                f" applies to ({', '.join(sorted(uuids) or [one.name for one in devices])})"
            )


def _each_once(group: Iterable[Configured]) -> list[Configured]:
    """The devices without further shares of the same device."""
    return list({one.name: one for one in group}.values())


def _config(one: Configured) -> MpsConfig:
    sharing = one.sharing
    return MpsConfig() if sharing is None or sharing.mps is None else sharing.mps


def _mebibytes(limit: Quantity) -> int:
    return limit.value // _MEBIBYTE
