# SPDX-License-Identifier: Apache-2.0
"""Server-side apply: who owns which field, and merging what an owner declares.

`typed` merges and compares values by their type, `managers` keeps `metadata.managedFields` and the sets of fields in
it, `applier` combines them. Follows structured-merge-diff v6 and the managedfields package of k8s.io/apimachinery.
"""
