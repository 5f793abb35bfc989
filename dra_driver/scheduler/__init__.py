# SPDX-License-Identifier: Apache-2.0
"""Decisions of Kubernetes as pure functions, without GPUs and without I/O: CEL expressions (`cel`), which devices a
claim gets (`allocator`), which node a pod gets (`pods`), whether a group of pods is placed as a whole (`gangs`), and
which pods must move so that a demand fits (`repack`).
"""
