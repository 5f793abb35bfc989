# SPDX-License-Identifier: Apache-2.0
"""Injected faults: an NVML call that fails, takes long or never returns.

call: nvmlGpuInstanceDestroy   # the NVML function
gpu: 3                         # position in the order of PCI addresses, from 0; default: every GPU
code: IN_USE                   # the return code; default: the call succeeds after the delay
seconds: 0.5                   # the delay
times: 2                       # how many calls are affected; default: all
"""

from dataclasses import dataclass

from ...resource.codec import Fields
from ..nvml import Return

_LONGEST = 10**6  # as good as never, but still a valid argument of sleep


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `times` 0 means all calls."""

    call: str
    gpu: int | None = None
    code: Return | None = None
    seconds: float = 0.0
    times: int = 0

    def hits(self, call: str, gpu: int | None) -> bool:
        """Whether the fault affects this call for this GPU (None: for no single GPU)."""
        return self.call == call and (self.gpu is None or self.gpu == gpu)


def decode_fault(fields: Fields) -> Fault:
    """A fault from its YAML or JSON form."""
    name = fields.optional_text("code")
    if name is not None and name not in Return.__members__:
        raise fields.error("code", f"{name!r} is not an NVML return code (these are {', '.join(Return.__members__)})")
    seconds = fields.take("seconds")
    if seconds is not None and (type(seconds) not in (int, float) or not 0 <= seconds <= _LONGEST):
        raise fields.error("seconds", f"must be a number of seconds up to {_LONGEST}")
    times = fields.integer("times") or 0
    if times < 0:
        raise fields.error("times", f"must not be negative: {times}")
    fault = Fault(
        call=fields.required_text("call"),
        gpu=fields.integer("gpu"),
        code=None if name is None else Return[name],
        seconds=float(seconds or 0),
        times=times,
    )
    fields.finish()
    return fault


def encode_fault(fault: Fault) -> dict[str, object]:
    """The JSON form."""
    encoded: dict[str, object] = {"call": fault.call, "seconds": fault.seconds, "times": fault.times}
    if fault.gpu is not None:
        encoded["gpu"] = fault.gpu
    if fault.code is not None:
        encoded["code"] = fault.code.name
    return encoded
