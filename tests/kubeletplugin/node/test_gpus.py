# SPDX-License-Identifier: Apache-2.0
"""The way to the hardware: how it is looked for."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.nvml import Nvml, NvmlError, Return
from dra_driver.gpu.session import Session
from dra_driver.gpu.simulated.faults import Fault
from kubeletplugin.errors import NoDriverError, PrepareError
from kubeletplugin.node import gpus
from kubeletplugin.node.gpus import GpuAccess
from tests.support.hardware import ControlledNode
from tests.support.nodes import TestNode, make_node
from tests.support.waiting import wait_for

PAUSE = 0.02
"""The first pause between looks for a driver."""
GONE = NvmlError(Return.DRIVER_NOT_LOADED, "a call")


@pytest.fixture
def node(tmp_path: Path) -> TestNode:
    return make_node(tmp_path, "h100x8")


def do_nothing() -> None:
    """Nothing has to be ready."""


def has_gpus(access: GpuAccess) -> bool:
    try:
        access.current()
    except NoDriverError:
        return False
    return True


def test_a_driver_that_went_away_is_looked_for_with_pauses(node: TestNode) -> None:
    looked: list[float] = []

    def look() -> Nvml:
        looked.append(time.monotonic())
        return node.node.nvml()

    access = GpuAccess(Session(look, node.sys_root), first_pause=PAUSE)
    access.start(do_nothing)
    wait_for(lambda: has_gpus(access), "the driver")
    node.node.unload_driver()
    access.report(GONE)
    wait_for(lambda: len(looked) >= 5, "four looks for it")
    access.stop()
    _, _, *again = looked  # the first look is repeated at once if the loss is reported while it runs
    assert all(later - earlier >= PAUSE / 2 for earlier, later in itertools.pairwise(again))


@pytest.mark.parametrize("error", [PrepareError("no files"), OSError(30, "Read-only"), GONE])
def test_failed_preparation_of_the_node_is_tried_again(node: TestNode, error: Exception) -> None:
    failures = [error]

    def ready() -> None:
        if failures:
            raise failures.pop()

    access = GpuAccess(Session(node.node.nvml, node.sys_root), first_pause=PAUSE)
    access.start(ready)
    wait_for(lambda: not failures, "the first attempt")
    wait_for(lambda: has_gpus(access), "the second one")
    access.stop()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PrepareError("no files"), "the node is not ready for claims: no files"),
        (GONE, "the NVIDIA driver is not ready: "),
    ],
)
def test_error_without_gpus_names_the_reason(node: TestNode, error: Exception, said: str) -> None:
    def ready() -> None:
        raise error

    access = GpuAccess(Session(node.node.nvml, node.sys_root))
    with pytest.raises(NoDriverError, match="it is being looked for"):
        access.current()
    access.start(ready)
    wait_for(lambda: said in problem(access.current), said)
    access.stop()


def test_error_without_gpus_is_known_when_it_is_logged(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the log line and asks gets this reason."""
    told: list[str] = []

    def ready() -> None:
        raise PrepareError("no files")

    access = GpuAccess(Session(node.node.nvml, node.sys_root))
    monkeypatch.setattr(gpus.log, "warning", lambda *_: told.append(problem(access.known)))
    access.start(ready)
    wait_for(lambda: told, "the log line")
    access.stop()
    assert told[-1] == "the node is not ready for claims: no files"


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.load_driver(),
        lambda node: node.load_driver("580.65.06"),
        lambda node: node.unplug(3),
        lambda node: node.bind_driver(3, "vfio-pci"),
    ],
)
def test_another_driver_or_other_gpus_are_noticed_without_an_error(
    node: TestNode, change: Callable[[ControlledNode], None]
) -> None:
    seen: list[Inventory] = []
    access = GpuAccess(Session(node.node.nvml, node.sys_root))
    access.start(lambda: seen.append(access.current().inventory))
    wait_for(lambda: has_gpus(access), "the driver")
    change(node.node)
    nvml = node.node.nvml()
    nvml.initialize()
    now = nvml.driver_version(), nvml.device_count()

    def is_found() -> bool:
        return has_gpus(access) and (seen[-1].driver_version, len(seen[-1].gpus)) == now and len(seen) > 1

    wait_for(is_found, "the driver to be found again")
    access.stop()


def test_a_caller_gets_gpus_that_were_lost_several_times_in_a_row(node: TestNode) -> None:
    losses: list[None] = []
    session = Session(node.node.nvml, node.sys_root)

    def ready() -> None:
        if losses:
            losses.pop()
            session.distrust(session.generation)

    access = GpuAccess(session, first_pause=PAUSE)
    access.start(ready)
    wait_for(lambda: has_gpus(access), "the driver")
    losses.extend([None] * 3)
    session.distrust(session.generation)
    assert access.current().inventory.gpus
    access.stop()


def test_the_node_is_looked_after_when_it_is_time_and_when_somebody_asks(node: TestNode) -> None:
    pauses = [0.01, 3600.0, 3600.0]
    left = list(pauses)
    access = GpuAccess(Session(node.node.nvml, node.sys_root))
    access.attend(lambda: left.pop(0))
    access.start(do_nothing)
    wait_for(lambda: len(left) == 1, "the second time")
    access.wake()
    wait_for(lambda: not left, "the third one")
    access.stop()


def test_several_look_after_the_node_each_at_its_own_times(node: TestNode) -> None:
    calls: list[str] = []

    def attendant(name: str, pause: float) -> Callable[[], float]:
        def attend() -> float:
            calls.append(name)
            return pause

        return attend

    access = GpuAccess(Session(node.node.nvml, node.sys_root))
    access.attend(attendant("seldom", 3600.0))
    access.attend(attendant("often", 0.01))
    access.attend(attendant("later", 0.01), 3600.0)
    access.start(do_nothing)
    wait_for(lambda: calls.count("often") >= 3, "the one that is called often")
    assert "later" not in calls
    access.wake()
    wait_for(lambda: "later" in calls, "the one that is called later")
    access.stop()
    assert calls[:2] == ["seldom", "often"]
    assert calls.count("seldom") == 2


def test_a_shutdown_that_hangs_holds_up_no_new_start(node: TestNode) -> None:
    access = GpuAccess(Session(node.node.nvml, node.sys_root, patience=0.1))
    access.start(do_nothing)
    wait_for(lambda: has_gpus(access), "the driver")
    node.node.inject(Fault("nvmlShutdown", seconds=1000.0, times=1))
    access.report(GONE)
    wait_for(lambda: has_gpus(access), "the driver to be found again")
    access.stop()


def problem(call: Callable[[], object]) -> str:
    with pytest.raises(NoDriverError) as raised:
        call()
    return str(raised.value)
