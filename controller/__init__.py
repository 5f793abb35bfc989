# SPDX-License-Identifier: Apache-2.0
"""The processes that keep API objects as they should be.

- The node's publisher, for as long as the node lives: what GPUs there are -> ResourceSlices. `dra_driver.gpu.view`
  follows the hardware, `dra_driver.gpu.layout` decides which slices a node should have and `reconcile` what to write
  to get there from what the API server holds; the last two are pure. `writer` writes slices and
  decides when a slice may be written again, and `publisher` is the loop around them.
- `cluster`: what is not one node's, such as slices of nodes that are gone.
- `webhook`: refuses configurations that no node could use.
"""
