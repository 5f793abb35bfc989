# SPDX-License-Identifier: Apache-2.0
"""Limits of memory in the running plugin: the hook program on the host, its socket, and the upkeep."""

import logging
from pathlib import Path

from dra_driver.process.containment import Count, contained

from ...containers.limits import LimitFiles
from ...errors import LimitError, NewerVersionError
from ...node.gpus import GpuAccess, Gpus
from ...records.files import State
from ...records.format import Records
from .cgroups import Cgroups
from .limiter import TIDY_SECONDS, Limit, Limiter, LimitOf
from .server import HookServer

log = logging.getLogger(__name__)


class LimitService:
    """Serves the hook program, once `program` was copied to the host. If neither this installation nor the host has the
    program, no container has limits, and the service does nothing.
    """

    def __init__(
        self, files: LimitFiles, program: Path, cgroups: Path, records: Records, access: GpuAccess, count: Count
    ) -> None:
        self._limiter: Limiter | None = None
        self._server: HookServer | None = None
        self._count = count
        if program.is_file():
            try:
                files.install(program)
            except OSError as error:
                log.error("the hook program for limits of memory cannot be copied to %s: %s", files.program, error)
        if files.program.exists():
            limits = recorded_limits(records)
            limiter = self._limiter = Limiter(limits, access.current, access.calls, Cgroups(cgroups), files)
            self._server = HookServer(files.socket, limiter.apply, count)
            access.attend(lambda gpus: self._attend(limiter, gpus))

    def start(self) -> None:
        """Listen for the hook program. Raises SocketError."""
        if self._server is not None:
            self._server.start()

    def stop(self) -> None:
        """Accept no more requests."""
        if self._server is not None:
            self._server.stop()

    def restore(self, gpus: Gpus) -> None:
        """Set all limits again. Raises OSError."""
        if self._limiter is not None:
            self._limiter.restore(gpus)

    def _attend(self, limiter: Limiter, gpus: Gpus) -> float:
        with contained("tidy limits of memory", "the node", self._count):
            return limiter.attend(gpus)
        return TIDY_SECONDS


def recorded_limits(records: Records) -> LimitOf:
    """The limits of the devices of prepared claims."""

    def limit_of(claim: str, device: str) -> Limit:
        try:
            record = records.read(claim)
        except (OSError, ValueError, NewerVersionError) as error:
            raise LimitError(
                f"the claim with UID {claim} has no record on this node that can be read: {error}"
            ) from None
        found = next((one for one in record.plan.devices if one.cdi_name == device), None)
        if record.state is not State.PREPARED or found is None or found.memory_limit is None:
            raise LimitError(f"{record.plan.claim} is not prepared with the device {device} and a limit of its memory")
        return Limit(found.target.gpu_uuid, found.memory_limit)

    return limit_of
