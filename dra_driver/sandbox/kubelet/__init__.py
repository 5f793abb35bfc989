# SPDX-License-Identifier: Apache-2.0
"""A kubelet's part in Dynamic Resource Allocation, without the rest of a node.

It finds plugins by their registration sockets, prepares and unprepares the claims of the pods bound to
its node, resolves CDI devices as a container runtime does, and reports pods running; no container runs.
It is written from the published protocol and kubelet's behaviour (Kubernetes 1.36), and shares no code
with the plugin it talks to: what works here speaks kubelet's language.

    options = Options("node-1", Path("/tmp/node-1/kubelet"), cdi_dirs=(Path("/tmp/node-1/cdi"),))
    with Kubelet(options, KubernetesCluster(kubeconfig, node_name="node-1")) as kubelet:
        kubelet.wait_registered("gpu.nvidia.com")
        kubelet.wait_pod_running("default", "pod-1")
        print(kubelet.container("default", "pod-1", "ctr").env)

From the ground up: `wire` (messages), `registration` (decisions), `state` (decisions about claims, and the checkpoint),
`plugin`, `plugins`, `health` and `watcher` (the plugins' side), `manager` (claims), `cdi`, `oci` and `runtime`
(containers), `podstatus` and `pods` (pods), `kubelet` (all of it).
"""

from .apiclient import Cluster, KubeletApiError, KubernetesCluster
from .cdi import CdiError, DeviceNode, Hook, Mount
from .health import DeviceHealth
from .journal import Entry, Journal
from .kubelet import Kubelet
from .options import Backoff, Options, Periods
from .plugin import Registration
from .runtime import ContainerSpec, DeviceStat, OciDevice, stat_device, stat_stand_in
from .state import CheckpointError, ClaimError, ClaimInfo
from .wire import ClaimAnswer, ClaimRef, Health, PreparedDevice

__all__ = [
    "Backoff",
    "CdiError",
    "CheckpointError",
    "ClaimAnswer",
    "ClaimError",
    "ClaimInfo",
    "ClaimRef",
    "Cluster",
    "ContainerSpec",
    "DeviceHealth",
    "DeviceNode",
    "DeviceStat",
    "Entry",
    "Health",
    "Hook",
    "Journal",
    "Kubelet",
    "KubeletApiError",
    "KubernetesCluster",
    "Mount",
    "OciDevice",
    "Options",
    "Periods",
    "PreparedDevice",
    "Registration",
    "stat_device",
    "stat_stand_in",
]
