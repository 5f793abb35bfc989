# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/reference/kubernetes-releases.md: gates and rules by release, from the tables of `kube.releases`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dra_driver.kube.releases import GATES, RELEASES, RULES

_STAGES = {"alpha": "A", "beta": "B", "general availability": "G"}


class Support(NamedTuple):
    """What the driver and the dry run do with a feature, and what shows it."""

    driver: str
    dry_run: str
    verified_by: str


NOTHING = "nothing to do"
SUPPORT: Mapping[str, Support] = {
    "DRAAdminAccess": Support("prepares claims with admin access", "evaluates it", "vectors of 1.36.2: `admin-access`"),
    "DRAConsumableCapacity": Support(
        "publishes shares; one claim for each device without the gate",
        "evaluates it",
        "vectors of 1.36.2: `consumable-capacity`; of 1.37: `shares-1.37` [port]",
    ),
    "DRADerivedAttributes": Support(
        NOTHING, "evaluates it; uncertain if the gate is not known", "vectors of 1.37: `derived-attributes` [port]"
    ),
    "DRADeviceBindingConditions": Support(
        "publishes conditions, and confirms devices", "evaluates it", "vectors of 1.36.2: `binding-conditions`"
    ),
    "DRADeviceCompatibilityGroups": Support(
        "publishes no groups; accepts those of other drivers",
        "evaluates it; uncertain if the gate is not known",
        "vectors of 1.37: `compatibility-groups` [port]",
    ),
    "DRADeviceTaintRules": Support(
        NOTHING, "appends the taints of rules to those of devices", "vectors of 1.37: `device-taint-rules`"
    ),
    "DRADeviceTaints": Support(
        "publishes health problems as taints; withdraws devices without the gate",
        "evaluates it",
        "vectors of 1.36.2: `taints`",
    ),
    "DRAExtendedResource": Support(
        "DeviceClasses of the chart name a resource", "evaluates it", "vectors of 1.36.2: `dra-extended`"
    ),
    "DRAFractionalCapacityRange": Support(
        "publishes whole numbers", "computes in thousandths", "vectors of 1.37: `fractional-capacity` [port]"
    ),
    "DRAListTypeAttributes": Support(
        "publishes all NUMA nodes; only the nearest without the gate",
        "evaluates it",
        "vectors of 1.37: `list-attributes`, and expressions",
    ),
    "DRANodeAllocatableResources": Support(
        "publishes no mapping; accepts those of other drivers",
        "evaluates the form of 1.37 in whole pods, except limits of the pod as a whole; uncertain if the gate is not"
        " known, and for the form of 1.36",
        "`tests/scheduler/pods/test_node_resources.py`, made from the rules of 1.38.0-alpha",
    ),
    "DRAOptionalNodeOperations": Support(
        "prepares every claim that kubelet asks for",
        "copies the field into results, and refuses nodes that do not declare the feature; uncertain unless the gate"
        " is off",
        "vectors of 1.37: `skip-node-operations` [port]; the refusal is [doc], and its text is not known:"
        " `tests/scheduler/pods/test_node_resources.py`",
    ),
    "DRAPartitionableDevices": Support(
        "publishes placements of MIG devices with counters",
        "evaluates it",
        "vectors of 1.36.2: `counters`, `mig`; of 1.37: `counters-given-back` [port]",
    ),
    "DRAPartitionableDevicesType": Support(
        "publishes the profile as `partitionTypeAttribute` where the server keeps it",
        "ignores the field, which decides nothing",
        "`tests/gpu/test_layout.py`, `tests/kube/api/test_features.py`",
    ),
    "DRAPrioritizedList": Support(
        "prepares the chosen alternative", "evaluates it", "vectors of 1.36.2: `first-available`"
    ),
    "DRAResourceClaimDeviceStatus": Support(
        "writes the state of devices into claims", "needs it for binding conditions", "`tests/kubeletplugin/reports`"
    ),
    "DRAResourcePoolStatus": Support(NOTHING, NOTHING, "the kind ResourcePoolStatusRequest is not used"),
    "DRASchedulerFilterTimeout": Support(
        NOTHING, "has no time limit: a scheduler that runs out of time is not reproduced", "not verified"
    ),
    "DRAWorkloadResourceClaims": Support(
        "prepares claims that are reserved for a PodGroup, and writes Events about the group",
        "a claim that equals one of the pod's PodGroup is one for all its pods; so does the sandbox. `fit`"
        " places each pod by itself: the exit status is 3",
        "`tests/dryrun/test_pod_groups.py`, `tests/sandbox/test_podgroups.py`; the rules are [doc]",
    ),
    "DynamicResourceAllocation": Support("needs it", "takes it as enabled", "`tests/kubeletplugin/check`"),
    "GenericWorkload": Support(
        NOTHING,
        "`dra-dryrun gangs` evaluates groups of pods; `fit` places each pod by itself, and says so",
        "`tests/scheduler/gangs`, `tests/dryrun/gangs`; the rules are read in the source",
    ),
    "TopologyAwareWorkloadScheduling": Support(
        NOTHING,
        "`dra-dryrun gangs` keeps a group with a topology constraint in one domain, the first one by name that fits",
        "`tests/scheduler/gangs`; the rules are read in the source",
    ),
    "DRAResourceClaimGranularStatusAuthorization": Support(
        "the chart's roles have the rights", NOTHING, "`tests/charts/test_rights.py`"
    ),
}
"""By feature gate."""


def gates() -> Iterator[Sequence[str]]:
    """Gate, and its stage in each release."""
    yield "feature gate", *RELEASES
    for gate in sorted({name for stages in GATES.values() for name in stages}):
        yield f"`{gate}`", *(_stage(release, gate) for release in RELEASES)


def _stage(release: str, gate: str) -> str:
    stage = GATES[release].get(gate)
    if stage is None:
        return ""
    return f"{_STAGES[stage.stage]} {'on' if stage.is_on else 'off'}{', locked' if stage.is_locked else ''}"


def support() -> Iterator[Sequence[str]]:
    """Gate, what the driver does, what the dry run does, what shows it."""
    yield "feature gate", "driver", "dry run", "verified by"
    for gate in sorted({name for stages in GATES.values() for name in stages}):
        yield f"`{gate}`", *SUPPORT[gate]


def rules() -> Iterator[Sequence[str]]:
    """Rule, the first release with it, the first ones without it, issue."""
    yield "rule or defect", "from", "until before", "issue"
    for rule in RULES.values():
        yield rule.text, rule.first, " and ".join(rule.until), _link(rule.issue)


def _link(issue: str) -> str:
    repository, _, number = issue.partition("#")
    return f"[#{number}](https://github.com/{repository}/issues/{number})" if issue else ""
