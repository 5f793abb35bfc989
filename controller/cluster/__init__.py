# SPDX-License-Identifier: Apache-2.0
"""dra-cluster-controller: deletes slices of nodes that no longer exist, reports claims there, manages ComputeDomains.

`view` has the nodes, slices and claims of the cluster, `leftovers` decides what to do (pure), and `caretaker` is the
loop around them. `collection` is a watch that keeps only facts of objects. `domains` manages ComputeDomains. `main` is
the process. If there are several processes, leader election chooses which of them works.
"""
