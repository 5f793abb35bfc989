# SPDX-License-Identifier: Apache-2.0
"""dra-cluster-controller: deletes slices of nodes that no longer exist, reports claims there, manages ComputeDomains.

`view` watches the nodes, slices and claims of the cluster once, for all parts. `facts` has the fields that are kept of
each object, and `collection` is a watch that keeps only these. There are two parts: `caretaker` is the loop about
leftovers, for which `leftovers` decides what to do (pure), and `domains` manages ComputeDomains. `leader` runs the
parts while this process is the elected one, and `main` is the process.
"""
