# SPDX-License-Identifier: Apache-2.0
"""The processes that write ResourceSlices and check configurations.

- dra-controller publishes the ResourceSlices of one node. `dra_driver.gpu.view` has the current state of the hardware,
  `dra_driver.gpu.layout` the slices that the node should have, and `reconcile` the writes that lead from the stored
  slices to these. The last two are pure. `writer` knows the stored slices, writes them, and decides when a write may be
  repeated. `publisher` is the loop around all of this.
- `cluster`: dra-cluster-controller, which deletes slices of nodes that no longer exist, and runs `computedomains`.
- `computedomains`: templates, daemons, members and status of ComputeDomains.
- `webhook`: dra-webhook, which refuses invalid configurations.
"""
