# SPDX-License-Identifier: Apache-2.0
"""From the configurations of a claim's devices to the steps that serve them with MPS. Pure.

Devices with the same entry of the configuration are a group. MPS has one daemon for the whole GPUs of a group, and one
for each MIG device. Protocol 3 of MPS, which newer drivers support, is used where it is sufficient: for whole GPUs with
the same limits.

A share that MPS enforces has a step of its own, whose limits are what the scheduler counted for the share. A
configuration can only lower them. All shares of a device have one daemon.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.config import MpsConfig, Strategy
from dra_driver.gpu.nvml import ComputeMode
from dra_driver.gpu.policy import Enforcement
from dra_driver.kube.resource import Quantity

from ...claims.model import Step
from ...errors import PrepareError
from ...kinds.container import Allotted, ShareLimits
from ...kinds.settings.steps import ComputeModeStep
from .step import MpsLimits, MpsStep, share_key

_MULTI_USER_SINCE: Final = 7, 0
_MEBIBYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MpsSupport:
    """What the node supports: protocol 3 of its NVIDIA driver, and the daemon's /dev/shm for clients."""

    protocol_3: bool
    shared_memory: bool


def mps_steps(allotted: Iterable[Allotted], claim_uid: str, support: MpsSupport) -> tuple[Step, ...]:
    """A step for each daemon that the claim needs, and the compute modes that admit only the servers of MPS. Raises
    PrepareError.
    """
    served = [device for device in allotted if _is_served(device)]
    steps: list[MpsStep] = []
    groups: dict[str, list[Allotted]] = {}
    for device in served:
        limits = _enforced(device)
        if limits is None:
            groups.setdefault(device.chosen.place, []).append(device)
            continue
        config, key = _config(device), share_key(claim_uid, len(steps))
        _check(device.chosen.place, [device], config)
        steps.append(_step([device], [device], _lowered(limits, _limits(config)), key, support))
    for place, group in groups.items():
        config = _config(group[0])
        _check(place, group, config)
        whole = [device for device in group if device.is_whole_gpu]
        for together in [whole] if whole else [[device] for device in _each_once(group)]:
            steps.append(_step(together, group, _limits(config), share_key(claim_uid, len(steps)), support))
    modes = [
        ComputeModeStep(device.gpu.uuid, ComputeMode.EXCLUSIVE_PROCESS) for device in served if device.is_whole_gpu
    ]
    return (*modes, *steps)


def _is_served(device: Allotted) -> bool:
    """Whether MPS serves the device: because its configuration says so, or to enforce its share."""
    if _enforced(device) is None:
        return device.sharing is not None and device.sharing.strategy is Strategy.MPS
    if device.sharing is not None and device.sharing.strategy is not Strategy.MPS:
        raise PrepareError(
            f"{device.chosen.place}.sharing.strategy: {device.sharing.strategy} is not possible for device"
            f" {device.device.name}, because the node's policy enforces its shares with MPS; remove sharing, or use MPS"
        )
    return True


def _enforced(device: Allotted) -> ShareLimits | None:
    return device.limits if device.limits is not None and device.limits.by is Enforcement.MPS else None


def _step(
    served: Sequence[Allotted], group: Sequence[Allotted], limits: MpsLimits, key: str, support: MpsSupport
) -> MpsStep:
    """The step for a daemon, or for a share that MPS enforces. Claims of several users have shares, so the daemon of a
    share serves all users.
    """
    uniform = all(device.is_whole_gpu for device in served) and not limits.per_device
    share = _enforced(served[0])
    return MpsStep(
        devices=tuple(dict.fromkeys(device.device.name for device in served)),
        group=tuple((device.device.name, device.kind) for device in _each_once(group)),
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


def _check(place: str, group: Sequence[Allotted], config: MpsConfig) -> None:
    """Raises PrepareError if the devices cannot be served in this way, as far as that is known before MIG devices are
    created.
    """
    path = f"{place}.sharing.mpsConfig"
    for device in group:
        capability = device.gpu.compute_capability
        if config.multi_user and (capability is None or capability < _MULTI_USER_SINCE):
            known = "unknown" if capability is None else ".".join(map(str, capability))
            raise PrepareError(
                f"{path}.multiUser: the compute capability of GPU {device.gpu.uuid} is {known}, and MPS serves several"
                " users from 7.0 on"
            )
    devices = _each_once(group)
    uuids = {device.gpu.uuid for device in devices if device.is_whole_gpu}
    for key in config.per_device_memory_limits:
        is_known = int(key) < len(devices) if key.isdigit() else key in uuids or not uuids
        if not is_known:
            raise PrepareError(
                f"{path}.defaultPerDevicePinnedMemoryLimit[{key}]: it is for no device that this configuration"
                f" applies to ({', '.join(sorted(uuids) or [device.device.name for device in devices])})"
            )


def _each_once(group: Iterable[Allotted]) -> list[Allotted]:
    """The devices without further shares of the same device."""
    return list({device.device.name: device for device in group}.values())


def _config(device: Allotted) -> MpsConfig:
    return MpsConfig() if device.sharing is None or device.sharing.mps is None else device.sharing.mps


def _mebibytes(limit: Quantity) -> int:
    return limit.value // _MEBIBYTE
