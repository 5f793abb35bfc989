# SPDX-License-Identifier: Apache-2.0
"""Why claims do not fit on a node, explained from the search itself.

For each request, the explanation has the number of devices, and how many of them each check excluded. A device counts
for the first check that excluded it. Checks that depend on the other devices that are picked (counters, constraints)
count a device if they excluded it in any attempt.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..domains.names import DOMAIN_ATTRIBUTE
from ..domains.template import is_domain_selector
from ..gpu.health.meanings import Gravity, meaning
from ..gpu.policy import HealthPolicy
from ..kube.resource import DeviceTaint, ResourceClaim
from ..process.words import listed
from ..scheduler.allocator import Check, Cluster, DeviceRefusal, Features, NodeOutcome, Recorder, Slot, allocate
from ..scheduler.allocator.capacity import CapacityRefusal
from ..scheduler.allocator.pools import PoolKey
from ..scheduler.allocator.selectors import UnmetSelector, compile_cel
from .selectors import Blame

MOST_EXPLAINED = 50
"""The number of kinds of nodes that are explained. Clusters rarely have more than a handful."""

SEARCH_STEPS = 20_000
"""The observed search ends after this number of steps. It has met the obstacles by then."""

HEALTH = "health: "
"""The beginning of a health taint in a list of devices."""

_SEEN_VALUES = 5
_NAMED_HOLDERS = 2


@dataclass(frozen=True, slots=True)
class Removal:
    """A check that excluded `devices` devices from a request, and the values that it found, the most frequent first."""

    check: Check
    text: str
    devices: int
    saw: tuple[tuple[str, int], ...] = ()
    by_class: bool = False


@dataclass(frozen=True, slots=True)
class RequestReport:
    """A request (or alternative) on one node. It wants `wanted` devices, and `left` of `considered` devices qualify."""

    claim: str
    request: str
    wanted: int
    considered: int
    left: int
    removals: tuple[Removal, ...]

    @property
    def text(self) -> str:
        """For example `gpu wants 3, 1 of 8 devices qualifies`."""
        qualify = "qualifies" if self.left == 1 else "qualify"
        return f"{self.request} wants {self.wanted}, {self.left} of {self.considered} devices {qualify}"

    @property
    def missing(self) -> int:
        """The number of devices that are wanted and not left."""
        return max(0, self.wanted - self.left)

    @property
    def of_the_class(self) -> int:
        """The number of devices that the DeviceClass selects."""
        return self.considered - sum(removal.devices for removal in self.removals if removal.by_class)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a node cannot have the claims. `error` is set if an error ended the search. `pools` offer no devices."""

    error: str
    fatal: bool
    requests: tuple[RequestReport, ...] = ()
    pools: tuple[str, ...] = ()

    @property
    def distance(self) -> tuple[int, int]:
        """How far the node is from fitting: the number of missing devices, then how few are of the right class."""
        missing = sum(request.missing for request in self.requests)
        return (missing if self.requests else 1 << 30, -sum(request.of_the_class for request in self.requests))


