# SPDX-License-Identifier: Apache-2.0
"""The claims of the driver compute-domain.nvidia.com on this node: channels for workloads, and the IMEX daemon.

A channel is prepared when the daemon of its ComputeDomain is ready on this node. A node can be in one domain at a time.
`plan` turns a claim into a plan, `records` are the recorded plans, `folder` has the files of a node, `placing` tells
what the node offers, `specs` writes CDI specs, and `lifecycle` puts them together. `service` is what kubelet calls.
"""
