# SPDX-License-Identifier: Apache-2.0
"""The processes that write ResourceSlices and check configurations.

- dra-controller publishes the ResourceSlices of one node. `dra_driver.gpu.view` follows the hardware,
  `dra_driver.gpu.layout` decides which slices the node should have, and `reconcile` which writes lead from the slices
  in the API server to these; the last two are pure functions. `stored` knows the slices in the API server, `writer`
  writes them and decides when a write may be repeated, `differences` names fields that the API server changed, and
  `publisher` is the loop around all of this.
- `cluster`: dra-cluster-controller, which deletes slices of nodes that no longer exist.
- `webhook`: dra-webhook, which refuses invalid configurations.
"""
