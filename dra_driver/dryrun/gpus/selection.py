# SPDX-License-Identifier: Apache-2.0
"""The nodes, GPUs and users that the flags of `dra-dryrun gpus` select."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...process.command import InputError
from ...process.words import listed
from ...scheduler.pods.objects import LabelSelector
from .model import DeviceConsumer, OtherDevices, UsedDevice, UsedGpu, UsedNode


@dataclass(frozen=True, slots=True)
class GpuSelection:
    """What the user asks for; all of it must hold. `node` and `gpu` are names, `gpu` also a number or a UUID.

    `pod` and `claim` are names, or namespace/name. `free` is a kind of device that must be available.
    """

    node: str = ""
    gpu: str = ""
    labels: LabelSelector | None = None
    namespace: str = ""
    pod: str = ""
    claim: str = ""
    unhealthy: bool = False
    free: str = ""

    @property
    def asks_for_users(self) -> bool:
        """Whether it selects by the users of devices."""
        return bool(self.namespace or self.pod or self.claim)

    @property
    def asks_for_gpus(self) -> bool:
        """Whether it asks for single GPUs, and not only for numbers of them."""
        return bool(self.node or self.asks_for_users or self.unhealthy)

    @property
    def selects_gpus(self) -> bool:
        """Whether it may select some GPUs of a node, and others not."""
        return bool(self.gpu or self.asks_for_users or self.unhealthy or self.free)

    def of(self, nodes: Sequence[UsedNode], where: str) -> list[UsedNode]:
        """The selected nodes with their selected GPUs and devices. `where` says where the nodes are from.

        Raises InputError for names that do not exist.
        """
        found = [node for node in nodes if self._selects_node(node)]
        if self.node and not found:
            names = [node.name for node in nodes if node.name]
            raise InputError(f"there is no node {self.node!r} with devices in {where}{_instead(self.node, names)}")
        if self.gpu and not any(_is_called(gpu, self.gpu) for node in found for gpu in node.gpus):
            names = [gpu.name for gpu in found[0].gpus]
            raise InputError(f"node {self.node} has no GPU {self.gpu!r}{_instead(self.gpu, names)}")
        if self.free:
            self._check_kind(nodes)
        if not self.selects_gpus:
            return found
        selected = (
            replace(node, gpus=tuple(self._gpus(node.gpus)), others=tuple(self._others(node.others))) for node in found
        )
        return [node for node in selected if node.gpus or node.others]

    def _selects_node(self, node: UsedNode) -> bool:
        if self.node and node.name != self.node:
            return False
        return self.labels is None or (bool(node.name) and self.labels.matches(node.labels))

    def _check_kind(self, nodes: Iterable[UsedNode]) -> None:
        gpus = [gpu for node in nodes for gpu in node.gpus]
        known = {kind for gpu in gpus for kind in gpu.free}
        known |= {device.kind for gpu in gpus for device in gpu.devices}
        if self.free not in known:
            raise InputError(f"--free: no GPU offers {self.free!r}{_instead(self.free, sorted(known))}")

    def _gpus(self, gpus: Iterable[UsedGpu]) -> Iterator[UsedGpu]:
        for gpu in gpus:
            if (
                (self.gpu and not _is_called(gpu, self.gpu))
                or (self.unhealthy and not gpu.is_unhealthy)
                or (self.free and self.free not in gpu.free)
            ):
                continue
            if not self.asks_for_users:
                yield gpu
            elif devices := tuple(self._devices(gpu.devices)):
                yield replace(gpu, devices=devices)

    def _others(self, others: Iterable[OtherDevices]) -> Iterator[OtherDevices]:
        if self.gpu or self.unhealthy or self.free:
            return
        for other in others:
            if devices := tuple(self._devices(other.devices)):
                yield replace(other, total=len(devices), devices=devices)

    def _devices(self, devices: Iterable[UsedDevice]) -> Iterator[UsedDevice]:
        for device in devices:
            if uses := tuple(use for use in device.uses if self._selects_use(use)):
                yield replace(device, uses=uses)

    def _selects_use(self, use: DeviceConsumer) -> bool:
        namespace = use.claim.partition("/")[0]
        return (
            self.namespace in ("", namespace)
            and (not self.claim or _is_named(use.claim, self.claim))
            and (not self.pod or any(_is_named(pod, self.pod) for pod in use.pods))
        )


def _is_called(gpu: UsedGpu, name: str) -> bool:
    """Whether `5`, `gpu-5` or a UUID is this GPU."""
    return name in (gpu.name, gpu.uuid) or (name.isdecimal() and gpu.name == f"gpu-{int(name)}")


def _is_named(name: str, wanted: str) -> bool:
    """Whether namespace/name is the wanted name, which may have no namespace."""
    return name == wanted if "/" in wanted else name.partition("/")[2] == wanted


def _instead(name: str, known: Sequence[str]) -> str:
    """What the user may mean instead of a name that does not exist."""
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f" (there {'is' if len(known) == 1 else 'are'} {listed(known) or 'none'})"
