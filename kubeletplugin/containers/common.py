# SPDX-License-Identifier: Apache-2.0
"""The common CDI spec, which every container with a GPU needs.

It has libraries, control nodes, sockets of daemons and hooks. Containers request it by name in addition
to the spec of their claim, so the specs of claims stay small. No container starts while the common spec is missing or
mounts a file that no longer exists. So it is written when an NVIDIA driver is found, and again whenever the node
changes: for example, nvidia-persistenced started or stopped, a module was loaded, or the spec was deleted.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kubeletplugin.containers import cdi

from ..errors import PrepareError
from .runtime import ContainerRuntime

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0
"""The pause between looks at the node."""


class CommonSpec:
    """The common spec in `directory`, for the driver at `root`. Methods may be called from several threads.

    The hook program is `hook`, or else the first one below `hook_roots`, which may appear or disappear at any time.
    `runtime` is the container runtime that reads the specs of this node.
    """

    def __init__(
        self,
        directory: Path,
        root: cdi.DriverRoot,
        hook: cdi.HookTool | None = None,
        hook_roots: Sequence[cdi.Root] = (),
        runtime: ContainerRuntime | None = None,
    ) -> None:
        self.directory = directory
        self.runtime = runtime or ContainerRuntime(lambda: "")
        self.root = root
        self._given_hook = hook
        self._hook_roots = () if hook else tuple(hook_roots)
        self._hook = hook
        self._specs = cdi.SpecDirectory(directory, cdi.BASE_KIND)
        self._lock = threading.Lock()
        self._driver_version = ""
        self._seen: cdi.Fingerprint | None = None
        self._for_old_runtime = False
        self._problem: str | None = None

    @property
    def hook(self) -> cdi.HookTool | None:
        """The hook program when the spec was last written."""
        return self._hook

    def write(self, driver_version: str) -> None:
        """Write the spec for this driver version. Raises PrepareError if files of the driver are missing, or
        OSError.
        """
        with self._lock:
            self._write(driver_version)

    def restore(self) -> None:
        """Write the spec again if it was removed. Raises the errors of `write`."""
        if self._driver_version and not self._is_there():
            with self._lock:
                if not self._is_there():
                    log.warning("the common CDI spec was deleted", extra={"file": str(self._specs.file())})
                    self._write(self._driver_version)

    def keep(self) -> float:
        """Write the spec again if the node has changed. Returns the seconds until the next check. A failure is reported
        by `problem`, and tried again.
        """
        try:
            self.restore()
            with self._lock:
                if self._driver_version and self._is_out_of_date():
                    self._write(self._driver_version)
        except (PrepareError, OSError) as error:
            problem = f"the common CDI spec is out of date and cannot be written: {error}"
            if problem != self._problem:
                log.error("%s; trying again", problem)
            self._problem = problem
        else:
            self._problem = None
        return LOOK_SECONDS

    def problem(self) -> str | None:
        """Why the spec is out of date, or None."""
        return self._problem

    def remove_half_written(self) -> None:
        """Remove an incomplete file of a process that was killed. No other process may be writing the spec."""
        self._specs.remove_leftovers()

    def _is_there(self) -> bool:
        return self._specs.exists()

    def _is_out_of_date(self) -> bool:
        seen = self._fingerprint(self._driver_version)
        return (seen, self.runtime.is_too_old) != (self._seen, self._for_old_runtime)

    def _fingerprint(self, driver_version: str) -> cdi.Fingerprint:
        return cdi.fingerprint(self.root, driver_version, self._hook_roots)

    def _write(self, driver_version: str) -> None:
        seen = self._fingerprint(driver_version)  # taken first, so that the next one shows changes in between
        hook = self._given_hook or cdi.find_hook_tool(*self._hook_roots)
        try:
            found = cdi.common_edits(self.root, driver_version, hook)
        except cdi.DriverFilesError as error:
            raise PrepareError(str(error)) from None
        for warning in found.warnings:
            log.warning("%s", warning)
        file = self._specs.write(self.runtime.readable(cdi.base_spec(found.edits)))
        self._hook, self._driver_version, self._seen = hook, driver_version, seen
        self._for_old_runtime = self.runtime.is_too_old
        log.info("wrote the common CDI spec", extra={"file": str(file), "mounts": len(found.edits.mounts)})
