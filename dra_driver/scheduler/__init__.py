# SPDX-License-Identifier: Apache-2.0
"""Decisions of Kubernetes as pure functions, without GPUs and without I/O: CEL expressions (`cel`), which devices a
claim gets (`allocator`), and which node a pod gets (`pods`).
"""
