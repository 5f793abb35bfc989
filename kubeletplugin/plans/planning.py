# SPDX-License-Identifier: Apache-2.0
"""From the name of a claim to its plan: what the API server says of it, and what its device names stand for here."""

from collections.abc import Callable

from dra_driver import DRIVER_NAME
from dra_driver.cluster import ApiError
from dra_driver.gpu.devices import MigPlacement
from dra_driver.gpu.inventory import Gpu, PciGpu
from dra_driver.resource import ResourceClaim

from ..hardware.gpus import Gpus
from ..hardware.targets import ClaimGoneError, ClaimRef, Found, PrepareError
from .plan import Plan, make_plan

FetchClaim = Callable[[ClaimRef], ResourceClaim]
"""Reads a claim from the API server; may raise ApiError, PrepareError, or ClaimGoneError when there is none."""


def never(_: Gpu) -> bool:
    """No GPU's MIG mode is switched for claims."""
    return False


class Planner:
    """Plans claims for the node's `pool`. `may_switch` tells the GPUs whose MIG mode may be switched for claims."""

    def __init__(self, pool: str, fetch: FetchClaim, may_switch: Callable[[Gpu], bool] = never) -> None:
        self._pool = pool
        self._fetch = fetch
        self._wanted_switchable = may_switch

    def plan(self, ref: ClaimRef, gpus: Gpus) -> Plan:
        """What the claim needs. Raises ApiError, PrepareError or NvmlError."""
        claim = self._fetch(ref)
        results = claim.allocation.results if claim.allocation is not None else ()
        names = [one.device for one in results if one.driver == DRIVER_NAME and one.pool == self._pool]
        if any(self._usable(gpus, name) is None for name in names):
            gpus.refresh()  # the hardware may have changed
            missing = [name for name in names if self._usable(gpus, name) is None]
            if missing and gpus.inventory.failures:
                reasons = "; ".join(f"GPU {one.index}: {one.reason}" for one in gpus.inventory.failures)
                raise PrepareError(
                    f"there is no device {missing[0]} on node {self._pool} at the moment, where these GPUs cannot be"
                    f" read: {reasons}"
                )
        return make_plan(ref, claim, self._pool, lambda name: self._usable(gpus, name), self._may_switch)

    def is_gone(self, ref: ClaimRef) -> bool | None:
        """Whether the API server has no such claim; None when it does not tell."""
        try:
            return self._fetch(ref).metadata.uid != ref.uid
        except ClaimGoneError:
            return True
        except ApiError:
            return None
        except PrepareError:  # it is there, though not as it should be
            return False

    def _may_switch(self, gpu: Gpu) -> bool:
        return gpu.mig_switchable and self._wanted_switchable(gpu)

    def _usable(self, gpus: Gpus, device: str) -> Found | None:
        """What the name stands for, unless its GPU is in the wrong mode for it and has to stay there."""
        found = gpus.find(device)
        match found:
            case Gpu():
                return found if not found.in_mig_mode or self._may_switch(found) else None
            case MigPlacement(gpu):
                return found if gpu.in_mig_mode or self._may_switch(gpu) else None
            case PciGpu() | None:
                return found
