# SPDX-License-Identifier: Apache-2.0
"""The taints that speak of health: keys, values, effects, and when each goes again.

`gpu.nvidia.com/xid`, `gpu-lost` and `unmonitored` are those of NVIDIA's driver; the others are ours. MEANINGS is
the whole table but for XIDs, which `xids` knows, and is what the documentation prints.
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
"""The value of GPU_LOST for a GPU that a call has not returned from."""

LINKS = "<up>-of-<expected>"
"""Stands in MEANINGS for the values of NVLINK."""
_LINKS = re.compile(r"(\d{1,3})-of-(\d{1,3})")


class Gravity(enum.Enum):
    """How bad it is."""

    NOTE = "worth knowing; the GPU can be used"
    DEGRADED = "what runs may go on, nothing new should come"
    FATAL = "the GPU cannot be trusted"


class Lasts(enum.Enum):
    """When a finding goes by itself."""

    STATE = "when NVML says that it is over"
    QUIET = "after the quiet time"
    RESET = "after a GPU reset or a reload of the driver"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a taint's key and value stand for. `proves_reset`: it cannot end but by a reset of the GPU."""

    gravity: Gravity
    lasts: Lasts
    text: str
    proves_reset: bool = False

    def effect(self, policy: HealthPolicy) -> TaintEffect:
        """The taint's effect: the policy's where it is fatal, where not, none that is stronger."""
        if self.gravity is Gravity.NOTE or policy.effect is TaintEffect.NONE:
            return TaintEffect.NONE
        return policy.effect if self.gravity is Gravity.FATAL else TaintEffect.NO_SCHEDULE


MEANINGS: Final[dict[tuple[str, str], Meaning]] = {
    (GPU_LOST, ""): Meaning(
        Gravity.FATAL,
        Lasts.STATE,
        "the GPU does not answer: it fell off the bus or is being reset; power the node off and on if it stays so",
        proves_reset=True,
    ),
    (GPU_LOST, HUNG): Meaning(
        Gravity.FATAL,
        Lasts.STATE,
        "a call to the driver for this GPU does not return; see the kernel log, and reboot the node if it stays so",
    ),
    (GPU_LOST, "unavailable"): Meaning(
        Gravity.FATAL, Lasts.RESET, "the driver reported the GPU as unavailable; reset it, or reboot the node"
    ),
    (UNMONITORED, ""): Meaning(
        Gravity.NOTE, Lasts.STATE, "errors of this GPU cannot be watched; the log of dra-controller says why"
    ),
    (ECC, "double-bit"): Meaning(
        Gravity.FATAL, Lasts.RESET, "memory cannot be corrected; reset the GPU, or reboot the node"
    ),
    (ECC, "single-bit-storm"): Meaning(
        Gravity.NOTE, Lasts.QUIET, "errors that are corrected come often; replace the GPU if they don't stop"
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
        "a bad row of memory is out of use and waits for a GPU reset to be replaced; reset the GPU at some time",
        proves_reset=True,
    ),
    (ROW_REMAP, "failed"): Meaning(
        Gravity.DEGRADED, Lasts.STATE, "no spare row is left for a bad row of memory; have the GPU replaced"
    ),
    (PAGE_RETIREMENT, "pending"): Meaning(
        Gravity.DEGRADED,
        Lasts.STATE,
        "a bad page of memory stays in use until it is retired by a GPU reset; reset the GPU, or reboot the node",
        proves_reset=True,
    ),
    (PAGE_RETIREMENT, "retired"): Meaning(Gravity.NOTE, Lasts.QUIET, "bad memory was taken out of use"),
    (PAGE_RETIREMENT, "failed"): Meaning(
        Gravity.FATAL, Lasts.RESET, "bad memory could not be taken out of use; reset the GPU and have it replaced"
    ),
    (NVLINK, LINKS): Meaning(
        Gravity.DEGRADED,
        Lasts.STATE,
        "NVLinks that were up are down; look at `nvidia-smi nvlink --status`, reset the GPU and those it is linked to",
    ),
    (FABRIC, "not-registered"): Meaning(
        Gravity.DEGRADED,
        Lasts.STATE,
        "the GPU is not yet part of the NVLink fabric and CUDA does not start; see whether Fabric Manager runs",
    ),
    (FABRIC, "registration-failed"): Meaning(
        Gravity.DEGRADED, Lasts.STATE, "the GPU could not join the NVLink fabric; see the log of Fabric Manager"
    ),
    (FABRIC, "incorrect-configuration"): Meaning(
        Gravity.DEGRADED,
        Lasts.STATE,
        "the NVLink fabric is configured wrongly for this GPU; see the log of Fabric Manager",
    ),
    (FABRIC, "route-unhealthy"): Meaning(
        Gravity.DEGRADED, Lasts.STATE, "a route of the NVLink fabric is unhealthy; see the log of Fabric Manager"
    ),
    (FABRIC, "route-recovery"): Meaning(Gravity.NOTE, Lasts.STATE, "a route of the NVLink fabric is being recovered"),
    (FABRIC, "access-timeout-recovery"): Meaning(
        Gravity.NOTE, Lasts.STATE, "the NVLink fabric recovers from an access that took too long"
    ),
    (FABRIC, "degraded-bandwidth"): Meaning(Gravity.NOTE, Lasts.STATE, "the NVLink fabric is slower than it should be"),
    **{
        (RECOVERY_ACTION, value): Meaning(gravity, Lasts.STATE, text, proves_reset=True)
        for value, gravity, text in (
            ("gpu-reset", Gravity.FATAL, "the driver wants the GPU reset; end what uses it first"),
            ("bus-reset", Gravity.FATAL, "the driver wants the GPU's PCIe bus reset; end what uses it first"),
            ("node-reboot", Gravity.FATAL, "the driver wants the node rebooted"),
            ("system-reboot", Gravity.FATAL, "the driver wants the whole system rebooted"),
            ("drain-p2p", Gravity.DEGRADED, "the driver wants what talks to other GPUs ended"),
            ("drain-and-reset", Gravity.DEGRADED, "the GPU has lost a part; let what runs end, then reset the GPU"),
            ("recover-imex-domain", Gravity.DEGRADED, "the driver wants the IMEX domain recovered"),
        )
    },
}
"""By key and value."""


