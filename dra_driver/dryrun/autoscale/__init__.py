# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun autoscale`: which node group takes a pending pod, and why a node stays.

`autoscaler` has the rules of cluster-autoscaler, and `command` the options and the answer.
"""
