# SPDX-License-Identifier: Apache-2.0
"""The supported Kubernetes releases, and their feature gates that concern devices.

A gate has a stage and a default in each release: A alpha, B beta, G general availability; + on, - off; L cannot be
changed. A release without an entry does not know the gate. The entries of 1.32 to 1.36 are those of
k8s.io/kubernetes pkg/features of these releases; those of 1.37 and of 1.38, which is not released yet (1.38.0-alpha.2),
are those of pkg/scheduler/features in the cycle of 1.38, and of the release notes for the gates of the API server.

Another release is another column.
"""

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
"""

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


def default_gates(release: str) -> dict[str, bool]:
    """The gates that a release knows, with their defaults."""
    return {gate: stage.is_on for gate, stage in GATES[release].items()}


def known_since(gate: str) -> int:
    """The minor version of the first release that knows a gate."""
    return next(minor_of(release) for release in RELEASES if gate in GATES[release])


def on_since(gate: str) -> int | None:
    """The minor version of the first release in which a gate is on. None if there is none."""
    return next((minor_of(release) for release in RELEASES if default_gates(release).get(gate)), None)


def minor_of(release: str) -> int:
    """The minor version of a release."""
    return int(release.partition(".")[2])


def is_since(release: str, first: str) -> bool:
    """Whether a supported release is `first` or a later one."""
    return RELEASES.index(release) >= RELEASES.index(first)