def meaning(key: str, value: str, policy: HealthPolicy) -> Meaning | None:
    """What a taint stands for; None for one that is not ours."""
    if key == XID:
        return xid_meaning(int(value), policy) if value.isdecimal() else None
    return MEANINGS.get((key, LINKS if key == NVLINK and expected_links(value) else value))


def xid_meaning(number: int, policy: HealthPolicy) -> Meaning:
    """An error of an application, an error that passes, or one that only a reset ends."""
    xid = describe_xid(number)
    if number in APPLICATION_XIDS or number in policy.application_xids:
        text = f"XID {number}: {xid.text}; taken for an error of the application: {Advice.RESTART_APP.value}"
        return Meaning(Gravity.NOTE, Lasts.QUIET, text)
    text = f"XID {number}: {xid.text}; {xid.advice.value}"
    if xid.advice.needs_reset:
        return Meaning(Gravity.FATAL, Lasts.RESET, text)
    return Meaning(Gravity.DEGRADED, Lasts.QUIET, text)


def links_value(up: int, expected: int) -> str:
    """The value of NVLINK: `16-of-18`."""
    return f"{up}-of-{expected}"


def expected_links(value: str) -> int:
    """How many links should be up, by a value of NVLINK; 0 when it is none."""
    match = _LINKS.fullmatch(value)
    return int(match[2]) if match else 0


def documented(policy: HealthPolicy) -> Iterator[tuple[str, str, str, str, str]]:
    """The table for the documentation: key, value, effect under `policy`, when it goes, what it says."""
    xids = {
        "application XIDs": Meaning(Gravity.NOTE, Lasts.QUIET, "an error that the application made"),
        "XIDs that need no reset": Meaning(Gravity.DEGRADED, Lasts.QUIET, "an error that passes"),
        "other XIDs": Meaning(Gravity.FATAL, Lasts.RESET, "an error of the GPU"),
    }
    rows = {**{(XID, value): one for value, one in xids.items()}, **MEANINGS}
    for (key, value), one in rows.items():
        yield key, value, one.effect(policy), one.lasts.value, one.text
