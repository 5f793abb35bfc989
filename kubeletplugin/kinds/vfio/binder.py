# SPDX-License-Identifier: Apache-2.0
"""Changes of the driver of a GPU, with all functions of its slot.

`take` binds them to vfio drivers, `give_back` to the drivers that each of them had. Both look at sysfs only, and do
what is missing, so they can be repeated after an interruption anywhere. `await_nodes` follows `take`, when NVML may be
used again. The order inside of `take`: first everything is checked, then NVIDIA's driver releases the GPU, and only
then the other functions are changed. So if the GPU cannot be taken, nothing else has changed except `driver_override`.

`driver_override` makes the kernel bind a function to one driver only, also if it is probed again. It is set before a
function is unbound, and put back before the function is bound to its own driver again.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

from dra_driver.gpu.functions import (
    PciFunction,
    bound_driver,
    device_folder,
    group_gpus,
    group_obstacles,
    iommu_group,
    is_vfio,
    listed,
    obstacle_text,
    read_function,
    slot_functions,
    virtual_functions,
)
from dra_driver.gpu.pci import NVIDIA_DRIVER

from ...claims.call import Call
from ...containers import cdi
from ...errors import PrepareError
from ...host.modules import VfioModules
from ...host.openers import names_of, openers
from ...host.programs import HostPrograms, PersistenceModes
from ...node.node import Node
from .device import VfioKind
from .machine import Passthrough
from .writes import DeviceWrites, SysfsWrites

log = logging.getLogger(__name__)

RELEASE_SECONDS: Final = 8.0
"""How long this driver's own processes may take to release a GPU."""

_LOOK_SECONDS: Final = 0.05


