# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains in the cluster: their templates, daemons, nodes, members and status.

`view` has what watches report, as `facts` and, about the pods of daemons, `pods`. From the facts of one domain,
`membership` decides which nodes are members and with which index, `status` what to report, and `objects` has the
objects that a domain needs; all of these are pure. `reconcile` finds the differences of one domain, and `writer` writes
them. `queue` has the domains that changed, and `loop` runs `reconcile` for them, as a part of the work of the leader.
`settings` are those of all domains, and `options` has the flags.
"""
