# SPDX-License-Identifier: Apache-2.0
"""The node's publisher: what GPUs there are -> ResourceSlices, for as long as the node lives.

`dra_driver.gpu.layout` decides which slices a node should have, `reconcile` what to write to get there from what
the API server holds; both are pure. `publisher` is the loop around them.
"""
