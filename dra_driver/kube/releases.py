# SPDX-License-Identifier: Apache-2.0
"""The supported Kubernetes releases: their feature gates that concern devices, their rules, and their API versions.

A release is a minor one such as `1.36`, which stands for its first patch releases, or a patch release such as `1.36.4`.

A gate has a stage and a default in each release: A alpha, B beta, G general availability; + on, - off; L cannot be
changed. A release without an entry does not know the gate. The entries of 1.32 to 1.36 are those of
k8s.io/kubernetes pkg/features of these releases; those of 1.37 and of 1.38, which is not released yet (1.38.0-alpha.2),
are those of pkg/scheduler/features in the cycle of 1.38, and of the release notes for the gates of the API server.

Another release is another column in the table of gates, and the rules that it changes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_TABLE: Final = """
                                             1.32  1.33  1.34  1.35  1.36  1.37  1.38
DRAAdminAccess                               A-    A-    B+    B+    G+L   G+L   G+L
DRAConsumableCapacity                        .     .     A-    A-    B+    B+    B+
DRADerivedAttributes                         .     .     .     .     .     A-    A-
DRADeviceBindingConditions                   .     .     A-    A-    B+    B+    B+
DRADeviceCompatibilityGroups                 .     .     .     .     .     A-    A-
DRADeviceTaintRules                          .     .     .     A-    B-    G+    G+L
DRADeviceTaints                              .     A-    A-    A-    B+    G+    G+L
DRAExtendedResource                          .     .     A-    A-    B+    G+L   G+L
DRAFractionalCapacityRange                   .     .     .     .     .     B+    B+
DRAListTypeAttributes                        .     .     .     .     A-    A-    A-
DRANodeAllocatableResources                  .     .     .     .     A-    A-    A-
DRAOptionalNodeOperations                    .     .     .     .     .     A-    A-
DRAPartitionableDevices                      .     A-    A-    A-    B+    B+    B+
DRAPartitionableDevicesType                  .     .     .     .     .     A-    A-
DRAPrioritizedList                           .     A-    B+    B+    G+    G+L   G+L
DRAResourceClaimDeviceStatus                 A-    B+    B+    B+    B+    G+L   G+L
DRAResourceClaimGranularStatusAuthorization  .     .     .     .     B+    B+    B+
DRAResourcePoolStatus                        .     .     .     .     A-    A-    A-
DRASchedulerFilterTimeout                    .     .     B+    B+    B+    B+    B+
DRAWorkloadResourceClaims                    .     .     .     .     A-    B-    B-
DynamicResourceAllocation                    B-    B-    G+    G+L   G+L   G+L   .
GenericWorkload                              .     .     .     A-    A-    B-    B-
TopologyAwareWorkloadScheduling              .     .     .     .     A-    A-    A-
"""

_RELEASE: Final = re.compile(r"1\.[0-9]{1,3}(\.[0-9]{1,3})?")
_STAGES: Final = {"A": "alpha", "B": "beta", "G": "general availability"}

NEWEST_RELEASED: Final = "1.37"
"""The newest one that is not a preview."""


@dataclass(frozen=True, slots=True)
class GateStage:
    """What a release makes of a feature gate: `stage` is alpha, beta or general availability."""

    stage: str
    is_on: bool
    is_locked: bool


def _read_table() -> dict[str, dict[str, GateStage]]:
    header, *rows = (line.split() for line in _TABLE.strip().splitlines())
    stages: dict[str, dict[str, GateStage]] = {release: {} for release in header}
    for gate, *entries in rows:
        for release, entry in zip(header, entries, strict=True):
            if entry != ".":
                stages[release][gate] = GateStage(_STAGES[entry[0]], entry[1] == "+", entry.endswith("L"))
    return stages


GATES: Final[Mapping[str, Mapping[str, GateStage]]] = _read_table()
"""By release, and then by gate."""
RELEASES: Final = tuple(GATES)
"""Oldest first."""
RELEASED: Final = RELEASES[: RELEASES.index(NEWEST_RELEASED) + 1]
"""Those that are not previews."""


_RULES: Final = """
                                    from   until         issue
