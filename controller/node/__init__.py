# SPDX-License-Identifier: Apache-2.0
"""What the process of a node publishes: GPUs become slices, and the difference to the stored slices is written.

`publisher` runs the loop, `reconcile` computes the difference, `writer` sends it, and `rules` leaves out devices that
break a rule of the API. `channels` has the devices of ComputeDomains, `labels` the labels of the node, and `metrics`
its metrics.
"""
