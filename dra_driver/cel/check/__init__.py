# SPDX-License-Identifier: Apache-2.0
"""From a tree to one with types: declarations, type checker, what Kubernetes checks beside it, cost estimate."""
