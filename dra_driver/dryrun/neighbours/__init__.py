# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of projects that decide about pods besides Kubernetes: Kueue and cluster-autoscaler.

`kueue` reads queues and the mapping of DeviceClasses, `charges` computes what a pod is charged, and `queues` whether a
queue has so much quota. `autoscaler` has the rules of cluster-autoscaler; `command` is `dra-dryrun autoscale`.
"""
