# SPDX-License-Identifier: Apache-2.0
"""The health taints: keys, values, effects, and when each of them ends.

`gpu.nvidia.com/xid`, `gpu-lost` and `unmonitored` are those of NVIDIA's driver; the others are ours. MEANINGS
has all of them except XIDs, which are in `xids`. `documented` gives both for docs/devices.md.
"""

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ... import DRIVER_NAME
from ...resource import TaintEffect
from ..policy import HealthPolicy
from .xids import APPLICATION_XIDS, Advice, describe_xid

XID: Final = f"{DRIVER_NAME}/xid"
GPU_LOST: Final = f"{DRIVER_NAME}/gpu-lost"
UNMONITORED: Final = f"{DRIVER_NAME}/unmonitored"
ECC: Final = f"{DRIVER_NAME}/ecc"
ROW_REMAP: Final = f"{DRIVER_NAME}/row-remap"
PAGE_RETIREMENT: Final = f"{DRIVER_NAME}/page-retirement"
NVLINK: Final = f"{DRIVER_NAME}/nvlink"
FABRIC: Final = f"{DRIVER_NAME}/fabric"
RECOVERY_ACTION: Final = f"{DRIVER_NAME}/recovery-action"

HUNG: Final = "hung"
"""The value of GPU_LOST for a GPU with a call that has not returned."""

LINKS = "<up>-of-<expected>"
"""Stands in MEANINGS for the values of NVLINK."""
_LINKS = re.compile(r"(\d{1,3})-of-(\d{1,3})")


class Gravity(enum.Enum):
    """How severe a finding is."""

    NOTE = "information; the GPU can be used"
    DEGRADED = "running workloads may continue, new ones should not start"
    FATAL = "the GPU cannot be trusted"


class Lasts(enum.Enum):
    """When a finding ends without an administrator."""

    STATE = "when NVML no longer reports it"
    QUIET = "after the quiet time"
    RESET = "after a GPU reset or a reload of the NVIDIA driver"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a taint's key and value mean. `proves_reset`: only a reset of the GPU ends the finding."""

    gravity: Gravity
    lasts: Lasts
    text: str
    proves_reset: bool = False

    def effect(self, policy: HealthPolicy) -> TaintEffect:
        """The taint's effect: the policy's effect if the finding is fatal, else NoSchedule at most."""
        if self.gravity is Gravity.NOTE or policy.effect is TaintEffect.NONE:
            return TaintEffect.NONE
        return policy.effect if self.gravity is Gravity.FATAL else TaintEffect.NO_SCHEDULE


