# SPDX-License-Identifier: Apache-2.0
"""Kueue's arithmetic: whether a queue has quota for a workload.

`objects` reads queues and the mapping of DeviceClasses, `charges` computes what a pod is charged, and `queues` whether
a queue has so much quota.
"""
