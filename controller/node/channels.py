# SPDX-License-Identifier: Apache-2.0
"""The devices of the driver compute-domain.nvidia.com on this node: its IMEX channel and the place of its daemon.

They follow from the fabric that the node's GPUs have joined, the channels that the NVIDIA driver has registered, and
the domain that the node is in. The plugin writes the domain's UID to a file in its folder before it prepares the first
claim of the domain, and removes the file after the last one.
"""

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from dra_driver.domains import names as domain_names
from dra_driver.domains.devices import describe_channels
from dra_driver.domains.names import CLIQUE_ATTRIBUTE
from dra_driver.errors import NotAFileError
from dra_driver.gpu.devices import Description
from dra_driver.gpu.facts import Inventory
from dra_driver.gpu.imex import fabric_of, read_channels
from dra_driver.kube.resource import ResourceSlice
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.process.files import read_file
from dra_driver.process.worker import Worker

log = logging.getLogger(__name__)

DOMAIN_FILE: Final = Path(domain_names.DRIVER, domain_names.DOMAIN_FILE)
"""The file with the domain of the node, below kubelet's folder for plugins."""
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,63}")
_LOOK_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 10.0


class DomainFile:
    """The file in which the plugin writes the domain of the node: `uid`, or an empty text. Calls `on_change` between
    `start` and `stop` when it is another one. A look costs one small read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.on_change: Callable[[], None] = lambda: None
        self._wrong = ""
        self.uid = self._read()
        self._worker = Worker("watch domain file", self._look, interval=_LOOK_SECONDS)

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._worker.stop(_STOP_SECONDS)

    def _look(self) -> None:
        found = self._read()
        if found != self.uid:
            self.uid = found
            self.on_change()

    def _read(self) -> str:
        """The UID in the file, or an empty text if there is no file, or something else in it."""
        try:
            text = read_file(self._path).decode(errors="replace").strip()
        except FileNotFoundError:
            text = ""
        except (OSError, NotAFileError) as error:
            return self._ignored(str(error))
        return text if not text or _UID.fullmatch(text) else self._ignored(f"{self._path} has no UID: {text[:100]!r}")

    def _ignored(self, problem: str) -> str:
        if problem != self._wrong:
            log.warning("the node's ComputeDomain is unknown and not published: %s", problem)
            self._wrong = problem
        return ""


class ChannelDevices:
    """The devices to publish. `inventory` raises NvmlError until the GPUs were read. `proc_root` has the /proc of the
    NVIDIA driver. `domain` returns the UID of the node's domain, or an empty text.
    """

    def __init__(self, inventory: Callable[[], Inventory], proc_root: Path, domain: Callable[[], str]) -> None:
        self._inventory = inventory
        self._proc_root = proc_root
        self._domain = domain
        self._clique = ""
        self._told = ""

    def adopt(self, slices: Iterable[ResourceSlice]) -> None:
        """Take over the clique that an earlier process published."""
        devices = (device for slice_ in slices for device in slice_.devices)
        cliques = (device.attributes.get(CLIQUE_ATTRIBUTE) for device in devices)
        self._clique = next((clique for clique in cliques if isinstance(clique, str)), "")

    def describe(self, features: SliceFeatures) -> Description:
        """The devices for an API server with these features; none if the node has no channels, which is no failure.
        Raises NvmlError and ImexFilesError.
        """
        inventory = self._inventory()
        if read_channels(self._proc_root) is None:
            self._tell("the NVIDIA driver has no IMEX channels, so no channel is published")
            return Description(())
        fabric = fabric_of(inventory)
        unknown = inventory.failures and not inventory.gpus
        if unknown or fabric.problem:
            # Whoever is in a domain stays in its clique while the driver or Fabric Manager is restarted.
            fabric = replace(fabric, clique=self._clique)
        self._clique = fabric.clique
        self._tell(fabric.problem)
        return describe_channels(fabric, len(inventory.gpus), self._domain(), features)

    def _tell(self, text: str) -> None:
        if text and text != self._told:
            log.warning("%s", text)
        self._told = text
