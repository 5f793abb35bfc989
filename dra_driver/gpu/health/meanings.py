# SPDX-License-Identifier: Apache-2.0
"""The health taints: keys, values, effects, and when each of them ends; and the meanings of XIDs.

`gpu.nvidia.com/xid`, `gpu-lost` and `unmonitored` are those of NVIDIA's driver; the others are ours. MEANINGS has all
of them except XIDs, which are in CATALOG.

Numbers and advice of XIDs are those of NVIDIA's "Xid Errors" document, chapter "Analyzing Xid Errors with the Xid
Catalog" (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), where the advice is called the
resolution bucket for immediate action. Numbers that the document calls unused are left out. XID 94, unlike 95, affects
only one application, and with MIG only one instance, which the NVML event names.
"""

import enum
import re
from dataclasses import dataclass
from typing import Final

from ...kube.resource import TaintEffect
from ...names import DRIVER_NAME
from ..policy import HealthPolicy

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
"""The value of GPU_LOST while a call for the GPU hangs."""

LINKS = "<up>-of-<expected>"
"""The key of MEANINGS that represents all values of NVLINK."""
_LINKS = re.compile(r"(\d{1,3})-of-(\d{1,3})")

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that the official driver treats as errors of the application. The catalog recommends a GPU reset after 109.
Drivers that know that a reset is needed also request it as the recovery action.
"""

RECOVERY_ACTION_CHANGED: Final = 154
"""An XID that only tells that the recovery action has changed, which can be queried."""


class Gravity(enum.Enum):
    """How severe a finding is."""

    NOTE = "information; the GPU can be used"
    DEGRADED = "running workloads may continue, new ones should not start"
    FATAL = "the GPU cannot be trusted"


class Lasts(enum.Enum):
    """When a finding ends without an administrator."""

    STATE = "when it is no longer reported"
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
    (FABRIC, "activation-failed"): Meaning(
        Gravity.DEGRADED,
        Lasts.QUIET,
        "Fabric Manager could not activate an NVSwitch partition with the GPU; read its log, and reset its GPUs",
    ),
    (FABRIC, "nvlink-failed"): Meaning(
        Gravity.DEGRADED,
        Lasts.STATE,
        "Fabric Manager reports failed NVLinks of the GPU; read its log; reset the GPU, or replace it",
    ),
    (FABRIC, "partition-unsupported"): Meaning(
        Gravity.NOTE,
        Lasts.STATE,
        "because of a failure, some NVSwitch partitions with the GPU are impossible; read the log of Fabric Manager",
    ),
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
"""The meanings by key and value."""


def meaning(key: str, value: str, policy: HealthPolicy) -> Meaning | None:
    """The meaning of a taint, or None for a taint that this driver does not set."""
    if key == XID:
        return xid_meaning(int(value), policy) if value.isdecimal() else None
    return MEANINGS.get((key, LINKS if key == NVLINK and expected_links(value) else value))


def xid_meaning(number: int, policy: HealthPolicy) -> Meaning:
    """The meaning of an XID: an error of an application, a temporary error, or an error that only a reset ends."""
    what, advice = CATALOG.get(number, _UNKNOWN_XID)
    if number in APPLICATION_XIDS or number in policy.application_xids:
        text = f"XID {number}: {what}; treated as an error of the application: {Advice.RESTART_APP.value}"
        return Meaning(Gravity.NOTE, Lasts.QUIET, text)
    text = f"XID {number}: {what}; {advice.value}"
    if advice.needs_reset:
        return Meaning(Gravity.FATAL, Lasts.RESET, text)
    return Meaning(Gravity.DEGRADED, Lasts.QUIET, text)


def links_value(up: int, expected: int) -> str:
    """The value of NVLINK: `16-of-18`."""
    return f"{up}-of-{expected}"


def expected_links(value: str) -> int:
    """How many links should be up according to a value of NVLINK; 0 if the text is not such a value."""
    match = _LINKS.fullmatch(value)
    return int(match[2]) if match else 0


class Advice(enum.Enum):
    """NVIDIA's advice for an XID, as a text for users."""

    IGNORE = "nothing has to be done; ask for support if it comes again and again"
    RESTART_APP = "restart the application; the GPU itself can be used"
    RESET_GPU = "end what uses the GPU and reset it, or reboot the node"
    RESET_LINKED_GPUS = "reset the GPU and those it is linked to, or reboot the node; replace what fails again"
    RESTART_VM = "restart the virtual machine, or the node"
    POWER_CYCLE = "power the node off and on; replace the GPU if it comes again"
    CHECK_MECHANICALS = "check how the GPU is seated and powered"
    UPDATE = "update the driver and the software on it"
    SUPPORT = "ask NVIDIA or the hardware's vendor for support"

    @property
    def needs_reset(self) -> bool:
        """Whether the GPU stays damaged until the advice is followed."""
        return self not in (Advice.IGNORE, Advice.RESTART_APP)


