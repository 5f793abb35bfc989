# SPDX-License-Identifier: Apache-2.0
"""GPUs of virtual machines in the view of a node: they stay published as they were, without a taint."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from dra_driver.gpu.devices import Reason
from dra_driver.gpu.functions import PciFunction
from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.nvml import NvmlError
from dra_driver.gpu.passthrough import VfioMark, VfioMarks
from dra_driver.gpu.session import GpuQuestion, Session, T
from tests.gpu.test_view import Node, looked_at, of_gpu
from tests.support.waiting import wait_for

POLICY = "gpus:\n- {passthrough: true, mig: dynamic}\n"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with looked_at(tmp_path, "h100x8", POLICY) as node:
        yield node


@pytest.fixture
def marks(tmp_path: Path) -> VfioMarks:
    return VfioMarks(tmp_path / "vfio")


def mark_of(node: Node) -> VfioMark:
    """The mark of the first GPU."""
    gpu = node.gpu(0)
    return VfioMark(str(gpu.pci_address), gpu.uuid, (PciFunction(str(gpu.pci_address), "nvidia"),))


def test_a_gpu_that_a_claim_has_taken_stays_published_and_is_not_lost(node: Node, marks: VfioMarks) -> None:
    mark, before = mark_of(node), set(node.devices())
    published = of_gpu(node.describe(), mark.gpu_uuid)
    marks.set(mark)
    for driver in (None, "vfio-pci", None, "nvidia"):
        node.simulated.bind_driver(0, driver)
        assert node.discovery.look_now(30)
        assert set(node.devices()) == before
        assert of_gpu(node.describe(), mark.gpu_uuid) == published
        assert node.taints() == {}
    marks.clear(mark.address)
    assert node.discovery.look_now(30)
    assert set(node.devices()) == before


def test_a_gpu_that_a_claim_has_taken_stays_published_by_a_new_process(tmp_path: Path, marks: VfioMarks) -> None:
    """Which knows the GPU only from the slices, with all devices and with the counters that keep them apart."""
    with looked_at(tmp_path, "h100x8", POLICY) as first:
        mark, slices = mark_of(first), node_slices("node-a", "uid", first.describe().gpus)
        before = first.devices()
        counters = of_gpu(first.describe(), mark.gpu_uuid)[1]
    marks.set(mark)
    first.simulated.bind_driver(0, "vfio-pci")
    with looked_at(tmp_path, "h100x8", POLICY) as second:
        second.discovery.adopt(slices)
        assert second.devices() == before
        assert of_gpu(second.describe(), mark.gpu_uuid)[1] == counters
        assert second.taints() == {}


def test_a_gpu_that_an_administrator_has_bound_is_only_a_vfio_device(node: Node) -> None:
    node.simulated.bind_driver(0, "vfio-pci")
    assert node.discovery.look_now(30)
    assert {name for name in node.devices() if name.startswith(("gpu-0", "gpu-vfio-0"))} == {"gpu-vfio-0"}


def test_a_gpu_whose_change_does_not_end_is_tainted_until_it_does(node: Node, marks: VfioMarks) -> None:
    mark = mark_of(node)
    marks.set(mark)
    marks.stick(mark.address, "the kernel does not finish it")
    wait_for(node.taints, "the taint")
    assert {taint for taints in node.taints().values() for taint in taints} == {("gpu.nvidia.com/gpu-lost", "hung")}
    marks.stick(mark.address, "")
    wait_for(lambda: not node.taints(), "no taint")


def test_a_gpu_that_was_pulled_out_of_a_virtual_machine_is_lost(node: Node, marks: VfioMarks) -> None:
    mark = mark_of(node)
    marks.set(mark)
    node.simulated.bind_driver(0, "vfio-pci")
    assert node.discovery.look_now(30)
    assert node.taints() == {}
    node.simulated.unplug(0)
    wait_for(node.taints, "the taint")


def join(node: Node) -> None:
    """The second GPU is in the IOMMU group of the first."""
    sys = node.simulated.driver_root / "sys"
    first, second = sorted((sys / "bus/pci/devices").iterdir())[:2]
    group = (first / "iommu_group").resolve()
    (group / "devices" / second.name).symlink_to(second.resolve())
    link = second.resolve() / "iommu_group"
    link.unlink()
    link.symlink_to(group)
    for driver in (None, "nvidia"):  # so that the node is read again
        node.simulated.bind_driver(7, driver)
        assert node.discovery.look_now(30)


def test_gpus_that_share_a_group_are_no_vfio_devices(node: Node) -> None:
    join(node)
    assert not {"gpu-vfio-0", "gpu-vfio-1"} & set(node.devices())
    assert {"gpu-0", "gpu-1", "gpu-vfio-2"} <= set(node.devices())
    assert Reason.SHARED_GROUP in node.left_out()


def test_a_group_stays_published_at_every_moment_of_its_way(node: Node, marks: VfioMarks) -> None:
    join(node)
    node.replace_policy("gpus:\n- {passthrough: only}\n")
    wait_for(lambda: "gpu-0" not in node.devices(), "the policy")
    before = node.devices()
    assert {"gpu-vfio-0", "gpu-vfio-2"} <= before.keys()
    assert "gpu-vfio-1" not in before
    gpus = [node.gpu(index) for index in (0, 1)]
    every = [VfioMark(str(one.pci_address), one.uuid, (PciFunction(str(one.pci_address), "nvidia"),)) for one in gpus]
    for mark in every:
        marks.set(mark)
    taking = [(0, None), (0, "vfio-pci"), (1, None), (1, "vfio-pci")]
    bringing = [(1, None), (1, "nvidia"), (0, None), (0, "nvidia")]
    for index, driver in (*taking, *bringing):
        node.simulated.bind_driver(index, driver)
        assert node.discovery.look_now(30)
        assert node.devices() == before
    for mark in every:
        marks.clear(mark.address)
    assert node.discovery.look_now(30)
    assert node.devices() == before
    marks.set(every[1])
    marks.stick(every[1].address, "the kernel does not finish it")
    assert wait_for(node.taints, "the taint") == {"gpu-vfio-0": [("gpu.nvidia.com/gpu-lost", "hung")]}


def test_a_gpu_that_an_administrator_gives_back_is_a_gpu_again(node: Node) -> None:
    before = set(node.devices())
    for driver in ("vfio-pci", "nvidia"):
        node.simulated.bind_driver(0, driver)
        assert node.discovery.look_now(30)
        node.devices()
    assert set(node.devices()) == before
    wait_for(lambda: not node.taints(), "no taint")


NEVER = 3600.0
"""Seconds between the view's looks, so that it looks only when a test asks."""


