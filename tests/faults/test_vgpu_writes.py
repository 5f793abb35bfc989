# SPDX-License-Identifier: Apache-2.0
"""The writes to sysfs by which a vGPU is created and removed: the plugin is killed at one of them, one of them fails,
or does not return. Afterwards the vGPU exists if its claim is prepared, and that of an administrator is still there.

All kills are tried with FAULTS_EVERY=1, else a share of them.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.gpu.vgpus import VgpuPlace
from dra_driver.kube.api import ApiClient
from tests.gpu.test_vgpus import MIXED, write_node
from tests.kubeletplugin.inside import QUICK, ApiServer
from tests.kubeletplugin.inside import Plugin as InsidePlugin
from tests.support.fuse import needs_fuse
from tests.support.kernel import Kernel
from tests.support.nodes import make_node
from tests.support.plugin import POOL, Plugin, stored_claim
from tests.support.waiting import wait_for

from .share import share
from .test_vfio_writes import OPPOSITE, Failed, Hung, Struck, attempt, attempt_until_struck, bring, kill_at, settle

pytestmark = [needs_fuse]

GPU = "0000:41:00.0"
KINDS = {
    "functions": (MIXED, "L40S-PCIE-48GB", "gpu-0-vgpu-12q-1104-12"),
    "mediated": ("{framework: mdev}", "T4-PCIE-16GB", "gpu-0-vgpu-4q-1102-1"),
}
WRITES = {
    "functions": [("prepare", 0), ("unprepare", 0), ("prepare", 1)],
    "mediated": [("prepare", 0), ("unprepare", 0)],
}
ADMINISTRATORS = {
    "functions": ("bus/pci/devices/0000:41:02.0/nvidia/current_vgpu_type", "1103"),
    "mediated": (
        f"bus/pci/devices/{GPU}/mdev_supported_types/nvidia-1102/create",
        "b0e0d5b2-0000-4000-8000-00000000000a",
    ),
}


class Host(Kernel):
    """A host of vGPUs, of which an administrator has created one."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.hardware = write_node(folder, *KINDS[kind][:2])
        make_node(folder / "node", self.hardware, POOL)
        super().__init__(folder / "node")
        self.vgpus.write(*ADMINISTRATORS[kind])
        (self._before,) = self.vgpus.vgpus(GPU)

    def require(self, state: Path, count: int, where: str) -> None:
        """There are so many vGPUs of claims, and that of the administrator."""

        def ours() -> set[VgpuPlace]:
            return set(self.vgpus.vgpus(GPU)) - {self._before}

        marks = VfioMarks(state / "vfio").vgpus
        wait_for(lambda: len(ours()) == len(marks.all()) == count, f"{count} vGPUs after {where}")
        assert self._before in self.vgpus.vgpus(GPU), where


@contextmanager
def a_host(folder: Path, kind: str) -> Iterator[Host]:
    host = Host(folder, kind)
    with host.running():
        yield host


@pytest.mark.parametrize("made", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_that_is_killed_at_a_write_leaves_what_its_claims_have(
    kubeconfig: Path, client: ApiClient, kind: str, made: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="dra-") as name, a_host(Path(name), kind) as host:
        hardware = make_node(Path(name) / "node", host.hardware, POOL)
        plugin = Plugin(Path(name), kubeconfig, hardware=hardware).start()
        claim = stored_claim(client, KINDS[kind][2])
        try:
            for verb, point in share(WRITES[kind], made, 2):
                bring(plugin, claim, OPPOSITE[verb])
                where = kill_at(host, plugin, claim, verb, point, made)
                assert where
                plugin.start()
                bring(plugin, claim, verb if point % 2 else OPPOSITE[verb])
                bring(plugin, claim, "prepare")
                host.require(plugin.state, 1, where)
                bring(plugin, claim, "unprepare")
                host.require(plugin.state, 0, where)
        finally:
            plugin.kill()


@pytest.mark.parametrize("fault", [Failed, Hung])
@pytest.mark.parametrize("kind", KINDS)
def test_a_write_that_fails_or_hangs_changes_nothing_in_the_end(tmp_path: Path, kind: str, fault: type[Struck]) -> None:
    with a_host(tmp_path, kind) as host:
        api = ApiServer()
        times = replace(QUICK, write=2.0) if fault is Hung else QUICK
        plugin = InsidePlugin(tmp_path, api, hardware=host.hardware, times=times)
        claim = api.add([KINDS[kind][2]])
        for verb, point in WRITES[kind]:
            settle(plugin, claim, OPPOSITE[verb])
            struck = fault(host, point)
            error = attempt_until_struck(plugin, claim, verb, struck)
            assert ("does not finish" if fault is Hung else "busy") in error
            assert struck.where
            if isinstance(struck, Hung):
                assert "does not finish an earlier change" in attempt(plugin, claim, verb)
                struck.released.set()
            settle(plugin, claim, "unprepare")
            host.require(tmp_path, 0, struck.where)
        plugin.stop()
