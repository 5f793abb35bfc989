# SPDX-License-Identifier: Apache-2.0
"""The way to the hardware: how it is looked for."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import Nvml, NvmlError, Return
from kubeletplugin.gpus import GpuAccess, Gpus, NoDriverError
from kubeletplugin.plan import PrepareError
from tests.support.nodes import TestNode, make_node
from tests.support.waiting import wait_for

GONE = NvmlError(Return.DRIVER_NOT_LOADED, "a call")


@pytest.fixture
def node(tmp_path: Path) -> TestNode:
    return make_node(tmp_path, "h100x8")


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

    access = GpuAccess(look, node.sys_root, lambda _: None)
    access.start()
    wait_for(lambda: has_gpus(access), "the driver")
    node.node.unload_driver()
    access.report(GONE)
    wait_for(lambda: len(looked) >= 4, "three looks for it")
    access.stop()
    _, *again = looked
    assert all(later - earlier >= 0.5 for earlier, later in itertools.pairwise(again))


@pytest.mark.parametrize("error", [PrepareError("no files"), OSError(30, "Read-only"), GONE])
def test_what_cannot_be_made_ready_is_tried_again(node: TestNode, error: Exception) -> None:
    failures = [error]

    def ready(_: Gpus) -> None:
        if failures:
            raise failures.pop()

    access = GpuAccess(node.node.nvml, node.sys_root, ready)
    access.start()
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
def test_meanwhile_it_says_what_is_missing(node: TestNode, error: Exception, said: str) -> None:
    def ready(_: Gpus) -> None:
        raise error

    access = GpuAccess(node.node.nvml, node.sys_root, ready)
    with pytest.raises(NoDriverError, match="it is being looked for"):
        access.current()
    access.start()
    wait_for(lambda: said in problem(access.current), said)
    access.stop()


def problem(call: Callable[[], object]) -> str:
    with pytest.raises(NoDriverError) as raised:
        call()
    return str(raised.value)
