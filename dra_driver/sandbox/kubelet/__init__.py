# SPDX-License-Identifier: Apache-2.0
"""A stand-in for kubelet's part in Dynamic Resource Allocation.

It finds plugins by their registration sockets, prepares and unprepares the claims of the node's pods, resolves CDI
devices like a container runtime, and reports pods as running. Containers run no programs, except the programs
of `KubeletOptions.programs`. It is written from the published protocol and from the behaviour of kubelet 1.36. It
shares the API client, workers and back-off with the plugin, but no code of the protocol between them, so that each of
them tests the other.

    options = KubeletOptions("node-1", Path("/tmp/node-1/kubelet"), Path("/tmp/node-1/cdi"))
    with Kubelet(options, KubernetesCluster(client, node_name="node-1")) as kubelet:
        kubelet.wait_registered("gpu.nvidia.com")
        kubelet.wait_pod_running("default", "pod-1")
        print(kubelet.container("default", "pod-1", "ctr").env)

The modules, from the lowest layer: `wire` (messages), `model` and `state` (pods, claims and the checkpoint), `cdi`,
`programs` and `runtime` (containers), `plugin`, `health` and `plugins` (the plugins), `apiclient` (the API server),
`manager` (claims), `podstatus` and `pods` (pods), `node` (the Node object), `kubelet` (all of it).

Every thread is a `Worker`. Watches and pauses are those of all processes of the project, as in
`dra_driver.sandbox.loop`.
"""

from .apiclient import KubernetesCluster
from .kubelet import Kubelet
from .options import BackoffRange, KubeletOptions, Periods
from .programs import Launch
from .runtime import ContainerSpec
from .wire import ClaimRef, Health

__all__ = [
    "BackoffRange",
    "ClaimRef",
    "ContainerSpec",
    "Health",
    "Kubelet",
    "KubeletOptions",
    "KubernetesCluster",
    "Launch",
    "Periods",
]
