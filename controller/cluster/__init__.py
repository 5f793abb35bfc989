# SPDX-License-Identifier: Apache-2.0
"""The cluster controller: removes what nodes that no longer exist have left behind, and reports it.

`view` has the nodes, slices and claims of the cluster, `leftovers` decides (pure), `caretaker` is the loop around
them, `main` the process: if there are several, one of them works, chosen by leader election.
"""
