# SPDX-License-Identifier: Apache-2.0
"""What allocated claims hold: devices as a whole, shares of devices, and capacity of those.

Follows the claim tracker of kube-scheduler's DynamicResources plugin. A device is known by driver,
pool and name, whatever slice or generation lists it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ..resource import ResourceClaim

PoolKey = tuple[str, str]
"""(driver, pool name)."""


@dataclass(slots=True)
class PoolUsage:
    """What is held in one pool, by device name. Treated as immutable once built."""

    whole: dict[str, list[ResourceClaim]] = field(default_factory=dict)
    """Devices that nobody else can have, and who holds them."""
    shared: dict[str, list[ResourceClaim]] = field(default_factory=dict)
    """Devices of which shares are held, and who holds them."""
    consumed: dict[str, dict[str, int]] = field(default_factory=dict)
    """Sums of consumed capacity, in billionths, of the devices with shares that recorded any."""

    def is_used(self, device: str) -> bool:
        """Whether anything of the device is held: then its counters are consumed."""
        return device in self.whole or device in self.shared

    def holders(self, device: str) -> tuple[ResourceClaim, ...]:
        """The claims that hold the device or shares of it."""
        return (*self.whole.get(device, ()), *self.shared.get(device, ()))

    @property
    def claims(self) -> Iterable[ResourceClaim]:
        """Every claim that holds something of the pool, once."""
        held = (*self.whole.values(), *self.shared.values())
        return {id(claim): claim for claims in held for claim in claims}.values()


NOTHING = PoolUsage()


def usage_of(claims: Iterable[ResourceClaim], *, shares: bool) -> Mapping[PoolKey, PoolUsage]:
    """What the allocated ones of `claims` hold. Without `shares` (gate off) a share takes the whole device."""
    pools: dict[PoolKey, PoolUsage] = {}
    for claim in claims:
        if claim.allocation is None:
            continue
        for result in claim.allocation.results:
            if result.admin_access:
                continue
            pool = pools.setdefault((result.driver, result.pool), PoolUsage())
            if not shares or result.share_id is None:
                pool.whole.setdefault(result.device, []).append(claim)
                continue
            pool.shared.setdefault(result.device, []).append(claim)
            if result.consumed_capacity:
                sums = pool.consumed.setdefault(result.device, {})
                for name, amount in result.consumed_capacity.items():
                    sums[name] = sums.get(name, 0) + amount.nanos
    return pools


def pools_of(claims: Iterable[ResourceClaim]) -> frozenset[PoolKey]:
    """The pools of which `claims` hold devices."""
    allocations = (claim.allocation for claim in claims if claim.allocation is not None)
    return frozenset((result.driver, result.pool) for allocation in allocations for result in allocation.results)


def usage_after(
    usage: Mapping[PoolKey, PoolUsage],
    allocated: Iterable[ResourceClaim],
    released: Collection[ResourceClaim],
    *,
    shares: bool,
) -> Mapping[PoolKey, PoolUsage]:
    """`usage_of`, after some claims were allocated and others released. Only their pools are counted again."""
    more = list(allocated)
    gone = set(map(id, released))
    touched = pools_of((*more, *released))
    holders = {id(claim): claim for key in touched for claim in usage.get(key, NOTHING).claims}
    kept = [claim for claim in holders.values() if id(claim) not in gone]
    counted = usage_of((*kept, *more), shares=shares)
    return {**usage, **{key: counted.get(key, NOTHING) for key in touched}}