capacities_by_literal_name          1.34   1.38          140650
capacity_of_another_device          1.34   1.35          -
cel_go_before_29                    1.32   1.37          -
common_values_stay_narrow           1.33   1.37          140300
config_names_all_requests           1.33   1.37          139731
config_repeats                      1.33   1.37          139732
counter_slices_everywhere           1.33   1.37          -
counters_beside_devices             1.32   1.35          -
counters_by_pool_name               1.33   1.36.4,1.37   140434
decimal_requests_grow               1.33   1.37          -
distinct_forgets                    1.33   1.37          140438
empty_spread_selector_counts_none   1.32   1.38          141339
errors_without_device               1.33   1.37          -
extended_claims_are_not_evicted     1.34   1.38          141290
extended_resources_get_stale        1.34   1.38          141103
lists_need_gate_in_stored           1.36   1.37          139395
lists_not_in_constraints            1.36   1.37          139332
quantities_change_in_sums           1.32   1.37          -
refused_keep_counters               1.33   1.36.4,1.37   140436
refused_shares_stay_in_constraints  1.33   1.36.4,1.37   140436
rule_without_selector_taints_all    1.33   1.38          141648
slices_are_selected_by_pool         1.37   -             -
shares_without_capacity_unnoticed   1.33   1.37          139034
undone_shares_keep_counters         1.33   1.36.4,1.37   140436
unknown_devices_fail_pods           1.33   1.38          141829
whole_beside_shares                 1.33   1.38          140798
"""
"""Rules and defects that differ. `from` is the first release with the rule, `until` are the first ones without it: a
patch release of one minor version, and then a minor version, or none. The rollback of counters (pull request 140663)
and the counters by pool (140504) were merged into release-1.36 in July 2026. 1.36.2 is older and 1.36.4 is newer;
nothing is known about 1.36.3. The issue is one of kubernetes/kubernetes, or the pull request if there is no issue.
"""


_TEXTS: Final[Mapping[str, str]] = {
    "capacities_by_literal_name": "a capacity request does not find the capacity if only one of the two names has the"
    " driver's domain",
    "capacity_of_another_device": "the capacity that is left is looked up for another device of the same slice",
    "cel_go_before_29": "field names in backquotes, wrappers as results, and optionals of quantities do not work;"
    " startsWith() and endsWith() cost the length of the text; lists.range(-1) is an empty list; indexOf('', 99) is 99;"
    " orValue() takes any value",
    "common_values_stay_narrow": "a refused device narrows the values that matchAttribute finds common to lists",
    "config_names_all_requests": "a configuration in the result names its requests, even if these are all of the claim",
    "config_repeats": "a configuration appears in the result once for each of its requests",
    "counter_slices_everywhere": "an unfinished pool with counters on one node stands in the way of all nodes",
    "counters_beside_devices": "counter sets are in the slice of the devices that consume them",
    "counters_by_pool_name": "counters of two drivers' pools of the same name are mixed up",
    "decimal_requests_grow": "a requested capacity such as `1Pi` grows by the shares that were picked of the device",
    "distinct_forgets": "distinctAttribute compares a device only with the last one of each request",
    "empty_spread_selector_counts_none": "a topology spread constraint with an empty selector counts no pods",
    "errors_without_device": "errors of expressions do not name the device, and give no advice",
    "extended_claims_are_not_evicted": "a taint with NoExecute does not evict pods that got the device for an extended"
    " resource",
    "extended_resources_get_stale": "after changes of DeviceClasses with the same extended resource, the scheduler may"
    " use an old one. The dry run takes the newest class, and a note says so",
    "lists_need_gate_in_stored": "stored expressions fail on devices that have lists, unless the gate is on",
    "lists_not_in_constraints": "constraints do not compare lists, even if the gate is on",
    "quantities_change_in_sums": "add() and sub() change the quantity of the device",
    "refused_keep_counters": "a refused device keeps the counters that it reserved",
    "refused_shares_stay_in_constraints": "a refused share still counts for the constraints",
    "rule_without_selector_taints_all": "a DeviceTaintRule without `deviceSelector` selects every device",
    "shares_without_capacity_unnoticed": "a share in use that consumed no capacity is not noticed",
    "slices_are_selected_by_pool": "the API server has the field selector `spec.pool.name` for ResourceSlices",
    "undone_shares_keep_counters": "a share that is undone keeps the counters of its device",
    "unknown_devices_fail_pods": "a request for all devices of an incomplete pool fails the pod, not only the node",
    "whole_beside_shares": "a device that is not shared any more is allocated as a whole beside a share in use",
}
"""What the releases with a rule do, by the rule."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule or a defect of some releases. `text` says what these releases do. `issue` is where it was reported, empty
    if that is not known.
    """

    first: str
    until: tuple[str, ...]
    issue: str
    text: str

    def applies_to(self, release: str) -> bool:
        """Whether a release has it."""
        numbers = _numbers(release)
        if numbers < _numbers(self.first):
            return False
        return not any(_has_change(numbers, _numbers(end)) for end in self.until)


def _numbers(release: str) -> tuple[int, int, int]:
    major, minor, patch = ([int(number) for number in release.split(".")] + [0])[:3]
    return major, minor, patch


def _has_change(release: tuple[int, int, int], changed: tuple[int, int, int]) -> bool:
    """Whether a release has a change. A change of a patch release is only in later patch releases."""
    return release >= changed and (changed[2] == 0 or release[:2] == changed[:2])


def _read_rules() -> dict[str, Rule]:
    _, *rows = (line.split() for line in _RULES.strip().splitlines())
    return {
        name: Rule(
            first,
            () if until == "-" else tuple(until.split(",")),
            "" if issue == "-" else f"kubernetes/kubernetes#{issue}",
            _TEXTS[name],
        )
        for name, first, until, issue in rows
    }


RULES: Final[Mapping[str, Rule]] = _read_rules()
"""By name."""


def has_rule(release: str, rule: str) -> bool:
    """Whether a release has a rule of the table."""
    return RULES[rule].applies_to(release)


@dataclass(frozen=True, slots=True)
class ApiVersion:
    """A version of resource.k8s.io, by minor versions of Kubernetes.

    `first` knows it, `on` serves it by default, `deprecated` warns about it, and `gone` is the first one without it.
    None if there is no such release.
    """

    first: int
    on: int | None = None
    deprecated: int | None = None
    gone: int | None = None


API_VERSIONS: Final[Mapping[str, ApiVersion]] = {
    "v1": ApiVersion(34, on=34),
    "v1beta2": ApiVersion(33, deprecated=36, gone=39),
    "v1beta1": ApiVersion(32, deprecated=35, gone=38),
}
"""The newest first. v1alpha3 is left out: what it has depends on the kind."""

_GROUP_VERSIONS: Final = {
    "v1beta1": ApiVersion(37),
    "v1alpha2": ApiVersion(36, gone=37),
    "v1alpha1": ApiVersion(35, gone=36),
}
VERSIONS_OF_KINDS: Final[Mapping[tuple[str, str], Mapping[str, ApiVersion]]] = {
    **{
        ("resource.k8s.io", kind): {**API_VERSIONS, "v1alpha3": ApiVersion(31, gone=34)}
        for kind in ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")
    },
    ("resource.k8s.io", "DeviceTaintRule"): {
        "v1": ApiVersion(37, on=37),
        "v1beta2": ApiVersion(36),
        "v1alpha3": ApiVersion(33),
    },
    ("scheduling.k8s.io", "Workload"): _GROUP_VERSIONS,
    ("scheduling.k8s.io", "PodGroup"): _GROUP_VERSIONS,
}
"""The versions of each kind that concerns devices, by group and kind, the newest first.