_UNKNOWN_XID: Final = "not in the catalog of this driver", Advice.RESET_GPU

CATALOG: Final[dict[int, tuple[str, Advice]]] = {
    number: (text, advice)
    for numbers, text, advice in (
        ([8, 43], "the GPU stopped processing for an application", Advice.RESTART_APP),
        ([11, 25, 32], "commands sent to the GPU were invalid or damaged", Advice.RESTART_APP),
        ([13], "exception in the graphics engine, mostly an access out of bounds", Advice.RESTART_APP),
        ([14], "an injected error", Advice.IGNORE),
        ([31], "page fault in GPU memory, mostly an illegal access", Advice.RESTART_APP),
        ([37, 38], "error in the driver's firmware", Advice.IGNORE),
        ([39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)], "error in a copy engine", Advice.RESTART_APP),
        ([44], "fault of the graphics engine while it switched contexts", Advice.IGNORE),
        ([45], "the work of an application was removed from the GPU", Advice.RESTART_APP),
        ([46], "the GPU stopped processing", Advice.RESET_GPU),
        ([48], "double-bit ECC error: memory cannot be corrected", Advice.RESET_GPU),
        ([54], "auxiliary power is not connected", Advice.CHECK_MECHANICALS),
        ([60], "exception in the security processor", Advice.RESTART_APP),
        ([62, 169], "an internal micro-controller halted", Advice.RESET_GPU),
        ([63], "bad memory is marked to be replaced or retired", Advice.IGNORE),
        ([64], "bad memory could not be replaced or retired", Advice.RESET_GPU),
        ([66, 67], "illegal access by the driver", Advice.IGNORE),
        ([68, 83, 84, 88, 89, *range(96, 99)], "exception in a video decoder", Advice.RESTART_APP),
        ([69], "error of an engine class", Advice.RESTART_APP),
        ([74, *range(144, 151)], "NVLink error", Advice.RESET_LINKED_GPUS),
        ([78], "a vGPU could not be started", Advice.UPDATE),
        ([79], "the GPU has fallen off the bus", Advice.POWER_CYCLE),
        ([80], "data came damaged to the GPU", Advice.RESTART_APP),
        ([82, *range(99, 106)], "error in a JPEG engine", Advice.RESTART_APP),
        ([86, 139], "exception in the optical flow accelerator", Advice.RESTART_APP),
        ([92], "single-bit ECC errors come often", Advice.IGNORE),
        ([93], "the InfoROM may not be written so often", Advice.IGNORE),
        ([94], "memory error, contained to one application", Advice.RESTART_APP),
        ([95], "memory error that is not contained", Advice.RESET_GPU),
        ([106, 107], "a test message", Advice.IGNORE),
        ([109], "switching contexts took too long", Advice.RESET_GPU),
        ([110], "security fault", Advice.RESET_GPU),
        ([119, 120], "the GPU system processor (GSP) failed or does not answer", Advice.RESET_GPU),
        ([121], "corrected errors on the link to the CPU", Advice.IGNORE),
        ([136], "an NVLink could not be trained", Advice.RESET_GPU),
        ([137], "a peer's illegal access over NVLink", Advice.IGNORE),
        ([140], "ECC error that the driver could not handle", Advice.RESET_GPU),
        ([141], "error in a CUDA fast path", Advice.IGNORE),
        ([142], "error in a video encoder", Advice.SUPPORT),
        ([143], "the GPU could not be initialized", Advice.RESET_GPU),
        ([151], "keys could not be changed", Advice.RESTART_VM),
        ([155], "an NVLink went down", Advice.RESET_GPU),
        ([156], "a damaged part of the GPU is marked to be retired", Advice.RESET_GPU),
        ([157], "a damaged part of the GPU could not be retired", Advice.IGNORE),
        ([158], "the GPU did not answer in time", Advice.RESET_GPU),
        ([160, 161], "a channel to memory is retired, or could not be", Advice.IGNORE),
        (range(162, 166), "a change of power smoothing", Advice.IGNORE),
        ([167], "PCIe did not answer in time", Advice.RESET_GPU),
        ([171, 172], "memory cannot be corrected", Advice.RESET_GPU),
    )
    for number in numbers
}
"""The text and the advice for each XID. XIDs of newer drivers and RECOVERY_ACTION_CHANGED are not in the catalog."""
