# SPDX-License-Identifier: Apache-2.0
"""dra-cluster-controller: deletes slices of nodes that no longer exist, and reports claims on such nodes.

`view` has the nodes, slices and claims of the cluster, `leftovers` decides what to do (pure), and `caretaker` is the
loop around them. `main` is the process. If there are several processes, leader election chooses the one that works.
"""
