# SPDX-License-Identifier: Apache-2.0
"""MPS for claims: the files that describe the shares, and dra-mps, which serves them."""

import logging
from typing import Final

from dra_driver.errors import MpsError

from ...errors import PrepareError, SupervisorAwayError
from ...node.node import Node
from .client import SupervisorClient
from .shares import MpsShare, ShareFiles, ShareName
from .supervisor import Status

log = logging.getLogger(__name__)

_PROTOCOL_3_SINCE: Final = 615


class MpsServices:
    """The share files of the node, whose folder has the socket of dra-mps."""

    def __init__(self, node: Node) -> None:
        self.files = ShareFiles(node.folders.folder / "mps")
        self._supervisor = SupervisorClient(self.files.folder)

    def has(self, name: ShareName, share: MpsShare) -> bool:
        """Whether the share is served as wanted. Raises OSError."""
        if self.files.get(name) != share:
            return False
        try:
            status = self.statuses().get(name.server)
        except MpsError:
            return False
        return status is not None and not status.problem

    def provide(self, name: ShareName, share: MpsShare) -> None:
        """Let dra-mps serve the share. Raises PrepareError or OSError."""
        try:
            self.files.put(name, share)
            self._supervisor.settle(name.server)
        except SupervisorAwayError as error:
            raise PrepareError(
                f"MPS cannot be set up: {error}; enable it with the chart's value mps.enabled, or look at its pod"
            ) from None
        except MpsError as error:
            raise PrepareError(f"MPS cannot be set up: {error}") from None

    def release(self, name: ShareName) -> None:
        """Let dra-mps no longer serve the share. If dra-mps does not run, no daemon runs either: they end with it, and
        the next dra-mps removes what is left. Raises PrepareError or OSError.
        """
        self.files.remove(name)
        try:
            self._supervisor.settle(name.server)
        except SupervisorAwayError as error:
            log.warning("MPS of %s is ended when dra-mps is back: %s", name.server, error, extra={"gpu": name.gpu})
        except MpsError as error:
            raise PrepareError(f"MPS cannot be ended: {error}") from None

    def statuses(self) -> dict[str, Status]:
        """How the groups of devices are served. Raises MpsError."""
        return self._supervisor.statuses()


def knows_protocol_3(driver_version: str) -> bool:
    """Whether a driver version (such as `615.71.09`) supports namespaces."""
    major = driver_version.partition(".")[0]
    return major.isdigit() and int(major) >= _PROTOCOL_3_SINCE
