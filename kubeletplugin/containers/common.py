# SPDX-License-Identifier: Apache-2.0
"""The CDI spec of what every container needs: libraries, control nodes, sockets of daemons, hooks.

Every container asks for it by name, so none starts while it is missing or mounts something that is gone. It is written
when a driver is found, and again whenever the node is not as it was then: nvidia-persistenced came or went, a module
was loaded, somebody deleted the file.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from dra_driver import cdi

from ..hardware.targets import PrepareError

log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0


class CommonSpec:
    """The spec in `directory`, for the driver at `root`. Methods may be called from several threads.

    The hook program is `hook`, or else the first one below `hook_roots`, which may come later or go.
    """

    def __init__(
        self,
        directory: Path,
        root: cdi.DriverRoot,
        hook: cdi.HookTool | None = None,
        hook_roots: Sequence[cdi.Root] = (),
    ) -> None:
        self.directory = directory
        self.root = root
        self._given_hook = hook
        self._hook_roots = () if hook else tuple(hook_roots)
        self._hook = hook
        self._specs = cdi.SpecDirectory(directory, cdi.BASE_KIND)
        self._lock = threading.Lock()
        self._driver_version = ""
        self._seen: cdi.Fingerprint | None = None
        self._problem: str | None = None

    @property
    def hook(self) -> cdi.HookTool | None:
        """The hook program as of the last time that the spec was written."""
        return self._hook

    def write(self, driver_version: str) -> None:
        """Describe the node with this driver. Raises PrepareError without the driver's files, or OSError."""
        with self._lock:
            self._write(driver_version)

    def restore(self) -> None:
        """Write it again if somebody removed it. Raises as `write` does."""
        if self._driver_version and not self._is_there():
            with self._lock:
                if not self._is_there():
                    log.warning("the common CDI spec is gone", extra={"file": str(self._specs.file())})
                    self._write(self._driver_version)

    def keep(self) -> float:
        """Write it again if the node is not as it says; in how many seconds to look again. What is in the way is told
        by `problem`, and tried again.
        """
        try:
            self.restore()
            with self._lock:
                if self._driver_version and self._fingerprint(self._driver_version) != self._seen:
                    self._write(self._driver_version)
        except (PrepareError, OSError) as error:
            problem = f"the common CDI spec is out of date and cannot be written: {error}"
            if problem != self._problem:
                log.error("%s; trying again", problem)
            self._problem = problem
        else:
            self._problem = None
        return _LOOK_SECONDS

    def problem(self) -> str | None:
        """Why containers may not start with what the spec says; None when it was right at the last look."""
        return self._problem

    def remove_half_written(self) -> None:
        """Remove what somebody who was killed left half written. Nobody may be writing it meanwhile."""
        self._specs.remove_leftovers()

    def _is_there(self) -> bool:
        return self._specs.file().is_file()

    def _fingerprint(self, driver_version: str) -> cdi.Fingerprint:
        return cdi.fingerprint(self.root, driver_version, self._hook_roots)

    def _write(self, driver_version: str) -> None:
        seen = self._fingerprint(driver_version)  # before the look, so that a change meanwhile is seen the next time
        hook = self._given_hook or cdi.find_hook_tool(*self._hook_roots)
        try:
            found = cdi.common_edits(self.root, driver_version, hook)
        except cdi.DriverFilesError as error:
            raise PrepareError(str(error)) from None
        for warning in found.warnings:
            log.warning("%s", warning)
        file = self._specs.write(cdi.base_spec(found.edits))
        self._hook, self._driver_version, self._seen = hook, driver_version, seen
        log.info("wrote the common CDI spec", extra={"file": str(file), "mounts": len(found.edits.mounts)})
