# SPDX-License-Identifier: Apache-2.0
"""XIDs: the meaning of the driver's error numbers, and NVIDIA's advice for each.

Numbers and advice are those of NVIDIA's "Xid Errors" document, chapter "Analyzing Xid Errors with the Xid Catalog"
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), where the advice is called the resolution
bucket for immediate action. Numbers that the document calls unused are left out. XID 94, unlike 95, affects only one
application, and with MIG only one instance, which the NVML event names.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that the official driver takes for errors of the application. The catalog wants a GPU reset after 109; drivers
that know that a reset is needed also ask for it as the recovery action.
"""

RECOVERY_ACTION_CHANGED: Final = 154
"""An XID that says nothing by itself: what the driver wants done has changed, to more or to less, and can be asked."""


class Advice(enum.Enum):
    """What to do about an XID, in words for people."""

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
        """Whether the GPU is not as good as before until something was done about it."""
        return self not in (Advice.IGNORE, Advice.RESTART_APP)


@dataclass(frozen=True, slots=True)
class Xid:
    """One number of the catalog."""

    number: int
    text: str
    advice: Advice


def _entries(numbers: Iterable[int], text: str, advice: Advice) -> dict[int, Xid]:
    return {number: Xid(number, text, advice) for number in numbers}


CATALOG: Final[dict[int, Xid]] = {
    **_entries([8, 43], "the GPU stopped processing for an application", Advice.RESTART_APP),
    **_entries([11, 25, 32], "commands sent to the GPU were invalid or damaged", Advice.RESTART_APP),
    **_entries([13], "exception in the graphics engine, mostly an access out of bounds", Advice.RESTART_APP),
    **_entries([14], "an injected error", Advice.IGNORE),
    **_entries([31], "page fault in GPU memory, mostly an illegal access", Advice.RESTART_APP),
    **_entries([37, 38], "error in the driver's firmware", Advice.IGNORE),
    **_entries(
        [39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)], "error in a copy engine", Advice.RESTART_APP
    ),
    **_entries([44], "fault of the graphics engine while it switched contexts", Advice.IGNORE),
    **_entries([45], "the work of an application was removed from the GPU", Advice.RESTART_APP),
    **_entries([46], "the GPU stopped processing", Advice.RESET_GPU),
    **_entries([48], "double-bit ECC error: memory cannot be corrected", Advice.RESET_GPU),
    **_entries([54], "auxiliary power is not connected", Advice.CHECK_MECHANICALS),
    **_entries([60], "exception in the security processor", Advice.RESTART_APP),
    **_entries([62, 169], "an internal micro-controller halted", Advice.RESET_GPU),
    **_entries([63], "bad memory is marked to be replaced or retired", Advice.IGNORE),
    **_entries([64], "bad memory could not be replaced or retired", Advice.RESET_GPU),
    **_entries([66, 67], "illegal access by the driver", Advice.IGNORE),
    **_entries([68, 83, 84, 88, 89, *range(96, 99)], "exception in a video decoder", Advice.RESTART_APP),
    **_entries([69], "error of an engine class", Advice.RESTART_APP),
    **_entries([74], "NVLink error", Advice.RESET_LINKED_GPUS),
    **_entries([78], "a vGPU could not be started", Advice.UPDATE),
    **_entries([79], "the GPU has fallen off the bus", Advice.POWER_CYCLE),
    **_entries([80], "data came damaged to the GPU", Advice.RESTART_APP),
    **_entries([82, *range(99, 106)], "error in a JPEG engine", Advice.RESTART_APP),
    **_entries([86, 139], "exception in the optical flow accelerator", Advice.RESTART_APP),
    **_entries([92], "single-bit ECC errors come often", Advice.IGNORE),
    **_entries([93], "the InfoROM may not be written so often", Advice.IGNORE),
    **_entries([94], "memory error, contained to one application", Advice.RESTART_APP),
    **_entries([95], "memory error that is not contained", Advice.RESET_GPU),
    **_entries([106, 107], "a test message", Advice.IGNORE),
    **_entries([109], "switching contexts took too long", Advice.RESET_GPU),
    **_entries([110], "security fault", Advice.RESET_GPU),
    **_entries([119, 120], "the GPU system processor (GSP) failed or does not answer", Advice.RESET_GPU),
    **_entries([121], "corrected errors on the link to the CPU", Advice.IGNORE),
    **_entries([136], "an NVLink could not be trained", Advice.RESET_GPU),
    **_entries([137], "a peer's illegal access over NVLink", Advice.IGNORE),
    **_entries([140], "ECC error that the driver could not handle", Advice.RESET_GPU),
    **_entries([141], "error in a CUDA fast path", Advice.IGNORE),
    **_entries([142], "error in a video encoder", Advice.SUPPORT),
    **_entries([143], "the GPU could not be initialized", Advice.RESET_GPU),
    **_entries(range(144, 151), "NVLink error", Advice.RESET_LINKED_GPUS),
    **_entries([151], "keys could not be changed", Advice.RESTART_VM),
    **_entries([155], "an NVLink went down", Advice.RESET_GPU),
    **_entries([156], "a damaged part of the GPU is marked to be retired", Advice.RESET_GPU),
    **_entries([157], "a damaged part of the GPU could not be retired", Advice.IGNORE),
    **_entries([158], "the GPU did not answer in time", Advice.RESET_GPU),
    **_entries([160, 161], "a channel to memory is retired, or could not be", Advice.IGNORE),
    **_entries(range(162, 166), "a change of power smoothing", Advice.IGNORE),
    **_entries([167], "PCIe did not answer in time", Advice.RESET_GPU),
    **_entries([171, 172], "memory cannot be corrected", Advice.RESET_GPU),
}
"""What is known. Not in it: numbers that only newer drivers know, and RECOVERY_ACTION_CHANGED."""


def describe_xid(number: int) -> Xid:
    """What the catalog says; of an unknown number nothing good is assumed."""
    return CATALOG.get(number) or Xid(number, "not in the catalog of this driver", Advice.RESET_GPU)
