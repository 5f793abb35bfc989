# SPDX-License-Identifier: Apache-2.0
"""The cluster's caretaker: removes what nodes that are gone have left behind, and tells whom it concerns.

`facts` is what is known of the cluster, `leftovers` decides (pure), `caretaker` is the loop around them, `main` the
process: one at a time in the cluster, if there are several, by leader election.
"""
