# SPDX-License-Identifier: Apache-2.0
"""Every call that the controller makes to NVML hangs, for one GPU and for all, before the start and at rest.

At rest and for one GPU it is every other call; else every fourth one. All with FAULTS_EVERY=1.

What the node has is told all the same: the devices of the GPUs concerned are tainted, an event of another GPU gets
through, the probe and the log name the call. When it returns, everything is as before.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

from dra_driver.gpu.devices import describe
from dra_driver.gpu.health import HealthMonitor, MonitorTiming
from dra_driver.gpu.inventory import read_inventory
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.marked import NodeMarks
from dra_driver.gpu.nvml import EventType, NvmlError
from dra_driver.gpu.ownership import MigMarks
from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.gpu.policy import NodePolicy
from dra_driver.gpu.session import Session
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.gpu.threads import CallLimits
from dra_driver.gpu.view import HardwareView, Looks
from dra_driver.kube.resource import ResourceSlice
from dra_driver.kube.resource.device import SliceFeatures
from tests.support.logs import records_of
from tests.support.nodes import TestNode, make_node
from tests.support.waiting import wait_for

from .share import share

GPU_CALLS = (
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetGpuInstancePossiblePlacements",
    "nvmlDeviceGetGpuInstanceProfileInfo",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetModuleId",
    "nvmlDeviceGetName",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceRegisterEvents",
)
LIBRARY_CALLS = (
    "nvmlDeviceGetCount",
    "nvmlInitWithFlags",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetDriverVersion",
)
EVENT_CALLS = ("nvmlEventSetCreate", "nvmlEventSetWait")
OF_SPLIT_GPUS = {
    "nvmlDeviceGetGpuInstancePossiblePlacements",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetMigDeviceHandleByIndex",
}
"""Calls that only GPUs in MIG mode are asked; 0 to 3 are whole, 4 to 7 split."""

SOME = share(GPU_CALLS, 0, 4)

HUNG, UNMONITORED = "gpu-lost=hung", "unmonitored="
SHORT = CallLimits(initialize=1.0, look=1.0)
LOOKS = Looks(first=0.1, poll=0.1, everything=0.3, patience=0.5)
TIMING = MonitorTiming(wait=0.1, look=0.2, settle=0.0, patience=0.5)


@dataclass
class Watched:
    """A node as the controller follows it."""

    node: TestNode
    session: Session
    view: HardwareView
    uuids: Sequence[str]

    def taints(self) -> dict[int, set[str]]:
        """`key=value` of the taints that every device of a GPU has, by the GPU's index. Empty without an answer."""
        found: dict[int, set[str]] = {}
        try:
            described = self.view.describe(SliceFeatures()).gpus
        except NvmlError:
            return {}
        for gpu in described:
            of_devices = [{f"{t.key.partition('/')[2]}={t.value}" for t in device.taints} for device in gpu.devices]
            found[self.uuids.index(gpu.key)] = set.intersection(*of_devices)
        return found

    def wait_for_taints(self, expected: Callable[[int], set[str]]) -> None:
        """Wait until exactly these taints are told, by the index of the GPU."""
        wanted = {index: expected(index) for index in range(len(self.uuids))}
        wait_for(lambda: self.taints() == wanted, f"{wanted}, not {self.taints()}", 60.0)

    def wait_for_lost(self, expected: set[int]) -> None:
        """Wait until these GPUs are lost, and no other. That a GPU hangs is known only of one that was read before."""

        def lost() -> set[int]:
            return {index for index, taints in self.taints().items() if taints & {HUNG, "gpu-lost="}}

        wait_for(lambda: lost() == expected, f"{expected}, not {self.taints()}", 60.0)

    def names(self, call: str) -> bool:
        """Whether the probe says that this call has not returned."""
        return f"{call} for " in (unready := self.view.unready() or "") and " has not returned for " in unready


@contextmanager
def watching(root: Path, *faults: Fault, published: Sequence[ResourceSlice] = ()) -> Iterator[Watched]:
    """A node with these faults from the start, and the slices of an earlier process."""
    node = make_node(root, "h100x8-mixed")
    uuids = [node.nvml.uuid(node.nvml.device_by_index(index)) for index in range(8)]
    for fault in faults:
        node.node.inject(fault)
    session = Session(node.node.nvml, node.sys_root, patience=0.2, limits=SHORT)
    marks = NodeMarks(MigMarks(root / "marks"), VfioMarks(root / "vfio"))
    health = HealthMonitor(session, marks=marks, timing=TIMING)
    view = HardwareView(session, marks=marks, policy=NodePolicy, health=health, looks=LOOKS)
    view.adopt(published)
    view.start()
    health.start()
    try:
        yield Watched(node, session, view, uuids)
    finally:
        node.node.clear_faults()
        view.stop()
        health.stop()


def hung_gpu(call: str) -> int:
    return 5 if call in OF_SPLIT_GPUS else 3


def nothing(_: int) -> set[str]:
    return set()


def begin(one: Watched, call: str, fault: Fault) -> None:
    """Have the call hang at rest; what is called only once is called again."""
    one.wait_for_taints(nothing)
    one.node.node.inject(fault)
    if call in ("nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex", "nvmlDeviceRegisterEvents", "nvmlEventSetCreate"):
        one.session.distrust(one.session.generation)


