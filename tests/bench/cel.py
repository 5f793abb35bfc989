# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.cel`: what a selector costs a device, beside celpy's own evaluator.

A thousand MIG devices with 15 attributes each; the best of several rounds, in nanoseconds a device. celpy gets
the device as maps that were built beforehand, which is not timed, and one round over fewer devices; it has no
quantities, versions or lowerAscii(). kube-scheduler's own evaluation takes 12 to 18 microseconds a device.
The first compilation in a process also imports lark and loads the parser; it is timed in processes of its own.
"""

import functools
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import celpy
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

from dra_driver.kube.resource import Device, DeviceCapacity, Quantity, Version
from dra_driver.scheduler.cel import Selector, compile_selector

DRIVER: Final = "gpu.nvidia.com"
DEVICES: Final = 1000
DEVICES_OF_CELPY: Final = 100
ROUNDS: Final = 7
FIRSTS: Final = 10
FIRST: Final = """
import time
from dra_driver.scheduler.cel import compile_selector
began = time.perf_counter()
compile_selector("true")
print(time.perf_counter() - began)
"""
EXPRESSIONS: Final = (
    "device.driver == 'gpu.nvidia.com'",
    "device.attributes['gpu.nvidia.com'].profile == '1g.5gb'",
    "device.attributes['gpu.nvidia.com'].profile == '1g.5gb' && device.attributes['gpu.nvidia.com'].type == 'mig'",
    "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0",
    "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*h100.*$')",
    "device.attributes['gpu.nvidia.com'].driverVersion.isGreaterThan(semver('550.0.0'))",
)


def main() -> None:
    logging.disable(logging.CRITICAL)  # celpy logs while it parses
    devices = [_device(index) for index in range(DEVICES)]
    compile_selector("true")
    print(f"first compilation in a process, median of {FIRSTS}: {_first_compilation():.0f} ms")
    print(f"{'compile ms':>10} {'ns/device':>10} {'celpy ns':>10} {'ratio':>6}")
    for expression in EXPRESSIONS:
        began = time.perf_counter()
        selector = compile_selector(expression)
        compiled = (time.perf_counter() - began) * 1e3
        ours = _best(functools.partial(selector.matches, DRIVER), devices)
        theirs = _celpy(expression, selector, devices[:DEVICES_OF_CELPY])
        shown = f"{'cannot':>10} {'':>6}" if theirs is None else f"{theirs:10.0f} {theirs / ours:6.0f}"
        print(f"{compiled:10.2f} {ours:10.0f} {shown}  {expression}")


def _first_compilation() -> float:
    """Milliseconds that it takes in a fresh process."""
    command = (sys.executable, "-c", FIRST)
    return statistics.median(float(subprocess.check_output(command)) for _ in range(FIRSTS)) * 1e3


def _device(index: int) -> Device:
    attributes: dict[str, Any] = {
        "type": "mig",
        "uuid": f"MIG-{index:08x}-1234-5678-9abc-def012345678",
        "parentUUID": f"GPU-{index // 7:08x}-1234-5678-9abc-def012345678",
        "profile": "1g.5gb" if index % 2 else "2g.10gb",
        "productName": "NVIDIA H100 80GB HBM3" if index % 3 else "NVIDIA A100-SXM4-80GB",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": Version("9.0.0"),
        "driverVersion": Version("570.86.15" if index % 2 else "535.104.5"),
        "cudaDriverVersion": Version("12.8.0"),
        "index": index,
        "minor": index % 256,
        "addressingMode": "HMM",
        "resource.kubernetes.io/pcieRoot": f"pci0000:{index % 256:02x}",
        "resource.kubernetes.io/pciBusID": f"0000:{index % 256:02x}:00.0",
    }
    memory = Quantity.parse("80Gi" if index % 2 else "20Gi")
    return Device(f"gpu-{index}", attributes=attributes, capacity={"memory": DeviceCapacity(memory)})


def _best(evaluate: Callable[[Device], object], devices: Sequence[Device]) -> float:
    """Nanoseconds a device in the best round."""
    best = sys.float_info.max
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for device in devices:
            evaluate(device)
        best = min(best, (time.perf_counter_ns() - began) / len(devices))
    return best


def _celpy(expression: str, selector: Selector, devices: Sequence[Device]) -> float | None:
    """celpy's nanoseconds a device, None where it cannot evaluate the expression. Its answers must be ours."""
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    activations = [{"device": json_to_cel(_as_maps(device))} for device in devices]
    try:
        program.evaluate(activations[0])
    except CELEvalError:
        return None
    began = time.perf_counter_ns()
    answers = [program.evaluate(activation) for activation in activations]
    spent = (time.perf_counter_ns() - began) / len(devices)
    if [bool(answer) for answer in answers] != [selector.matches(DRIVER, device) for device in devices]:
        raise AssertionError(f"celpy does not agree on {expression}")
    return spent


def _as_maps(device: Device) -> dict[str, Any]:
    domains: dict[str, dict[str, Any]] = {}
    for name, value in device.attributes.items():
        domain, slash, identifier = name.partition("/")
        if not slash:
            domain, identifier = DRIVER, name
        domains.setdefault(domain, {})[identifier] = value.text if isinstance(value, Version) else value
    return {"driver": DRIVER, "attributes": domains, "capacity": {}}


if __name__ == "__main__":
    main()
