# SPDX-License-Identifier: Apache-2.0
"""What a stand-in kubelet is told: its node, its directories, and every period it waits.

The defaults are kubelet's own; tests shorten the periods so that nothing waits for long.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from .cdi import VERSIONS
from .runtime import DeviceStat, stat_device
from .wire import HEALTH_SERVICES, PLUGIN_SERVICES


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow: `first` seconds, each next one `factor` times as long, at most `limit`."""

    first: float
    limit: float
    factor: float = 2.0

    def delay(self, failures: int) -> float:
        """How long to wait after that many failures in a row (at least one)."""
        # the exponent is bounded because a float overflows long before a retry counter does
        return min(self.limit, self.first * self.factor ** min(failures - 1, 64))


@dataclass(frozen=True, slots=True)
class Periods:
    """Every wait, in seconds."""

    scan: float = 0.05
    """Between two looks at the registration directory (kubelet: inotify and a loop of 1 s)."""
    dial: float = 10.0
    get_info: float = 1.0
    notify: float = 5.0
    call: float = 45.0
    """The longest that one NodePrepareResources or NodeUnprepareResources may take."""
    register_retry: Backoff = Backoff(0.5, 122.0)
    reconnect: Backoff = Backoff(1.0, 120.0, 1.6)
    health_retry: float = 5.0
    health_timeout: float = 30.0
    """How long a health report counts when it does not say."""
    wipe_delay: float = 30.0
    """From the last connected plugin of a driver going to its ResourceSlices being deleted."""
    wipe_retry: Backoff = Backoff(1.0, 300.0)
    pod_resync: float = 60.0
    """Between two looks at a pod without news of it, and after a failed prepare; up to half as much again."""
    container_retry: float = 10.0
    unprepare_retry: float = 10.0
    """After a failed unprepare or container creation; up to half as much again."""
    claim_reconcile: float = 60.0
    watch_retry: Backoff = Backoff(0.2, 30.0)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one node's kubelet.

    `root` stands for /var/lib/kubelet; kubelet creates it. `cdi_dirs` are in ascending priority, like containerd's
    `cdi_spec_dirs`. `services` and `health_services` are the gRPC services that this kubelet knows; an older kubelet
    knows fewer. `device_stat` returns the type and numbers of device nodes whose CDI spec does not give them.
    """

    node_name: str
    root: Path
    cdi_dirs: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    periods: Periods = Periods()
    services: tuple[str, ...] = tuple(PLUGIN_SERVICES)
    health_services: tuple[str, ...] = tuple(HEALTH_SERVICES)
    cdi_version: str = VERSIONS[-1]
    """The newest cdiVersion that the container runtime knows: 0.8.0 is containerd 1.7, 1.0.0 is 2.0."""
    device_stat: Callable[[str], DeviceStat] = stat_device

    def __post_init__(self) -> None:
        if self.cdi_version not in VERSIONS:
            raise ValueError(f"cdi_version {self.cdi_version!r} is not one of {', '.join(VERSIONS)}")

    @property
    def registration_dir(self) -> Path:
        """Where plugins put their registration sockets."""
        return self.root / "plugins_registry"

    @property
    def plugins_dir(self) -> Path:
        """Where plugins keep their own directories and service sockets."""
        return self.root / "plugins"

    @property
    def checkpoint(self) -> Path:
        """The claims that this node has prepared or is about to."""
        return self.root / "dra_manager_state"
