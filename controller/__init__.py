# SPDX-License-Identifier: Apache-2.0
"""The processes that write ResourceSlices, manage ComputeDomains, and check configurations.

- `node`: dra-controller, which publishes the ResourceSlices of one node (`main` is its command)
- `cluster`: dra-cluster-controller, which deletes slices of nodes that no longer exist, and manages ComputeDomains
- `webhook`: dra-webhook, which refuses invalid configurations
- `errors`: their exceptions
"""