def logged_hangs(caplog: pytest.LogCaptureFixture) -> int:
    """How many calls hang according to the log. On a busy machine, also calls that do not hang may return late."""
    said = [one.getMessage() for one in records_of(caplog, "dra_driver.gpu.threads")]
    return sum("has not returned within" in text for text in said) - said.count("the call that hung has returned")


@pytest.mark.parametrize("call", share(GPU_CALLS, 1, 2))
def test_a_call_for_one_gpu_hangs_at_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture, call: str) -> None:
    hung = hung_gpu(call)
    with watching(tmp_path) as one:
        begin(one, call, Fault(call, gpu=hung, seconds=10**6))
        one.wait_for_taints(lambda index: {HUNG} if index == hung else set())
        one.node.node.raise_event(one.uuids[0], EventType.XID, 79)
        one.wait_for_taints(lambda index: {hung: {HUNG}, 0: {"xid=79"}}.get(index, set()))
        wait_for(lambda: one.names(call), "the probe to name the call")
        # After NVML was initialized again, the GPU has a second thread until its UUID is known.
        wait_for(lambda: 1 <= one.view.hanging() == logged_hangs(caplog) <= 2, "the log to have what hangs")
        one.node.node.clear_faults()
        one.wait_for_taints(lambda index: {"xid=79"} if index == 0 else set())
        wait_for(lambda: one.view.unready() is None and one.view.hanging() == 0, "the probe to be content")


@pytest.mark.parametrize("call", SOME)
def test_a_call_for_one_gpu_hangs_before_the_start(tmp_path: Path, call: str) -> None:
    hung = hung_gpu(call)
    before = make_node(tmp_path, "h100x8-mixed")
    published = node_slices("node-a", "uid", describe(read_inventory(before.nvml, before.sys_root)).gpus)
    with watching(tmp_path, Fault(call, gpu=hung, seconds=10**6), published=published) as one:
        one.wait_for_lost({hung})
        wait_for(lambda: one.names(call), "the probe to name the call")
        one.node.node.clear_faults()
        one.wait_for_taints(nothing)


@pytest.mark.parametrize("call", [*SOME, *LIBRARY_CALLS])
def test_a_call_hangs_for_all(tmp_path: Path, call: str) -> None:
    with watching(tmp_path) as one:
        begin(one, call, Fault(call, seconds=10**6))
        some = {4, 5, 6, 7} if call in OF_SPLIT_GPUS else set(range(8))
        if call == "nvmlDeviceGetNvLinkState":
            some = {0, 1, 2, 3}
        if call == "nvmlDeviceGetP2PStatus":  # between GPUs that are whole; it counts against the second of two
            some = {1, 2, 3}
        wait_for(lambda: all(HUNG in one.taints().get(index, ()) for index in some), f"{some} to be tainted", 60.0)
        wait_for(lambda: one.names(call), "the probe to name the call")
        one.node.node.clear_faults()
        one.wait_for_taints(nothing)
        wait_for(lambda: one.view.unready() is None, "the probe to be content")


@pytest.mark.parametrize("call", EVENT_CALLS)
def test_hanging_event_call_taints_gpus_as_unmonitored(tmp_path: Path, call: str) -> None:
    with watching(tmp_path) as one:
        begin(one, call, Fault(call, seconds=10**6))
        one.wait_for_taints(lambda _: {UNMONITORED})
        wait_for(lambda: one.names(call), "the probe to name the call")
        one.node.node.clear_faults()
        one.wait_for_taints(nothing)
        one.node.node.raise_event(one.uuids[0], EventType.XID, 79)
        one.wait_for_taints(lambda index: {"xid=79"} if index == 0 else set())


def test_nvml_does_not_initialize_and_earlier_gpus_are_tainted(tmp_path: Path) -> None:
    before = make_node(tmp_path, "h100x8-mixed")
    published = node_slices("node-a", "uid", describe(read_inventory(before.nvml, before.sys_root)).gpus)
    with watching(tmp_path, Fault("nvmlInitWithFlags", seconds=10**6), published=published) as one:
        one.wait_for_lost(set(range(8)))
        wait_for(lambda: one.names("nvmlInitWithFlags"), "the probe to name the call")
        one.node.node.clear_faults()
        one.wait_for_taints(nothing)


def test_controller_makes_the_calls_in_these_tables_and_no_others(tmp_path: Path) -> None:
    every = {name for name in dir(pynvml) if name.startswith("nvml")}
    with watching(tmp_path) as one:
        one.wait_for_taints(nothing)
        one.node.node.inject(*(Fault(call, times=1) for call in every))  # whose only effect is that a call removes them

        def called() -> set[str]:
            return every - {fault.call for fault in one.node.node.faults()}

        one.session.distrust(one.session.generation)
        known = {*GPU_CALLS, *LIBRARY_CALLS, *EVENT_CALLS}
        wait_for(lambda: called() >= known, "every call", 60.0)
        assert called() - known <= {"nvmlEventSetFree", "nvmlShutdown"}
