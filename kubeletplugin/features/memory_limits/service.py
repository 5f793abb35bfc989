# SPDX-License-Identifier: Apache-2.0
"""Limits of memory in the running plugin: the hook program on the host, its socket, and the upkeep."""

import logging

from dra_driver.process.containment import Count, contained

from ...claims.files import RecordFiles
from ...claims.model import Record, State
from ...errors import LimitError, NewerVersionError
from ...node.node import Node
from .files import limit_files
from .limiter import TIDY_SECONDS, Limit, Limiter, LimitOf
from .server import HookServer
from .step import MemoryLimitStep

log = logging.getLogger(__name__)


class LimitService:
    """Serves the hook program, once the program of this installation was copied to the host. If neither has it, no
    container has limits, and the service does nothing. `records` are those of the node's claims.
    """

    def __init__(self, node: Node, records: RecordFiles[Record], count: Count) -> None:
        self._node = node
        self._limiter = Limiter(node, recorded_limits(records))
        self._server = HookServer(node.of(limit_files).socket, self._limiter.apply, count)
        self._count = count
        self._has_program = False

    def install(self) -> None:
        """Copy the program to the host, if this installation has it, and keep limits from now on. Before the driver is
        looked for.
        """
        files, program = self._node.of(limit_files), self._node.folders.hardware.limits_program
        if program.is_file():
            try:
                files.install(program)
            except OSError as error:
                log.error("the hook program for limits of memory cannot be copied to %s: %s", files.program, error)
        self._has_program = files.program.exists()
        if self._has_program:
            self._node.access.attend(self._attend)

    def start(self) -> None:
        """Listen for the hook program. Raises SocketError."""
        if self._has_program:
            self._server.start()

    def stop(self) -> None:
        """Accept no more requests."""
        if self._has_program:
            self._server.stop()

    def restore(self) -> None:
        """Set all limits again. Raises OSError."""
        if self._has_program:
            self._limiter.restore()

    def _attend(self) -> float:
        with contained("tidy limits of memory", "the node", self._count):
            return self._limiter.attend()
        return TIDY_SECONDS


def recorded_limits(records: RecordFiles[Record]) -> LimitOf:
    """The limits of the devices of prepared claims."""

    def limit_of(claim: str, device: str) -> Limit:
        try:
            record = records.read(claim)
        except (OSError, ValueError, NewerVersionError) as error:
            raise LimitError(
                f"the claim with UID {claim} has no record on this node that can be read: {error}"
            ) from None
        steps = (step for step in record.plan.steps if isinstance(step, MemoryLimitStep))
        found = next((step for step in steps if step.cdi_name == device), None)
        if record.state is not State.PREPARED or found is None:
            raise LimitError(f"{record.plan.claim} is not prepared with the device {device} and a limit of its memory")
        return Limit(found.gpu_uuid, found.mebibytes)

    return limit_of
