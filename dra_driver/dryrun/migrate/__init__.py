# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun migrate`: from NVIDIA's device plugin to this driver.

`configs` reads configurations of the device plugin and of mig-parted, and `programs` finds NVIDIA's DaemonSets and
chooses the configuration of each node. `labels` and `layout` tell what a node shows, and `nodes` what the plugin offers
there. `plan` makes the driver's policy and DeviceClasses of it; `gpu_operator` has what the GPU Operator needs.
`workloads`, `owners` and `quotas` tell what workloads, their owners and quotas need. `verify` places the workloads on
the planned devices, and `steps` has the order of the change. `reading` reads files or a cluster, `result` collects and
prints, and `command` is the subcommand.
"""
