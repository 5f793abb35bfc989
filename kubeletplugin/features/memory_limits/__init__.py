# SPDX-License-Identifier: Apache-2.0
"""Limits of the GPU memory of containers that have a share of a GPU.

The container runtime calls the hook program (hook.c) for each container of a limited share, before the container's
first process starts. The program asks the plugin through a socket (`server`), and the plugin sets the limit through
NVML (`limiter`) on the container's cgroup and on its pod's (`cgroups`). `uses` records which pod has a claim.
"""
