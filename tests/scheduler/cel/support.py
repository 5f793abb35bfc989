# SPDX-License-Identifier: Apache-2.0
"""A device, and the answers of expressions for it."""

from typing import Final

from dra_driver.kube.resource import AttributeList, Device, DeviceCapacity, Quantity, Version
from dra_driver.scheduler.cel import CompileError, Environment, EvaluationError, compile_selector

DRIVER: Final = "gpu.example.com"
DEVICE: Final = Device(
    "gpu-0",
    attributes={
        "model": "A100",
        "count": 7,
        "shared": True,
        "version": Version("1.2.3"),
        "net.example.com/speed": 100,
    },
    capacity={"memory": DeviceCapacity(Quantity.parse("40Gi"))},
)
LISTS: Final = Device("gpu-1", attributes={"numa": AttributeList("ints", (0, 1)), "one": AttributeList("ints", ())})
WITHOUT_LISTS: Final = Environment("1.36")
WITH_LISTS: Final = Environment("1.36", list_type_attributes=True)


def answer(expression: str, device: Device = DEVICE, environment: Environment | None = None) -> bool | str:
    """The answer, or the kind of the error. The kind begins with `compile:` if the expression does not compile."""
    try:
        return compile_selector(expression, environment).matches(DRIVER, device)
    except CompileError as error:
        return f"compile:{error.kind}"
    except EvaluationError as error:
        return error.kind
