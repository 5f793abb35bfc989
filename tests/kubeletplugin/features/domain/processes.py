# SPDX-License-Identifier: Apache-2.0
"""The plugin as a process that serves both drivers, on a node of a rack. Calls go to the second driver."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dra_driver.domains.names import DRIVER
from kubeletplugin.features.domain.folder import DomainFolder
from kubeletplugin.kubelet.instance import socket_paths
from tests.faults.processes import KillablePlugin

from .domains import HARDWARE, NAMESPACE, Left, install_imex, left


class DomainProcess(KillablePlugin):
    """A plugin that can be killed at every change of a file of the second driver. With `uid` it is an instance."""

    def __init__(self, folder: Path, kubeconfig: Path, *flags: str, uid: str = "") -> None:
        given = (*flags, *([f"--instance-uid={uid}"] if uid else []))
        super().__init__(folder, kubeconfig, "--compute-domains", f"--namespace={NAMESPACE}", *given, node=HARDWARE)
        install_imex(self.node)
        self.uid = uid
        self.domains = DomainFolder(folder / "plugins" / DRIVER)
        self.sockets_of_gpus = (self.service, self.registration)
        sockets = socket_paths(self.domains.path, folder / "plugins_registry", uid, DRIVER)
        self.service, self.registration = sockets.service, sockets.registration

    @property
    def watched(self) -> tuple[Path, ...]:
        return (self.domains.path,)

    def beside(self, uid: str) -> "DomainProcess":
        return DomainProcess(self.folder, self.kubeconfig, uid=uid)

    def parts(self) -> Left:
        """What claims have on the node."""
        return left(self.domains.path, self.cdi)

    def goes_well(self, verb: str, *refs: Any) -> None:
        """Make a call that has no error."""
        answer = self.call(verb, refs, "v1")(timeout=60)
        assert {one.error for one in answer.claims.values()} == {""}


@contextlib.contextmanager
def domain_process(kubeconfig: Path, *flags: str, uid: str = "") -> Iterator[DomainProcess]:
    """A node whose plugin is not started yet; whatever runs at the end is killed."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        plugin = DomainProcess(Path(name), kubeconfig, *flags, uid=uid)
        try:
            yield plugin
        finally:
            plugin.kill()
