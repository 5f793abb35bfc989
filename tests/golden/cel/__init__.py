# SPDX-License-Identifier: Apache-2.0
"""Expressions with the answers that Kubernetes 1.36.2 gave, and how they are compared with ours."""
