# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains in the cluster: their templates, daemons, nodes, members and status.

`view` has the facts that watches report, and `pods` those about the pods of daemons. From the facts of one domain,
`membership` decides which nodes are members and with which index, `status` what to report, and `objects` has the
objects that a domain needs; all of these are pure. `reconcile` writes the differences of one domain, `queue` has the
domains that changed, and `loop` runs `reconcile` for them. `options` has the flags. dra-cluster-controller runs the
loop in the process that is elected.
"""
