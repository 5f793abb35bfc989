# SPDX-License-Identifier: Apache-2.0
"""What devices of containers have in common, and what is allotted to a claim of them."""

from abc import abstractmethod
from dataclasses import dataclass

from dra_driver.config import Chosen, Sharing, VfioDeviceConfig
from dra_driver.errors import UnenforceableError
from dra_driver.gpu.devices.enforcement import enforcement, memory_share, percentage_share
from dra_driver.gpu.inventory import Gpu
from dra_driver.gpu.policy import Enforcement, NodePolicy
from dra_driver.kube.resource import AllocatedDevice

from ..claims.model import JSON, Device, Kind
from ..errors import PrepareError
from ..node.node import Node


@dataclass(frozen=True, slots=True)
class ContainerKind(Kind):
    """A device that CUDA knows by a UUID."""

    @property
    @abstractmethod
    def place_name(self) -> str:
        """A text that is equal for equal devices, also if the device is created again."""

    @abstractmethod
    def cuda_uuid(self, node: Node) -> str:
        """The UUID of the device now. Empty if it does not exist. Raises NvmlError."""

    @abstractmethod
    def recorded_uuid(self, found: JSON) -> str:
        """The UUID of the device when the claim was prepared."""


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """The limits of an enforced share: by what, MiB of memory, and the percentage of the multiprocessors, if any."""

    by: Enforcement
    share_id: str
    memory: int
    percentage: int | None = None


@dataclass(frozen=True, slots=True)
class Allotted:
    """A device that containers of a claim get, with its configuration. `gpu` is the GPU that the device is, or is a
    part of. `limits` are those of an enforced share.
    """

    device: Device
    kind: ContainerKind
    gpu: Gpu
    chosen: Chosen
    limits: ShareLimits | None = None

    @property
    def is_whole_gpu(self) -> bool:
        """Whether the device is a whole GPU."""
        return self.kind.part is None

    @property
    def sharing(self) -> Sharing | None:
        """The sharing in the configuration, if any."""
        config = self.chosen.config
        return None if isinstance(config, VfioDeviceConfig) else config.sharing


def share_limits(result: AllocatedDevice, gpu: Gpu, is_mig: bool, policy: NodePolicy) -> ShareLimits | None:
    """The limits of an allocated share, if the policy enforces them. Raises PrepareError."""
    if result.share_id is None:
        return None
    try:
        by = enforcement(gpu, is_mig, policy)
    except UnenforceableError as error:
        raise PrepareError(f"the share of device {result.device} cannot be enforced: {error}") from None
    if by is Enforcement.NONE:
        return None
    memory, shares = memory_share(result), policy.for_gpu(gpu).shares
    if not memory:
        raise PrepareError(
            f"the share of device {result.device} has no memory that could be enforced: the policy was changed after"
            " the claim was allocated; delete the pod to have it scheduled again"
        )
    percentage = percentage_share(result, shares) if isinstance(shares, int) else None
    return ShareLimits(by, result.share_id, memory, percentage)