Workload and PodGroup are served with the gate GenericWorkload: v1alpha1 in 1.35, v1alpha2 in 1.36, v1beta1 since 1.37
(release notes). The end of the older versions of DeviceTaintRule is not known.
"""


def minor_release(release: str) -> str:
    """`1.36` for `1.36.4`."""
    return ".".join(release.split(".")[:2])


def first_with_rules_of(release: str) -> str:
    """The first release with the rules of this one: `1.36` for `1.36.2`, but `1.36.4` for `1.36.7`."""
    numbers = _numbers(release)
    patches = [
        ended[2]
        for rule in RULES.values()
        for ended in map(_numbers, rule.until)
        if ended[:2] == numbers[:2] and ended <= numbers
    ]
    patch = max(patches, default=0)
    return f"{minor_release(release)}.{patch}" if patch else minor_release(release)


def is_supported(release: str) -> bool:
    """Whether the rules of a release are known."""
    return bool(_RELEASE.fullmatch(release)) and minor_release(release) in RELEASES


def default_gates(release: str) -> dict[str, bool]:
    """The gates that a release knows, with their defaults."""
    return {gate: stage.is_on for gate, stage in GATES[minor_release(release)].items()}


def known_since(gate: str) -> int:
    """The minor version of the first release that knows a gate."""
    return next(minor_of(release) for release in RELEASES if gate in GATES[release])


def on_since(gate: str) -> int | None:
    """The minor version of the first release in which a gate is on. None if there is none."""
    return next((minor_of(release) for release in RELEASES if default_gates(release).get(gate)), None)


def minor_of(release: str) -> int:
    """The minor version of a release."""
    return int(release.split(".")[1])


OLDEST_MINOR: Final = minor_of(RELEASED[0])
NEWEST_MINOR: Final = minor_of(NEWEST_RELEASED)
"""The minor versions of the oldest supported release, and of the newest one that is not a preview."""


def is_since(release: str, first: str) -> bool:
    """Whether a supported release is `first` or a later one."""
    return minor_of(release) >= minor_of(first)
