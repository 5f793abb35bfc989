# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains: nodes whose GPUs share memory over NVLink, for as long as a workload needs them.

A ComputeDomain is an object in a workload's namespace. Each pod of the workload claims a channel. On each node of such
a pod, an IMEX daemon runs, and the daemons of one clique (GPUs on one NVLink fabric) connect to each other. This
package has what the cluster controller, the plugin, the daemon and dry runs share: `names`, `objects` (the two custom
resources), `template` (the ResourceClaimTemplate for the workload), `devices` (the channel and the daemon as DRA
devices), and `mistakes` (configurations that a user should not write). `daemon` is the process dra-imex-daemon.

Group, names, labels and classes are those of NVIDIA's DRA driver, so that manifests and tools work unchanged.
"""
