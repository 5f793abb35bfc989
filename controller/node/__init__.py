# SPDX-License-Identifier: Apache-2.0
"""What the process of a node publishes: GPUs become slices, and the difference to the stored slices is written.

`dra_driver.gpu.view` has the current state of the hardware, and `dra_driver.gpu.layout` the slices that the node should
have. `reconcile` computes the writes that lead from the stored slices to these; it is pure. `writer` knows the stored
slices, writes them, and decides when a write may be repeated. `rules` leaves out devices that break a rule of the API.
`publisher` is the loop around all of this. `channels` has the devices of ComputeDomains, `labels` the labels of the
node, `startup_taint` removes a taint of the node, and `metrics` has the metrics.
"""
