# SPDX-License-Identifier: Apache-2.0
"""The policy file of a running process: read anew when it changes, the last good policy kept while it is wrong."""

import logging
import threading
from pathlib import Path

from .reading import PolicyError, load_policy
from .rules import NodePolicy

log = logging.getLogger(__name__)

_Version = tuple[int, int, int, int]


class PolicyFile:
    """The policy of one node. May be used by several threads.

    A change is noticed when `current` is called: a file written in place, replaced, or swapped behind a symbolic link
    as kubelet does with ConfigMaps.
    """

    def __init__(self, path: Path, node_name: str) -> None:
        self._path = path
        self._node_name = node_name
        self._lock = threading.Lock()
        self._version: _Version | None = None
        self._policy: NodePolicy | None = None
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the file cannot be used at the moment, None when `current` is what it says."""
        return self._problem

    def current(self) -> NodePolicy:
        """What the file says now, or said when it was last usable. Raises PolicyError when it never was."""
        with self._lock:
            version = self._look()
            if version is None or version != self._version or self._policy is None:
                self._read(version)
            if self._policy is None:
                raise PolicyError(self._problem or f"policy file {self._path} was never read")
            return self._policy

    def _look(self) -> _Version | None:
        """What changes when the content does; None when there is no file."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self, version: _Version | None) -> None:
        first = self._policy is None
        try:
            policy = load_policy(self._path).on_node(self._node_name)
        except PolicyError as error:
            self._report(str(error))
        else:
            if not first and (self._problem is not None or policy != self._policy):
                log.info("the policy changed", extra={"file": str(self._path)})
            self._policy, self._problem = policy, None
        self._version = version

    def _report(self, problem: str) -> None:
        if problem != self._problem and self._policy is not None:
            log.error("%s; the policy stays as it was", problem)
        self._problem = problem
