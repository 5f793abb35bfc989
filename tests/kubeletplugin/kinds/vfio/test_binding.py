# SPDX-License-Identifier: Apache-2.0
"""Claims for GPUs of virtual machines: the GPU is bound to a vfio driver, and everything comes back."""

import errno
import json
import os
from pathlib import Path

import pytest

from dra_driver.gpu.passthrough import VfioMark, VfioMarks
from dra_driver.kube.resource import ResourceClaim
from kubeletplugin.claims.boundary import EXPECTED_ERRORS
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.errors import PrepareError, StoppedError, StuckError
from kubeletplugin.kinds.vfio.device import VfioKind
from tests.kubeletplugin.inside import ApiServer, Plugin
from tests.support.kernel import AUDIO, NVIDIA, VFIO, Function, Kernel
from tests.support.waiting import wait_for

from .conftest import HARDWARE, audio_of

pytestmark = pytest.mark.node

OTHER = "0000:02:00.0"


def returned(kernel: Kernel, plugin: Plugin) -> bool:
    """Whether NVML has all GPUs again."""
    return plugin.has_driver() and len(plugin.gpus()) == len(kernel.gpus)


def marks(plugin: Plugin) -> tuple[VfioMark, ...]:
    """The marks of the GPUs that were taken."""
    return VfioMarks(plugin.root / "vfio").all()


