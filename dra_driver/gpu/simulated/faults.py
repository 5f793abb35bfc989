# SPDX-License-Identifier: Apache-2.0
"""Injected faults: a call of NVML or Fabric Manager that fails, takes long or never returns.

call: nvmlGpuInstanceDestroy   # the function; Fabric Manager's begin with fm
gpu: 3                         # position in the order of PCI addresses, from 0; default: every GPU
code: IN_USE                   # the return code; default: the call succeeds after the delay
seconds: 0.5                   # the delay
times: 2                       # how many calls are affected; default: all
"""

from dataclasses import dataclass

from ...kube.resource.codec import Fields
from ..fabric import FabricCode
from ..nvml import Return

_LONGEST = 10**6  # as good as never, but still a valid argument of sleep


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `times` 0 means all calls."""

    call: str
    gpu: int | None = None
    code: Return | FabricCode | None = None
    seconds: float = 0.0
    times: int = 0

    def hits(self, call: str, gpu: int | None) -> bool:
        """Whether the fault affects this call for this GPU (None: for no single GPU)."""
        return self.call == call and (self.gpu is None or self.gpu == gpu)


def decode_fault(fields: Fields) -> Fault:
    """A fault from its YAML or JSON form."""
    call, name = fields.required_text("call"), fields.optional_text("code")
    codes: type[Return | FabricCode] = FabricCode if call.startswith("fm") else Return
    if name is not None and name not in codes.__members__:
        raise fields.error("code", f"{name!r} is not a return code for {call} ({', '.join(codes.__members__)})")
    seconds = fields.take("seconds")
    if seconds is not None and (type(seconds) not in (int, float) or not 0 <= seconds <= _LONGEST):
        raise fields.error("seconds", f"must be a number of seconds up to {_LONGEST}")
    times = fields.integer("times") or 0
    if times < 0:
        raise fields.error("times", f"must not be negative: {times}")
    fault = Fault(
        call=call,
        gpu=fields.integer("gpu"),
        code=None if name is None else codes[name],
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
