# SPDX-License-Identifier: Apache-2.0
"""The cgroups of containers and pods, below the mount of cgroup version 2.

kubelet names a pod's cgroup after the UID of the pod: `pod<uid>`, and with systemd `kubepods-…-pod<uid>.slice`, with
`_` instead of `-` in the UID. The container's cgroup is below it, but not always directly: crun adds one more level.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ...errors import LimitError

_POD = re.compile(r"(?:.*-)?pod[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}(?:\.slice)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ContainerCgroup:
    """The cgroups of a container and of its pod, as paths from the root of the hierarchy."""

    path: str
    pod: str


class Cgroups:
    """The hierarchy mounted at `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def container(self, path: str) -> ContainerCgroup:
        """The cgroup with this path, as in /proc/PID/cgroup. Raises LimitError if it is not one of a pod's container,
        or does not exist.
        """
        steps = path.split("/")
        if steps[0] or any(step in ("", ".", "..") for step in steps[1:]) or "\0" in path:
            raise LimitError(f"{path!r} is not the path of a cgroup below the root of this node")
        names = [index for index, step in enumerate(steps) if _POD.fullmatch(step)]
        if not names or names[-1] == len(steps) - 1:
            raise LimitError(
                f"the cgroup {path} is not below the cgroup of a pod, so memory cannot be limited for the pod as a"
                " whole; kubelet must run with --cgroups-per-qos"
            )
        found = ContainerCgroup(path, "/".join(steps[: names[-1] + 1]))
        if not self.exists(path):
            raise LimitError(
                f"there is no cgroup {self.folder(path)}: mount the host's /sys/fs/cgroup into the plugin's container"
            )
        return found

    def folder(self, path: str) -> str:
        """The full path of a cgroup's folder."""
        return f"{self._root}{path}"

    def exists(self, path: str) -> bool:
        """Whether there is such a cgroup."""
        return os.path.isdir(self.folder(path))  # noqa: PTH112 - a path that is too long is no error

    def is_alive(self, path: str) -> bool:
        """Whether a process is in the cgroup or below it. True if that cannot be found out."""
        try:
            events = Path(self.folder(path), "cgroup.events").read_text(encoding="utf-8")
        except OSError:
            return self.exists(path)
        return "populated 0" not in events.splitlines()

    def nests(self, path: str) -> bool:
        """Whether the limit of this cgroup, which was set through NVML, also bounds cgroups below it that have limits
        of their own. It does if the kernel enforces it (`dmem`), not if the driver accounts for itself (`misc`).
        """
        try:
            limits = Path(self.folder(path), "dmem.max").read_text(encoding="utf-8")
        except OSError:
            return False
        return any(line.split()[-1:] not in ([], ["max"]) for line in limits.splitlines())
