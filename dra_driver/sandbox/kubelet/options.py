# SPDX-License-Identifier: Apache-2.0
"""The options of a stand-in kubelet: its node, its directories, and all of its periods.

The defaults are kubelet's. Tests use shorter periods.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path

from dra_driver.process.backoff import Backoff

from .programs import Programs
from .wire import HEALTH_SERVICES, PLUGIN_SERVICES


@dataclass(frozen=True, slots=True)
class BackoffRange:
    """The shortest and the longest pause between attempts, in seconds."""

    first: float
    longest: float

    def backoff(self) -> Backoff:
        """Return a new sequence of pauses, which begins with the shortest one."""
        return Backoff(self.first, self.longest)


@dataclass(frozen=True, slots=True)
class Periods:
    """All periods in seconds."""

    scan: float = 0.05
    """Between two scans of the registration directory. Kubelet uses inotify and a loop of 1 s."""
    get_info: float = 1.0
    notify: float = 5.0
    call: float = 45.0
    """The timeout of NodePrepareResources and NodeUnprepareResources."""
    register_retry: BackoffRange = BackoffRange(0.5, 122.0)
    reconnect: BackoffRange = BackoffRange(1.0, 120.0)
    """gRPC makes these pauses itself. They grow by its factor of 1.6."""
    health_retry: float = 5.0
    health_timeout: float = 30.0
    """How long a health report without a timeout is valid."""
    wipe_delay: float = 30.0
    """From the disconnection of a driver's last plugin to the deletion of its ResourceSlices."""
    wipe_retry: BackoffRange = BackoffRange(1.0, 300.0)
    pod_resync: float = 60.0
    """Between two checks of a pod without changes, and after a failed prepare."""
    container_retry: float = 10.0
    unprepare_retry: float = 10.0
    claim_reconcile: float = 60.0
    lease_renewal: float = 10.0
    watch_retry: BackoffRange = BackoffRange(0.2, 30.0)
    program_restart: BackoffRange = BackoffRange(10.0, 300.0)
    """Before the second and later restarts of a container's program."""
    longest_probe: float = 10.0
    """A readiness probe with a longer period is made this often."""


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """Options of one node's kubelet.

    `root` stands for /var/lib/kubelet; kubelet creates it. `cdi_dir` is the only directory of CDI specs. `services` and
    `health_services` are the gRPC services that this kubelet knows; an older kubelet knows fewer.
    """

    node_name: str
    root: Path
    cdi_dir: Path
    version: str = "v1.36.2"
    """The version in the status of the Node."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the Node, beside those of every kubelet."""
    periods: Periods = Periods()
    services: tuple[str, ...] = tuple(PLUGIN_SERVICES)
    health_services: tuple[str, ...] = tuple(HEALTH_SERVICES)
    plain_files: bool = False
    """Whether regular files count as device nodes, for a host that does not allow device nodes."""
    programs: Programs | None = None
    """Starts programs in containers. None: containers run no programs."""
    pod_network: IPv4Network | None = None
    """The addresses of pods, which must be local ones. None: pods have no addresses."""

    @property
    def registration_dir(self) -> Path:
        """The directory of the plugins' registration sockets."""
        return self.root / "plugins_registry"

    @property
    def plugins_dir(self) -> Path:
        """The directory of the plugins' own directories and service sockets."""
        return self.root / "plugins"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint: the claims that this node has prepared or is about to prepare."""
        return self.root / "dra_manager_state"