class Explainer:
    """Explains nodes of one cluster."""

    def __init__(self, cluster: Cluster, features: Features) -> None:
        self._cluster = cluster
        self._features = features
        self._blame = Blame(compile_cel, features)

    def explain(self, claims: Sequence[ResourceClaim], outcome: NodeOutcome) -> Explanation:
        """Why `outcome.node` cannot have `claims`. `outcome` is the refusal."""
        if outcome.kind == "error" and outcome.fatal:
            return Explanation(outcome.message, True)
        seen = Recorder()
        allocate(self._cluster, claims, outcome.node, self._features, observer=seen, limit=SEARCH_STEPS)
        by_slot: dict[Slot, list[DeviceRefusal]] = defaultdict(list)
        for refusal in seen.refusals:
            by_slot[refusal.slot].append(refusal)
        reports = [
            self._report(claims[slot.claim], slot, count, candidates, by_slot[slot], seen)
            for slot, count, candidates in seen.wanted
        ]
        pools = tuple(f"pool {pool.driver}/{pool.name} is {pool.state.value}: {pool.reason}" for pool in seen.skipped)
        return Explanation(outcome.message, outcome.fatal, tuple(reports), pools)

    def _report(
        self,
        claim: ResourceClaim,
        slot: Slot,
        wanted: int,
        candidates: Sequence[int],
        refusals: Iterable[DeviceRefusal],
        seen: Recorder,
    ) -> RequestReport:
        picked = {device for picked_slot, device in seen.picked if picked_slot == slot}
        found: dict[tuple[Check, str], dict[int, str]] = defaultdict(dict)  # the value of each device
        by_class: set[tuple[Check, str]] = set()
        for refusal in refusals:
            if refusal.check is Check.PICKED:
                continue
            text, saw = self._words(claim, slot, refusal, seen)
            key = (refusal.check, text)
            if isinstance(refusal.detail, UnmetSelector) and refusal.detail.of_class:
                by_class.add(key)
            found[key].setdefault(refusal.device, saw)
        excluded = {device for values in found.values() for device in values}
        left = [device for device in candidates if device not in excluded or device in picked]
        order = list(Check)
        removals = [
            Removal(
                check,
                text,
                len(values),
                tuple(Counter(filter(None, values.values())).most_common(_SEEN_VALUES)),
                (check, text) in by_class,
            )
            for (check, text), values in sorted(found.items(), key=lambda item: order.index(item[0][0]))
        ]
        considered = len({*candidates, *excluded})
        return RequestReport(str(claim.metadata), slot.request, wanted, considered, len(left), tuple(removals))

    def _words(self, claim: ResourceClaim, slot: Slot, refusal: DeviceRefusal, seen: Recorder) -> tuple[str, str]:
        """The check that excluded the device, and the value that it found."""
        assert seen.view is not None
        pool, device = seen.view.device(refusal.device)
        match refusal.check, refusal.detail:
            case Check.SELECTOR, UnmetSelector() as unmet if is_domain_selector(unmet.expression):
                other = device.attributes.get(DOMAIN_ATTRIBUTE)
                return "in another ComputeDomain, and a node is in one at a time", f"domain={other}"
            case Check.SELECTOR, UnmetSelector() as unmet:
                part = self._blame.false_part(unmet.expression, pool.driver, device)
                what = "DeviceClass" if unmet.of_class else "selector"
                return f"not matched by its {what}: {part.text}", ", ".join(
                    f"{name}={value}" for name, value in part.saw.items()
                )
            case Check.IN_USE, tuple() as holders:
                return "in use", ", ".join(_claim_names(holders))
            case Check.TAINT, DeviceTaint() as taint:
                return f"with taint {taint_text(taint)}, which is not tolerated", ""
            case Check.COUNTERS, tuple() as keys:
                sets = sorted({key[0] for key in keys if isinstance(key, tuple)})
                return "without enough left of the shared counters", "; ".join(
                    f"{name} {self._takers(pool.key, name)}" for name in sets
                )
            case Check.CAPACITY, CapacityRefusal() as lacking:
                return f"capacity {lacking.capacity}", lacking.reason
            case Check.CONSTRAINT, int() as index:
                return f"would break {constraint_text(claim, index)}", ""
            case Check.NODE, _:
                return "for other nodes", ""
            case check, _:
                return f"with a feature whose gate is off ({check.value})", ""

    def _takers(self, pool: PoolKey, counter_set: str) -> str:
        """The claims that consume counters of a counter set, except the explained claims."""
        names = list(dict.fromkeys(str(claim.metadata) for claim in self._holders.get((*pool, counter_set), ())))
        if not names:
            return "by other requests of the claims"
        return f"by {listed(names, _NAMED_HOLDERS)}"

    @cached_property
    def _holders(self) -> dict[tuple[str, str, str], list[ResourceClaim]]:
        """The claims that draw on each counter set: by driver, pool and set."""
        sets = {
            (slice_.driver, slice_.pool.name, device.name): [taken.counter_set for taken in device.consumes_counters]
            for slice_ in self._cluster.slices
            for device in slice_.devices
            if device.consumes_counters
        }
        holders: dict[tuple[str, str, str], list[ResourceClaim]] = defaultdict(list)
        for claim in self._cluster.claims:
            for result in claim.allocation.results if claim.allocation is not None else ():
                for name in sets.get((result.driver, result.pool, result.device), ()):
                    holders[result.driver, result.pool, name].append(claim)
        return holders


def constraint_text(claim: ResourceClaim, index: int) -> str:
    """A constraint for people: `matchAttribute gpu.nvidia.com/parentUUID`."""
    constraint = claim.spec.constraints[index]
    name = "matchAttribute" if constraint.match_attribute else "distinctAttribute"
    return f"{name} {constraint.match_attribute or constraint.distinct_attribute}"


def taint_text(taint: DeviceTaint) -> str:
    """A taint as kubectl writes it: `key=value:NoSchedule`."""
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _claim_names(holders: Iterable[object]) -> list[str]:
    return [f"by {holder.metadata}" for holder in holders if isinstance(holder, ResourceClaim)]


def health_of(taint: DeviceTaint) -> Gravity | None:
    """How severe the finding of a health taint of this driver is. None for other taints."""
    found = meaning(taint.key, taint.value, HealthPolicy())
    return found.gravity if found is not None else None


def listed_taint(taint: DeviceTaint) -> str:
    """A taint in a list of devices: a health taint is named as one."""
    return f"{HEALTH}{taint_text(taint)}" if health_of(taint) is not None else taint_text(taint)
