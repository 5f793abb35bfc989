# SPDX-License-Identifier: Apache-2.0
"""The threads of GPUs, and what becomes of calls that do not return."""

import threading
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import Nvml
from dra_driver.gpu.simulation.faults import Fault
from kubeletplugin.hardware.workers import Beat, HungError, LeftError, Workers
from tests.support.nodes import make_node
from tests.support.waiting import wait_for


class Stuck:
    """Work that waits to be told to go on."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.reached: list[str] = []

    def __call__(self, beat: Beat) -> str:
        self.go.wait(60)
        self.reached.append("after the call")
        beat()
        self.reached.append("the next step")
        return "done"


def test_work_gives_its_result_or_its_exception() -> None:
    workers = Workers()
    assert workers.run("GPU-0", lambda _: threading.current_thread().name) == "gpu-GPU-0"
    with pytest.raises(ZeroDivisionError):
        workers.run("GPU-0", lambda _: 1 // 0)
    assert workers.run("GPU-0", lambda _: None) is None


def test_steps_may_take_long_together() -> None:
    waits = threading.Event()

    def work(beat: Beat) -> str:
        for _ in range(5):
            waits.wait(0.15)
            beat()
        return "done"

    assert Workers(seconds=0.5).run("GPU-0", work) == "done"


def test_one_that_hangs_is_given_up_and_its_gpu_refused_and_others_go_on() -> None:
    returned: list[str] = []
    workers, stuck, kept = Workers(0.1, returned.append), Stuck(), threading.Event()
    with pytest.raises(HungError, match=r"a call to the driver for GPU-0 has not returned for 0.1 s; nothing can be"):
        workers.run("GPU-0", stuck, lambda: kept.set)
    with pytest.raises(HungError, match="has not returned"):
        workers.run("GPU-0", lambda _: None)
    with pytest.raises(HungError):
        workers.check(["GPU-1", "GPU-0"])
    workers.check(["GPU-1"])
    assert workers.run("GPU-1", lambda _: "fine") == "fine"
    assert (kept.is_set(), returned) == (False, [])
    stuck.go.set()
    wait_for(lambda: returned == ["GPU-0"], "the call to be noticed")
    assert kept.is_set()
    assert stuck.reached == ["after the call"]  # nobody waits for the next step
    assert workers.run("GPU-0", lambda _: "again") == "again"


def test_whoever_does_not_look_is_left_too() -> None:
    returned: list[str] = []
    workers, go = Workers(0.1, returned.append), threading.Event()
    seen: list[bool] = []

    def work(beat: Beat) -> None:
        go.wait(60)
        try:
            beat()
        except LeftError:
            seen.append(True)
            raise

    with pytest.raises(HungError):
        workers.run("GPU-0", work)
    go.set()
    wait_for(lambda: bool(returned), "the end")
    assert seen == [True]


def test_the_call_that_hangs_is_named(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8").node
    nvml: Nvml = node.nvml()
    nvml.initialize()
    gpu = nvml.device_by_index(0)
    node.inject(Fault("nvmlDeviceSetMigMode", seconds=2.0, times=1))
    with pytest.raises(HungError, match=r"^nvmlDeviceSetMigMode for GPU-0 has not returned for 0\.2 s"):
        Workers(0.2).run("GPU-0", lambda _: nvml.set_mig_mode(gpu, True))
