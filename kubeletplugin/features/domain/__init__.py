# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains on a node: what claims for channels and daemons change there.

A channel is prepared when the daemon of its ComputeDomain is ready on this node. A node can be in one domain at a time.
`offers` tells what the node offers, `plan` turns a claim into a plan, `steps` are the changes of the node, `folder` has
the files that they change, and `version1` reads the records of the previous release.
"""