class Overtaken(Session):
    """A session. `before` happens before the next read of this kind (`inventory` or `health`), and `after` after it."""

    _kind = ""
    _before: Callable[[], None]
    _after: Callable[[], None]

    def overtake(self, kind: str, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Let the next read be overtaken."""
        self._kind, self._before, self._after = kind, before, after

    @property
    def was_overtaken(self) -> bool:
        """Whether that has happened."""
        return not self._kind

    def inventory(self) -> Inventory:
        return self._around("inventory", super().inventory)

    def gpus(self, asks: Mapping[str, GpuQuestion[T]], generation: int) -> dict[str, T | NvmlError | None]:
        read = super().gpus
        return self._around("health", lambda: read(asks, generation))

    def _around(self, kind: str, read: Callable[[], T]) -> T:
        if kind != self._kind:
            return read()
        self._before()
        found = read()
        self._after()
        self._kind = ""
        return found


def nothing() -> None:
    """Nothing happens."""


@pytest.fixture
def overtaken(tmp_path: Path) -> Iterator[Node]:
    """A node whose view looks only when a test asks, and then reads everything. Its session is Overtaken."""
    with looked_at(tmp_path, "h100x8", POLICY, poll=NEVER, everything=0, session_type=Overtaken) as node:
        yield node


def session_of(node: Node) -> Overtaken:
    """The session of the node."""
    assert isinstance(node.session, Overtaken)
    return node.session


def require_nothing_seen(node: Node, before: set[str]) -> None:
    """Everything is published once, and without a taint."""
    names = Counter(device.name for gpu in node.describe().gpus for device in gpu.devices)
    assert names == Counter(before)
    assert node.taints() == {}
    assert node.health.findings() == ()


def test_a_gpu_that_was_taken_since_the_last_look_is_not_lost(
    overtaken: Node, marks: VfioMarks, caplog: pytest.LogCaptureFixture
) -> None:
    node, mark, before = overtaken, mark_of(overtaken), set(overtaken.devices())
    marks.set(mark)
    node.simulated.bind_driver(0, "vfio-pci")
    node.wait_for_health()
    require_nothing_seen(node, before)
    node.simulated.bind_driver(0, "nvidia")
    marks.clear(mark.address)
    node.wait_for_health()
    require_nothing_seen(node, before)
    assert "fell off the bus" not in caplog.text


def test_a_gpu_that_was_given_back_since_the_last_look_is_not_lost(overtaken: Node, marks: VfioMarks) -> None:
    node, mark, before = overtaken, mark_of(overtaken), set(overtaken.devices())
    marks.set(mark)
    node.simulated.bind_driver(0, "vfio-pci")
    assert node.discovery.look_now(30)
    node.simulated.bind_driver(0, "nvidia")
    marks.clear(mark.address)
    node.wait_for_health()
    require_nothing_seen(node, before)
    assert node.discovery.look_now(30)
    require_nothing_seen(node, before)


@pytest.mark.parametrize("driver", [None, "vfio-pci"])
def test_a_gpu_that_is_given_back_while_the_inventory_is_read_is_published_once(
    overtaken: Node, marks: VfioMarks, driver: str | None
) -> None:
    node, mark, before = overtaken, mark_of(overtaken), set(overtaken.devices())
    session = session_of(node)
    marks.set(mark)
    node.simulated.bind_driver(0, driver)

    def give_back() -> None:
        node.simulated.bind_driver(0, "nvidia")
        marks.clear(mark.address)

    session.overtake("inventory", nothing, give_back)
    assert node.discovery.look_now(30)
    assert session.was_overtaken
    require_nothing_seen(node, before)


@pytest.mark.parametrize("kind", ["inventory", "health"])
@pytest.mark.parametrize("is_given_back", [True, False], ids=["and given back", "and kept"])
def test_a_gpu_that_is_taken_while_the_node_is_read_is_published_once(
    overtaken: Node, marks: VfioMarks, kind: str, is_given_back: bool
) -> None:
    """One that is given back during the same read has no mark before and after it."""
    node, mark, before = overtaken, mark_of(overtaken), set(overtaken.devices())
    session = session_of(node)

    def take() -> None:
        marks.set(mark)
        node.simulated.bind_driver(0, None)

    def give_back() -> None:
        node.simulated.bind_driver(0, "nvidia")
        marks.clear(mark.address)

    session.overtake(kind, take, give_back if is_given_back else nothing)
    assert node.discovery.look_now(30)
    wait_for(lambda: session.was_overtaken, "the read")
    require_nothing_seen(node, before)
    node.wait_for_health()
    require_nothing_seen(node, before)
