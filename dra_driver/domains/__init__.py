# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains: nodes whose GPUs share memory over NVLink, for as long as a workload needs them.

A ComputeDomain is an object in a workload's namespace. Each pod of the workload claims a channel. On each node of such
a pod, an IMEX daemon runs, and the daemons of one clique (GPUs on one NVLink fabric) connect to each other. This
package has what the cluster controller, the plugin, the daemon and dry runs share: `names`, `objects` (the two custom
resources), `template` (the ResourceClaimTemplate for the workload), `devices` (the channel and the daemon as DRA
devices), and `mistakes` (configurations that a user should not write). `daemon` is the process dra-imex-daemon.

Group, names, labels and classes are those of NVIDIA's DRA driver, so that manifests and tools work unchanged.
"""

from typing import Final

from .. import DRIVER_NAME

DRIVER: Final = "compute-domain.nvidia.com"
"""The name of the second DRA driver. It is also the domain of its attributes."""
CHANNEL_TYPE: Final = "channel"
DAEMON_TYPE: Final = "daemon"
"""The values of the attribute `type` of its devices."""
DOMAIN_FILE: Final = "domain"
"""The file, in the driver's folder on a node, with the UID of the domain that the node is in."""
CHANNEL_DEVICE: Final = "channel-0"
DAEMON_DEVICE: Final = "daemon-0"
"""The names of the devices of a node. The only channel that is given to workloads is channel 0."""
CLIQUE_ATTRIBUTE: Final = f"{DRIVER_NAME}/fabricClique"
"""The clique of a channel's node: `<cluster UUID>.<clique ID>`. GPUs have the same attribute."""
DOMAIN_ATTRIBUTE: Final = "domain"
"""The UID of the ComputeDomain that a channel's node is in."""
FABRIC_TAINT: Final = f"{DRIVER}/fabric"
"""On a channel whose node has not joined its NVLink fabric (yet). The value is that of FabricProgress."""
DAEMON_PREFIX: Final = "computedomain-daemon-"
"""With the UID of a domain, the name of the objects for its daemons. It is here so that the webhook, which needs it,
does not load the API client.
"""