class VfioBinder:
    """The GPUs of the node: its sysfs, and the nodes of VFIO and of NVIDIA's driver."""

    def __init__(self, node: Node) -> None:
        hardware = node.folders.hardware
        self.sys_root = hardware.sys_root
        self.root = hardware.machine_root
        self.modules = VfioModules(hardware.sys_root, HostPrograms(hardware.machine_root, hardware.enter_root))
        self.persistence = PersistenceModes(HostPrograms(hardware.driver_root, hardware.enter_root))
        self.writes = SysfsWrites(node.folders.folder / "vfio", node.times.write)
        self._dev_root = hardware.dev_root
        self._node_seconds = node.times.node

    def is_taken(self, gpu: VfioKind) -> bool:
        """Whether a virtual machine can get the GPU now."""
        return (
            self.group_node(gpu).exists()
            and is_vfio(bound_driver(self.sys_root, gpu.address))
            and not any(self._is_in_the_way(address) for address in self._group_functions(gpu.address))
        )

    def group_node(self, gpu: VfioKind) -> Path:
        """The device node of the GPU's group, which exists while one of its functions is bound to a vfio driver."""
        return self.root / f"dev/vfio/{gpu.iommu_group}"

    def functions(self, gpu: VfioKind) -> tuple[PciFunction, ...]:
        """The functions of the GPU's slot as they are now, the GPU first. Raises PrepareError if it is not on the
        bus.
        """
        try:
            return tuple(
                read_function(self.sys_root, address) for address in slot_functions(self.sys_root, gpu.address)
            )
        except OSError as error:
            raise PrepareError(f"{gpu} is not on the PCI bus any more: {error}") from None

    def check(self, gpu: VfioKind, others: Collection[VfioKind] = ()) -> None:
        """Raises PrepareError if the GPU must not be taken together with the `others`."""
        together = {other.address for other in others}
        staying = (address for address in group_gpus(self.sys_root, gpu.address) if address not in together)
        obstacles = (*group_obstacles(self.sys_root, gpu.address), *staying)
        if iommu_group(self.sys_root, gpu.address) != gpu.iommu_group:
            raise PrepareError(f"{gpu} is in another IOMMU group now: delete the pod to have it scheduled again")
        if obstacles:
            raise PrepareError(
                f"{gpu} cannot be given to a virtual machine: {obstacle_text(gpu.iommu_group, obstacles)}"
            )
        if count := virtual_functions(self.sys_root, gpu.address):
            raise PrepareError(
                f"{gpu} cannot be given to a virtual machine: {count} SR-IOV virtual functions of it are enabled; write"
                f" 0 to {device_folder(self.sys_root, gpu.address) / 'sriov_numvfs'} when nothing uses them"
            )
        driver = bound_driver(self.sys_root, gpu.address)
        if not (driver is None or driver == NVIDIA_DRIVER or is_vfio(driver)):
            raise PrepareError(f"{gpu} is bound to the kernel driver {driver}, which this driver does not change")

    def wanted(self, functions: tuple[PciFunction, ...]) -> tuple[PciFunction, ...]:
        """The functions as a virtual machine needs them. Those on a vfio driver stay as they are. Loads kernel modules.
        Raises PrepareError or OSError.
        """

        def bound_to_vfio(function: PciFunction) -> PciFunction:
            if is_vfio(function.driver):
                return function
            driver = self.modules.load(self.modules.choose(function.address))
            return replace(function, driver=driver, override=driver)

        return tuple(bound_to_vfio(function) for function in functions)

    def take(
        self,
        gpu: VfioKind,
        wanted: tuple[PciFunction, ...],
        call: Call,
        others: Collection[VfioKind] = (),
    ) -> None:
        """Bind all functions of the GPU as `wanted`, unless it or one of the `others`, which will follow, is in use.
        `call` is checked before each change. Raises PrepareError or OSError.
        """
        nodes = [
            (member, self._nvidia_nodes(member))
            for member in (gpu, *others)
            if bound_driver(self.sys_root, member.address) == NVIDIA_DRIVER
        ]
        if openers(chain.from_iterable(own for _, own in nodes)):  # one look at all processes, if nothing is in use
            for member, own in nodes:
                self._require_unused(member, own, "they use it as a GPU of this node")
        with self.writes.of(gpu.address) as writes:
            for function in wanted:
                self._override(writes, function, call)
            for function in wanted:
                if bound_driver(self.sys_root, function.address) != function.driver:
                    self._unbind(writes, function.address, call)
            for function in wanted:
                self._bind(writes, function, call)

    def await_interface(self, access: Passthrough) -> None:
        """Wait for the node of the interface, if a container needs it. It belongs to no GPU, so without it no GPU need
        be taken. Raises PrepareError.
        """
        dev = cdi.Root(self.root)
        nodes = cdi.interface_nodes(dev, prefer_iommufd=access.prefer_iommufd, api_device=access.api_device)
        self._await(lambda: cdi.require_nodes(dev, nodes))

    def await_nodes(self, gpu: VfioKind, access: Passthrough) -> None:
        """Wait for the nodes of a GPU that was taken. Raises PrepareError."""
        node, dev = self.group_node(gpu), cdi.Root(self.root)
        folder = device_folder(self.sys_root, gpu.address)

        def there() -> None:
            if not node.exists():
                raise PrepareError(f"{gpu} is bound to a vfio driver, but there is no {node}: is udev running?")
            cdi.require_nodes(
                dev,
                cdi.vfio_nodes(
                    folder, dev, gpu.iommu_group, prefer_iommufd=access.prefer_iommufd, api_device=access.api_device
                ),
            )

        self._await(there)

    def give_back(self, gpu: VfioKind, before: tuple[PciFunction, ...], call: Call) -> None:
        """Bind all functions as they were `before`. A function that is not on the bus any more is left out. So is a
        function that is bound to a third driver now. Raises PrepareError or OSError.
        """
        with self.writes.of(gpu.address) as writes:
            changed = [function for function in before if self._is_ours(function)]
            if any(bound_driver(self.sys_root, function.address) != function.driver for function in changed):
                self._require_unused(gpu, self._vfio_nodes(gpu), "the virtual machine still runs")
            for function in changed:
                self._override(writes, function, call)
                if bound_driver(self.sys_root, function.address) == function.driver:
                    continue
                self._unbind(writes, function.address, call)
                if function.driver is None or self._driver_folder(function.driver).is_dir():
                    self._bind(writes, function, call)
                else:
                    text = "%s stays without a driver: its driver %s is not loaded any more, and binds it when loaded"
                    log.warning(text, function.address, function.driver, extra={"gpu": gpu.gpu_uuid})

    # Parts

    def _is_ours(self, before: PciFunction) -> bool:
        """Whether a function may be changed back: it is where it was, or on a vfio driver, or on none."""
        if not device_folder(self.sys_root, before.address).exists():
            return False
        driver = bound_driver(self.sys_root, before.address)
        return driver is None or driver == before.driver or is_vfio(driver)

    def _group_functions(self, address: str) -> Iterator[str]:
        """The functions of the GPU's slot in its IOMMU group."""
        group = iommu_group(self.sys_root, address)
        for function in slot_functions(self.sys_root, address):
            if iommu_group(self.sys_root, function) == group:
                yield function

    def _is_in_the_way(self, address: str) -> bool:
        driver = bound_driver(self.sys_root, address)
        return driver is not None and not is_vfio(driver)

    def _require_unused(self, gpu: VfioKind, nodes: tuple[Path, ...], meaning: str) -> None:
        """Raises PrepareError if processes have the GPU open. Does not wait for them, because kubelet tries again."""
        if found := openers(nodes):
            raise PrepareError(f"{gpu} is in use by {names_of(found)}: {meaning}; end them, and kubelet tries again")

    def _nvidia_nodes(self, gpu: VfioKind) -> tuple[Path, ...]:
        """The device node of a GPU that is bound to NVIDIA's driver."""
        return tuple(root / f"dev/nvidia{gpu.minor}" for root in (self.root, self._dev_root) if gpu.minor >= 0)

    def _vfio_nodes(self, gpu: VfioKind) -> tuple[Path, ...]:
        """The nodes of all devices of the GPU's group, because a virtual machine has the group as a whole."""
        members = device_folder(self.sys_root, gpu.address) / "iommu_group/devices"
        names = (name for member in listed(members) for name in listed(members / member / "vfio-dev"))
        return (self.group_node(gpu), *(self.root / "dev/vfio/devices" / name for name in names))

    def _override(self, writes: DeviceWrites, function: PciFunction, call: Call) -> None:
        if read_function(self.sys_root, function.address).override != function.override:
            call.check()
            file = device_folder(self.sys_root, function.address) / "driver_override"
            writes.write(file, function.override)

    def _unbind(self, writes: DeviceWrites, address: str, call: Call) -> None:
        driver = bound_driver(self.sys_root, address)
        if driver is not None:
            call.check()
            writes.write(self._driver_folder(driver) / "unbind", address)

    def _bind(self, writes: DeviceWrites, function: PciFunction, call: Call) -> None:
        address, driver = function.address, function.driver
        if driver is None or bound_driver(self.sys_root, address) == driver:
            return
        call.check()
        writes.write(self._driver_folder(driver) / "bind", address)
        if (bound := bound_driver(self.sys_root, address)) != driver:
            raise PrepareError(f"{address} was bound to {driver}, and is bound to {bound or 'no driver'} now")

    def _driver_folder(self, driver: str) -> Path:
        return self.sys_root / "bus/pci/drivers" / driver

    def _await(self, check: Callable[[], None]) -> None:
        """Wait until `check` raises no error. Raises PrepareError with its last error."""
        deadline = time.monotonic() + self._node_seconds
        while True:
            try:
                check()
            except (PrepareError, cdi.DriverFilesError) as error:
                if time.monotonic() >= deadline:
                    raise PrepareError(str(error)) from None
            else:
                return
            time.sleep(_LOOK_SECONDS)
