# SPDX-License-Identifier: Apache-2.0
"""Claims of all kinds on one node at the same time: virtual machines, whole GPUs, MIG devices."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from dra_driver.gpu.passthrough import VfioMarks
from kubeletplugin.claims.boundary import EXPECTED_ERRORS
from tests.kubeletplugin.inside import DYNAMIC, ApiServer, Plugin
from tests.support.fuse import needs_fuse
from tests.support.kernel import Kernel
from tests.support.nodes import make_node
from tests.support.waiting import wait_for

from .test_vfio_writes import NODE

pytestmark = needs_fuse

DEVICES = ("gpu-vfio-0", "gpu-0", "gpu-1-mig-1g10gb-19-0", "gpu-1-mig-2g20gb-14-2", "gpu-vfio-2", "gpu-2", "gpu-3")
ROUNDS = 3


@pytest.mark.parametrize("seed", [1])
def test_claims_of_all_kinds_come_and_go_together(tmp_path: Path, seed: int) -> None:
    make_node(tmp_path / "node", str(NODE))
    kernel, api, random = Kernel(tmp_path / "node"), ApiServer(), Random(seed)
    with kernel.running():
        plugin = Plugin(tmp_path, api, hardware=str(NODE), policy=DYNAMIC)
        before, left = kernel.picture(), plugin.left()
        served = threading.Barrier(len(DEVICES))

        def live(device: str) -> None:
            served.wait()
            for _ in range(ROUNDS):
                claim = api.add([device], device)
                persist(lambda claim=claim: plugin.engine.prepare(claim))
                if random.random() < 0.5:
                    persist(lambda claim=claim: plugin.engine.prepare(claim))
                persist(lambda claim=claim: plugin.engine.unprepare(claim))
                api.delete(claim)

        with ThreadPoolExecutor(len(DEVICES)) as pool:
            for life in [pool.submit(live, device) for device in DEVICES]:
                life.result()
        wait_for(lambda: not VfioMarks(tmp_path / "vfio").all(), "no marks")
        wait_for(lambda: kernel.picture() == before, "the functions where they were")
        wait_for(lambda: plugin.has_driver() and plugin.left() == left, "nothing left")
        plugin.stop()


def persist(call: object) -> None:
    """kubelet repeats a call until it succeeds."""
    assert callable(call)

    def done() -> bool:
        try:
            call()
        except EXPECTED_ERRORS:
            return False
        return True

    wait_for(done, "the call to succeed", 200)