MEANINGS: Final[dict[tuple[str, str], Meaning]] = {
    (GPU_LOST, ""): Meaning(
        Gravity.FATAL,
        Lasts.STATE,
        "the GPU does not answer: it fell off the bus or is being reset; if it lasts, power the node off and on",
        proves_reset=True,
    ),
    (GPU_LOST, HUNG): Meaning(
        Gravity.FATAL,
        Lasts.STATE,
        "a call to the NVIDIA driver for this GPU does not return; read the kernel log; if it lasts, reboot the node",
    ),
    (GPU_LOST, "unavailable"): Meaning(
        Gravity.FATAL, Lasts.RESET, "the NVIDIA driver reported the GPU as unavailable; reset it, or reboot the node"
    ),
    (UNMONITORED, ""): Meaning(
        Gravity.NOTE, Lasts.STATE, "errors of this GPU cannot be watched; the log of dra-controller has the reason"
    ),
    (ECC, "double-bit"): Meaning(
        Gravity.FATAL, Lasts.RESET, "memory error that cannot be corrected; reset the GPU, or reboot the node"
    ),
    (ECC, "single-bit-storm"): Meaning(
        Gravity.NOTE, Lasts.QUIET, "many corrected memory errors; replace the GPU if they continue"
    ),
    (ECC, "contained"): Meaning(
        Gravity.DEGRADED, Lasts.QUIET, "memory error, contained to one application; restart the application"
    ),
    (ECC, "uncontained"): Meaning(
        Gravity.FATAL, Lasts.RESET, "memory error that is not contained; reset the GPU, or reboot the node"
    ),
    (ROW_REMAP, "pending"): Meaning(
        Gravity.NOTE,
        Lasts.STATE,
        "a bad row of memory is no longer used and is replaced at the next GPU reset; reset the GPU when convenient",
        proves_reset=True,
    ),
    (ROW_REMAP, "failed"): Meaning(
        Gravity.DEGRADED,
        Lasts.STATE,
        "a bad row of memory cannot be replaced, because no spare row is left; replace the GPU",
    ),
    (PAGE_RETIREMENT, "pending"): Meaning(
        Gravity.DEGRADED,
        Lasts.STATE,
        "a bad page of memory stays in use until a GPU reset retires it; reset the GPU, or reboot the node",
        proves_reset=True,
    ),
    (PAGE_RETIREMENT, "retired"): Meaning(Gravity.NOTE, Lasts.QUIET, "bad memory was retired"),
    (PAGE_RETIREMENT, "failed"): Meaning(
        Gravity.FATAL, Lasts.RESET, "bad memory could not be retired; reset the GPU, and replace it"
    ),
    (NVLINK, LINKS): Meaning(
        Gravity.DEGRADED,
        Lasts.STATE,
        "NVLinks that were up are down; run `nvidia-smi nvlink --status`; reset the GPU and those it is linked to",
    ),
    (FABRIC, "not-registered"): Meaning(
        Gravity.DEGRADED,
        Lasts.STATE,
        "the GPU has not joined the NVLink fabric, so CUDA does not start; check that Fabric Manager runs",
    ),
    (FABRIC, "registration-failed"): Meaning(
        Gravity.DEGRADED, Lasts.STATE, "the GPU could not join the NVLink fabric; read the log of Fabric Manager"
    ),
    (FABRIC, "incorrect-configuration"): Meaning(
        Gravity.DEGRADED,
        Lasts.STATE,
        "the NVLink fabric is configured wrongly for this GPU; read the log of Fabric Manager",
    ),
    (FABRIC, "route-unhealthy"): Meaning(
        Gravity.DEGRADED, Lasts.STATE, "a route of the NVLink fabric is unhealthy; read the log of Fabric Manager"
    ),
    (FABRIC, "route-recovery"): Meaning(Gravity.NOTE, Lasts.STATE, "a route of the NVLink fabric is being recovered"),
    (FABRIC, "access-timeout-recovery"): Meaning(
        Gravity.NOTE, Lasts.STATE, "the NVLink fabric recovers from an access that timed out"
    ),
    (FABRIC, "degraded-bandwidth"): Meaning(Gravity.NOTE, Lasts.STATE, "the NVLink fabric is slower than it should be"),
    **{
        (RECOVERY_ACTION, value): Meaning(gravity, Lasts.STATE, text, proves_reset=True)
        for value, gravity, text in (
            (
                "gpu-reset",
                Gravity.FATAL,
                "the NVIDIA driver requests a reset of the GPU; stop the workloads that use it first",
            ),
            (
                "bus-reset",
                Gravity.FATAL,
                "the NVIDIA driver requests a reset of the GPU's PCIe bus; stop the workloads that use it first",
            ),
            ("node-reboot", Gravity.FATAL, "the NVIDIA driver requests a reboot of the node"),
            ("system-reboot", Gravity.FATAL, "the NVIDIA driver requests a reboot of the whole system"),
            (
                "drain-p2p",
                Gravity.DEGRADED,
                "the NVIDIA driver requests that workloads which use several GPUs are stopped",
            ),
            (
                "drain-and-reset",
                Gravity.DEGRADED,
                "a part of the GPU has failed; let running workloads finish, then reset the GPU",
            ),
            ("recover-imex-domain", Gravity.DEGRADED, "the NVIDIA driver requests recovery of the IMEX domain"),
        )
    },
}
"""By key and value."""


def meaning(key: str, value: str, policy: HealthPolicy) -> Meaning | None:
    """What a taint means; None for a taint that is not this driver's."""
    if key == XID:
        return xid_meaning(int(value), policy) if value.isdecimal() else None
    return MEANINGS.get((key, LINKS if key == NVLINK and expected_links(value) else value))


def xid_meaning(number: int, policy: HealthPolicy) -> Meaning:
    """What an XID means: an error of an application, a temporary error, or an error that only a reset ends."""
    xid = describe_xid(number)
    if number in APPLICATION_XIDS or number in policy.application_xids:
        text = f"XID {number}: {xid.text}; treated as an error of the application: {Advice.RESTART_APP.value}"
        return Meaning(Gravity.NOTE, Lasts.QUIET, text)
    text = f"XID {number}: {xid.text}; {xid.advice.value}"
    if xid.advice.needs_reset:
        return Meaning(Gravity.FATAL, Lasts.RESET, text)
    return Meaning(Gravity.DEGRADED, Lasts.QUIET, text)


def links_value(up: int, expected: int) -> str:
    """The value of NVLINK: `16-of-18`."""
    return f"{up}-of-{expected}"


def expected_links(value: str) -> int:
    """How many links should be up according to a value of NVLINK; 0 if the text is not such a value."""
    match = _LINKS.fullmatch(value)
    return int(match[2]) if match else 0


def documented(policy: HealthPolicy) -> Iterator[tuple[str, str, str, str, str]]:
    """The table for the documentation: key, value, effect under `policy`, when it ends, meaning."""
    xids = {
        "application XIDs": Meaning(Gravity.NOTE, Lasts.QUIET, "an error of an application"),
        "XIDs that need no reset": Meaning(Gravity.DEGRADED, Lasts.QUIET, "a temporary error"),
        "other XIDs": Meaning(Gravity.FATAL, Lasts.RESET, "an error of the GPU"),
    }
    rows = {**{(XID, value): one for value, one in xids.items()}, **MEANINGS}
    for (key, value), one in rows.items():
        yield key, value, one.effect(policy), one.lasts.value, one.text
