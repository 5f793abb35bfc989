# SPDX-License-Identifier: Apache-2.0
"""Injected faults: an NVML call that fails, takes long or never returns.

call: nvmlGpuInstanceDestroy   # the NVML function
gpu: 3                         # counted by PCI address, from 0; every GPU when left out
code: IN_USE                   # the return code; none for a call that is only slow
seconds: 0.5                   # how long it takes before that
times: 2                       # how often; for ever when left out
"""

from dataclasses import dataclass

from ...resource.codec import Fields
from ..nvml import Return

_LONGEST = 10**6  # stands for never, and still is something that can be slept


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong. `times` 0 means for ever."""

    call: str
    gpu: int | None = None
    code: Return | None = None
    seconds: float = 0.0
    times: int = 0

    def hits(self, call: str, gpu: int | None) -> bool:
        """Whether this call to this GPU (None: to the system) is affected."""
        return self.call == call and (self.gpu is None or self.gpu == gpu)


def decode_fault(fields: Fields) -> Fault:
    """A fault from its YAML or JSON form."""
    name = fields.optional_text("code")
    if name is not None and name not in Return.__members__:
        raise fields.error("code", f"{name!r} is no NVML return code (they are {', '.join(Return.__members__)})")
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