def test_a_claim_binds_all_functions_of_its_gpu_and_brings_them_back(
    kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    address, before = kernel.gpus[0], kernel.picture()
    claim = api.add(["gpu-vfio-0"])
    (kind,) = (device.kind for device in plugin.engine.prepare(claim).plan.devices)
    assert isinstance(kind, VfioKind)
    assert (kind.address, kind.iommu_group) == (address, kernel.group(address))
    assert kernel.picture()[address] == kernel.picture()[audio_of(address)] == (VFIO, VFIO)
    assert {name for name, now in kernel.picture().items() if now != before[name]} == {address, audio_of(address)}
    wait_for(lambda: plugin.has_driver() and len(plugin.gpus()) == 4, "NVML without the GPU")
    plugin.engine.unprepare(claim)
    assert kernel.picture() == before
    wait_for(lambda: returned(kernel, plugin), "NVML with the GPU")
    assert not marks(plugin)


def test_the_container_gets_the_nodes_of_the_group_and_no_files_of_the_driver(
    kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    claim = api.add(["gpu-vfio-1"])
    plugin.engine.prepare(claim)
    (file,) = (one for one in plugin.cdi.iterdir() if claim.uid in one.name)
    (device,) = json.loads(file.read_text())["devices"]
    nodes = [one["path"] for one in device["containerEdits"]["deviceNodes"]]
    assert nodes == [f"/dev/vfio/{kernel.group(kernel.gpus[1])}"]
    assert device["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert set(device["containerEdits"]) == {"deviceNodes", "env"}


def test_persistence_mode_is_off_meanwhile_and_then_as_it_was(kernel: Kernel, plugin: Plugin, api: ApiServer) -> None:
    on, off = (gpu.uuid for gpu in plugin.gpus()[:2])
    kernel.node.nvidia_smi.set_persistence(on, True)
    claims = [api.add([f"gpu-vfio-{index}"]) for index in (0, 1)]
    for claim in claims:
        wait_for(plugin.has_driver, "NVML")
        plugin.engine.prepare(claim)
    assert not kernel.node.nvidia_smi.persistence(on)
    for claim in claims:
        plugin.engine.unprepare(claim)
    wait_for(lambda: returned(kernel, plugin), "NVML with the GPUs")
    assert kernel.node.nvidia_smi.persistence(on)
    assert not kernel.node.nvidia_smi.persistence(off)


def test_gpu_whose_persistence_mode_cannot_be_disabled_is_not_taken(
    kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    """The persistence daemon would have it open."""
    kernel.node.nvidia_smi.set_persistence(plugin.gpu(0).uuid, True)
    before, claim = kernel.picture(), api.add(["gpu-vfio-0"])
    kernel.node.nvidia_smi.fail(255, "Unknown Error")
    with pytest.raises(PrepareError, match=r"the persistence mode of .* cannot be disabled: .*Unknown Error"):
        plugin.engine.prepare(claim)
    assert kernel.picture() == before
    assert not marks(plugin)


def test_persistence_mode_that_cannot_be_restored_is_restored_soon(
    kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    uuid, before = plugin.gpu(0).uuid, kernel.picture()
    kernel.node.nvidia_smi.set_persistence(uuid, True)
    claim = api.add(["gpu-vfio-0"])
    plugin.engine.prepare(claim)
    kernel.node.nvidia_smi.fail(255, "Unknown Error")
    plugin.engine.unprepare(claim)
    assert kernel.picture() == before
    assert plugin.engine.unrestored.count() == 1
    kernel.node.nvidia_smi.mend()
    wait_for(lambda: not marks(plugin), "the restored mode")
    assert kernel.node.nvidia_smi.persistence(uuid)


def test_a_gpu_that_an_administrator_bound_is_left_as_it_was(kernel: Kernel, plugin: Plugin, api: ApiServer) -> None:
    address = kernel.gpus[2]
    kernel.force(address, VFIO)
    wait_for(lambda: plugin.has_driver() and len(plugin.gpus()) == 4, "NVML without the GPU")
    before, claim = kernel.picture(), api.add(["gpu-vfio-2"])
    plugin.engine.prepare(claim)
    assert kernel.picture() == before
    plugin.engine.unprepare(claim)
    assert kernel.picture() == before
    assert not kernel.writes


def test_a_gpu_without_a_driver_goes_back_to_no_driver(kernel: Kernel, plugin: Plugin, api: ApiServer) -> None:
    address = kernel.gpus[2]
    kernel.force(address, None)
    wait_for(lambda: plugin.has_driver() and len(plugin.gpus()) == 4, "NVML without the GPU")
    claim = api.add(["gpu-vfio-2"])
    plugin.engine.prepare(claim)
    assert kernel.driver(address) == VFIO
    plugin.engine.unprepare(claim)
    assert (kernel.driver(address), kernel.override(address)) == (None, "(null)")


def test_a_gpu_that_changed_its_iommu_group_is_refused_and_nothing_is_changed(
    kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    """The container would get the node of the group that the GPU was in."""
    kernel.join(kernel.gpus[0], 99)
    before = kernel.picture()
    with pytest.raises(PrepareError, match="is in another IOMMU group now: delete the pod"):
        plugin.engine.prepare(api.add(["gpu-vfio-0"]))
    assert kernel.picture() == before
    assert not kernel.writes


def test_a_board_with_a_driver_of_its_own_gets_that(kernel: Kernel, plugin: Plugin, api: ApiServer) -> None:
    address = kernel.gpus[0]
    device = kernel.sys / "bus/pci/devices" / address / "modalias"
    device.write_text(device.read_text().replace("d00002330", "d00002342"))
    plugin.engine.prepare(api.add(["gpu-vfio-0"]))
    assert (kernel.driver(address), kernel.driver(audio_of(address))) == ("nvgrace_gpu_vfio_pci", VFIO)


def test_a_process_that_uses_the_gpu_is_named_and_nothing_is_changed(
    kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    before, claim = kernel.picture(), api.add(["gpu-vfio-0"])
    node = kernel.dev / "nvidia0"
    node.unlink()
    node.touch()  # a node of a device that does not exist cannot be opened
    with (
        node.open("rb"),
        pytest.raises(PrepareError, match=rf"is in use by .*\(PID {os.getpid()}\): they use it as a GPU"),
    ):
        plugin.engine.prepare(claim)
    assert kernel.picture() == before
    assert not marks(plugin)
    plugin.engine.prepare(claim)


def test_a_virtual_machine_that_still_runs_is_named(kernel: Kernel, plugin: Plugin, api: ApiServer) -> None:
    before, claim = kernel.picture(), api.add(["gpu-vfio-0"])
    plugin.engine.prepare(claim)
    node = kernel.dev / f"vfio/{kernel.group(kernel.gpus[0])}"
    with node.open("rb"), pytest.raises(PrepareError, match="the virtual machine still runs"):
        plugin.engine.unprepare(claim)
    plugin.engine.unprepare(claim)
    assert kernel.picture() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda kernel: kernel.join(kernel.gpus[1], kernel.group(kernel.gpus[0])), "IOMMU group 16 also has"),
        (lambda kernel: kernel.add(Function(OTHER, "0x020000", "mlx5_core", "0x15b3"), 16), f"also has {OTHER}"),
        (lambda kernel: kernel.add(Function(OTHER, "0x020000", None, "0x15b3"), 16), ""),
        (lambda kernel: kernel.add(Function(OTHER, "0x020000", VFIO, "0x15b3"), 16), ""),
        (lambda kernel: numvfs(kernel, 2), "2 SR-IOV virtual functions of it are enabled"),
    ],
    ids=["another GPU", "a network card", "an unused card", "a card that is passed through", "virtual functions"],
)
def test_a_group_is_bound_as_a_whole_or_not_at_all(
    kernel: Kernel, plugin: Plugin, api: ApiServer, change: object, message: str
) -> None:
    assert callable(change)
    change(kernel)
    before, claim = kernel.picture(), api.add(["gpu-vfio-0"])
    if message:
        with pytest.raises(PrepareError, match=message):
            plugin.engine.prepare(claim)
        assert kernel.picture() == before
    else:
        plugin.engine.prepare(claim)
        assert kernel.driver(kernel.gpus[0]) == VFIO


def numvfs(kernel: Kernel, count: int) -> None:
    """Virtual functions are enabled."""
    (kernel.sys / "bus/pci/devices" / kernel.gpus[0] / "sriov_numvfs").write_text(f"{count}\n")


def test_a_driver_that_refuses_the_gpu_leaves_everything_as_it_was(
    kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    address, before = kernel.gpus[0], kernel.picture()

    def refuse(_number: int, path: str, _text: str) -> None:
        if path == f"bus/pci/drivers/{VFIO}/bind":
            raise OSError(errno.EINVAL, "")

    kernel.strike = refuse
    with pytest.raises(PrepareError, match=rf"refuses to write '{address}' to .*{VFIO}/bind: .*EINVAL"):
        plugin.engine.prepare(api.add(["gpu-vfio-0"]))
    assert kernel.picture() == before
    assert not marks(plugin)


def test_an_unbind_that_does_not_return_makes_the_gpu_unusable_until_it_does(
    kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    address, before, claim = kernel.gpus[0], kernel.picture(), api.add(["gpu-vfio-0"])
    kernel.hold(address)
    with pytest.raises(StuckError, match="the kernel does not finish writing"):
        plugin.engine.prepare(claim)
    (mark,) = marks(plugin)
    assert "does not finish" in mark.stuck
    with pytest.raises((StuckError, StoppedError)):
        plugin.engine.unprepare(claim)
    kernel.release(address)
    wait_for(lambda: kernel.driver(address) is None or kernel.picture() == before, "the unbind")

    def undone() -> bool:
        try:
            plugin.engine.unprepare(claim)
        except EXPECTED_ERRORS:
            return False
        return True

    wait_for(undone, "the GPU")
    assert kernel.picture() == before
    assert not marks(plugin)


def test_a_gpu_that_is_pulled_out_of_a_virtual_machine_leaves_nothing(
    kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    address, claim = kernel.gpus[0], api.add(["gpu-vfio-0"])
    plugin.engine.prepare(claim)
    kernel.unplug(address)
    plugin.engine.unprepare(claim)
    assert address not in kernel.picture()
    assert kernel.driver(audio_of(address)) == AUDIO
    assert not marks(plugin)


def test_the_next_plugin_keeps_the_gpu_of_a_prepared_claim(
    tmp_path: Path, kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    before, claim = kernel.picture(), api.add(["gpu-vfio-0"])
    record = plugin.engine.prepare(claim)
    plugin.stop()
    bound = kernel.picture()
    later = Plugin(tmp_path, api, hardware=HARDWARE)
    assert kernel.picture() == bound
    assert later.engine.prepare(claim) == record
    later.engine.unprepare(claim)
    assert kernel.picture() == before
    later.stop()


def test_a_container_and_a_virtual_machine_never_have_a_gpu_at_once(
    kernel: Kernel, plugin: Plugin, api: ApiServer
) -> None:
    container, machine = api.add(["gpu-0"]), api.add(["gpu-vfio-0"])
    plugin.engine.prepare(container)
    with pytest.raises(PrepareError, match="in use by claim"):
        plugin.engine.prepare(machine)
    assert kernel.driver(kernel.gpus[0]) == NVIDIA
    plugin.engine.unprepare(container)
    plugin.engine.prepare(machine)
    with pytest.raises(PrepareError, match=rf"for virtual machines: {kernel.gpus[0]}; kubelet tries again"):
        plugin.engine.prepare(container)


def test_a_gpu_that_comes_back_while_its_next_claim_is_planned_keeps_its_uuid(tmp_path: Path, kernel: Kernel) -> None:
    """The plan names the lock and the mark of the GPU by its UUID. It is unknown in an inventory that is older."""

    class Overtaken(ApiServer):
        """Something happens while a claim is read."""

        meanwhile: ClaimRef | None = None

        def fetch(self, ref: ClaimRef) -> ResourceClaim:
            before, self.meanwhile = self.meanwhile, None
            if before is not None:
                plugin.engine.unprepare(before)
            return super().fetch(ref)

    api = Overtaken()
    plugin = Plugin(tmp_path, api, hardware=HARDWARE)
    uuid = plugin.gpu(0).uuid
    first, second = api.add(["gpu-vfio-0"]), api.add(["gpu-vfio-0"])
    plugin.engine.prepare(first)
    wait_for(lambda: plugin.has_driver() and len(plugin.gpus()) == 4, "NVML without the GPU")
    api.meanwhile = first
    assert [device.kind.keys for device in plugin.engine.prepare(second).plan.devices] == [{uuid}]
    assert [mark.gpu_uuid for mark in marks(plugin)] == [uuid]
    plugin.stop()
